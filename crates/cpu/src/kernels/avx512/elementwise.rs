//! What is done element by element: plain code, compiled for AVX-512.

use girih_graph::Act;

use super::super::exponential;
use super::super::portable::elementwise;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) fn gate(act: Act, gate: &[f32], up: &[f32], y: &mut [f32]) {
    exponential::gate(act, gate, up, y);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    elementwise::add(a, b, y);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
    elementwise::scale(x, factor, y);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) fn softcap(values: &mut [f32], cap: f32) {
    exponential::softcap(values, cap);
}
