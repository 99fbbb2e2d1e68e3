//! Root-mean-square normalisation of a row.

use super::super::portable;
use super::dot::dot;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) fn norm(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    portable::norm::normalize(x, dot(x, x), weight, epsilon, y);
}
