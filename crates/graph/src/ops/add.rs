//! A sum.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(a: &Value, b: &Value, y: &Value) -> bool {
    y.is_like(a) && y.is_like(b)
}

pub(crate) fn define(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) + f64::from(b)) as f32).collect()
}

pub(super) fn work(a: Shape, _b: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, step.elements(a))
}
