//! Root-mean-square normalisation.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, weight: &Value, y: &Value) -> bool {
    x.rank() > 1 && y.is_like(x) && weight.is_vector(x.columns())
}

pub(crate) fn define(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let normed = x.chunks_exact(weight.len()).flat_map(|row| {
        let root = reference::root_mean_square(row, f64::from(epsilon));
        row.iter().zip(weight).map(move |(&x, &w)| (f64::from(x) / root * f64::from(w)) as f32)
    });
    normed.collect()
}

/// A square and its sum, a quotient and a product.
pub(super) fn work(_epsilon: f32, x: Shape, _weight: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, 4 * step.elements(x))
}
