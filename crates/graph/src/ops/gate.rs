//! A product with an activated gate.

use girih_tensor::Shape;

use crate::constant::Act;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(gate: &Value, up: &Value, y: &Value) -> bool {
    y.is_like(gate) && y.is_like(up)
}

pub(crate) fn define(gate: &[f32], up: &[f32], act: Act) -> Vec<f32> {
    gate.iter().zip(up).map(|(&gate, &up)| (act.of(f64::from(gate)) * f64::from(up)) as f32).collect()
}

pub(super) fn work(act: Act, gate: Shape, _up: Shape, step: WorkStep<'_>) -> NodeWork {
    let operations = if act == Act::Identity { 1 } else { 10 };
    NodeWork::each(2, operations * step.elements(gate))
}
