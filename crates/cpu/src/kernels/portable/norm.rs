//! Root-mean-square normalisation of a row.

use super::dot::dot;

pub(super) fn norm(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    normalize(x, dot(x, x), weight, epsilon, y);
}

/// The normalisation of a row whose squares add up to `squares`.
#[inline(always)] // A table's own vector instructions are to be had by it.
pub(in super::super) fn normalize(x: &[f32], squares: f32, weight: &[f32], epsilon: f32, y: &mut [f32]) {
    let mean = squares / x.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * weight;
    }
}
