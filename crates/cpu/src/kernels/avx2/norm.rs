//! Root-mean-square normalisation of a row: plain code, compiled for AVX2 and FMA.

use super::super::portable;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn norm(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    portable::norm::norm(x, weight, epsilon, y);
}
