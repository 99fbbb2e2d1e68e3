//! Bounds of each number.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.is_like(x)
}

/// Comparisons that let NaN pass.
pub(crate) fn define(x: &[f32], low: f32, high: f32) -> Vec<f32> {
    let clamped = |&x: &f32| match x {
        x if x < low => low,
        x if x > high => high,
        x => x,
    };
    x.iter().map(clamped).collect()
}

pub(super) fn work(_low: f32, _high: f32, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(1, 2 * step.elements(x))
}
