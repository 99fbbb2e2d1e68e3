//! The same numbers under another shape.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.has_rows_of(x) && y.shape.elements() == x.shape.elements()
}

pub(crate) fn define(x: &[f32]) -> Vec<f32> {
    x.to_vec()
}

pub(super) fn work(_x: Shape, _step: WorkStep<'_>) -> NodeWork {
    NodeWork::reading_all(1)
}
