//! The output rows of a value.

use girih_tensor::Shape;

use crate::sequence::Sequence;
use crate::value::{Extent, Value};
use crate::work::{NodeWork, Reads, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.outermost == Extent::OutputRows && y.inner() == x.inner()
}

/// A row has `stride` numbers.
pub(crate) fn define(x: &[f32], stride: usize, sequences: &[Sequence<'_>]) -> Vec<f32> {
    let rows = sequences.iter().flat_map(Sequence::output_rows);
    rows.flat_map(|row| &x[row * stride..(row + 1) * stride]).copied().collect()
}

pub(super) fn work(_x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::reading([Reads::Rows(step.rows)])
}
