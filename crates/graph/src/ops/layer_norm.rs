//! Normalisation by mean and variance.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, weight: Option<&Value>, bias: Option<&Value>, y: &Value) -> bool {
    let is_as_wide = |vector: &Value| vector.is_vector(x.columns());
    x.rank() > 1 && y.is_like(x) && weight.is_none_or(is_as_wide) && bias.is_none_or(is_as_wide)
}

/// A row of `x` has `width` numbers.
pub(crate) fn define(x: &[f32], [weight, bias]: [Option<&[f32]>; 2], epsilon: f32, width: usize) -> Vec<f32> {
    let normed = x.chunks_exact(width).flat_map(|row| {
        let (mean, root) = reference::mean_and_deviation(row, f64::from(epsilon));
        row.iter().enumerate().map(move |(i, &x)| {
            let weight = weight.map_or(1.0, |weight| f64::from(weight[i]));
            let offset = bias.map_or(0.0, |bias| f64::from(bias[i]));
            ((f64::from(x) - mean) / root * weight + offset) as f32
        })
    });
    normed.collect()
}

/// A sum, a difference, a square and its sum, a quotient, a product and the bias.
pub(super) fn work(
    _epsilon: f32,
    x: Shape,
    _weight: Option<Shape>,
    _bias: Option<Shape>,
    step: WorkStep<'_>,
) -> NodeWork {
    NodeWork::each(3, 7 * step.elements(x))
}
