//! Matmuls with weights.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, weight: &Value, bias: Option<&Value>, y: &Value) -> bool {
    let &[outputs, inputs] = weight.shape.extents() else { return false };
    x.rank() == 2
        && x.columns() == inputs
        && bias.is_none_or(|bias| bias.is_vector(outputs))
        && y.has_rows_of(x)
        && y.inner() == [outputs]
}

/// A row of `x` has `inputs` numbers.
pub(crate) fn define(x: &[f32], weight: &[f32], bias: Option<&[f32]>, inputs: usize) -> Vec<f32> {
    let sums = x.chunks_exact(inputs).flat_map(|row| {
        weight.chunks_exact(inputs).enumerate().map(move |(output, weights)| {
            let offset = bias.map_or(0.0, |bias| f64::from(bias[output]));
            (reference::dot(row, weights).sum + offset) as f32
        })
    });
    sums.collect()
}

pub(super) fn work(_x: Shape, weight: Shape, bias: Option<Shape>, step: WorkStep<'_>) -> NodeWork {
    let biases = bias.map_or(0, |bias| bias.elements() as u64);
    NodeWork {
        multiply_adds: step.rows * weight.elements() as u64,
        other_operations: step.rows * biases,
        ..NodeWork::reading_all(3)
    }
}
