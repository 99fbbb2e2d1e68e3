//! Looks up rows of a table.

use std::borrow::Cow;

use girih_tensor::{Result, Shape};

use crate::value::Value;
use crate::work::{NodeWork, Reads, WorkStep};

pub(super) fn fits(ids: &Value, table: &Value, y: &Value) -> bool {
    table.rank() == 2 && y.has_rows_of(ids) && y.inner() == [table.columns()]
}

/// `row` returns a row of the table.
pub(crate) fn define<'a>(ids: &[u32], row: impl Fn(usize) -> Result<Cow<'a, [f32]>>) -> Result<Vec<f32>> {
    let mut rows = Vec::new();
    for &id in ids {
        rows.extend_from_slice(&row(id as usize)?);
    }
    Ok(rows)
}

pub(super) fn work(_ids: Shape, _table: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::reading([Reads::All, Reads::Rows(step.rows)])
}
