//! An activation.

use girih_tensor::Shape;

use crate::constant::Act;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.is_like(x)
}

pub(crate) fn define(x: &[f32], act: Act) -> Vec<f32> {
    x.iter().map(|&x| act.of(f64::from(x)) as f32).collect()
}

pub(super) fn work(_act: Act, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(1, 10 * step.elements(x))
}
