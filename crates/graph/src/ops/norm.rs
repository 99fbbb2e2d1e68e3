//! Root-mean-square normalisation.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, weight: Option<&Value>, y: &Value) -> bool {
    let whole = x.inner().iter().product();
    let fits = |weight: &Value| weight.is_vector(x.columns()) || weight.is_vector(whole);
    x.rank() > 1 && y.is_like(x) && weight.is_none_or(fits)
}

/// Each `width` numbers of `x` are normed. The weight begins again where it ends.
pub(crate) fn define(x: &[f32], weight: Option<&[f32]>, epsilon: f32, width: usize) -> Vec<f32> {
    let normed = x.chunks_exact(width).enumerate().flat_map(|(run, row)| {
        let first = weight.map_or(0, |weight| run * width % weight.len());
        let root = reference::root_mean_square(row, f64::from(epsilon));
        row.iter().enumerate().map(move |(i, &x)| {
            let weight = weight.map_or(1.0, |weight| f64::from(weight[first + i]));
            (f64::from(x) / root * weight) as f32
        })
    });
    normed.collect()
}

/// A square and its sum, a quotient and a product.
pub(super) fn work(_epsilon: f32, x: Shape, _weight: Option<Shape>, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, 4 * step.elements(x))
}
