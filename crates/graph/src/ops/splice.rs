//! Rows that a step gives replace those of a value.

use girih_tensor::Shape;

use crate::sequence::GivenRows;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, given: &Value, y: &Value) -> bool {
    y.is_like(x) && y.is_like(given)
}

/// A row has `width` numbers.
pub(crate) fn define(x: &[f32], given: &[GivenRows<'_>], width: usize) -> Vec<f32> {
    let mut rows = x.to_vec();
    for GivenRows { first_row, values } in given {
        rows[*first_row as usize * width..][..values.len()].copy_from_slice(values);
    }
    rows
}

pub(super) fn work(_x: Shape, _given: Shape, _step: WorkStep<'_>) -> NodeWork {
    NodeWork::reading_all(2)
}
