//! A product with a constant.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.is_like(x)
}

pub(crate) fn define(x: &[f32], factor: f32) -> Vec<f32> {
    x.iter().map(|&x| (f64::from(x) * f64::from(factor)) as f32).collect()
}

pub(super) fn work(_factor: f32, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(1, step.elements(x))
}
