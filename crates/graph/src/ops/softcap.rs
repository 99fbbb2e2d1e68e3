//! A smooth bound of the magnitude.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.is_like(x)
}

pub(crate) fn define(x: &[f32], cap: f32) -> Vec<f32> {
    let cap = f64::from(cap);
    x.iter().map(|&x| (cap * (f64::from(x) / cap).tanh()) as f32).collect()
}

pub(super) fn work(_cap: f32, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(1, 10 * step.elements(x))
}
