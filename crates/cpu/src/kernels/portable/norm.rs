//! Root-mean-square normalisation of a row.

use super::dot::dot;

pub(super) fn norm(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    let mean = dot(x, x) / x.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * weight;
    }
}
