//! Rotation of the pairs of the heads of a row: plain code, compiled for AVX2 and FMA.

use girih_graph::Pairing;

use super::super::{Turns, portable};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rotate(x: &[f32], turns: Turns<'_>, pairing: Pairing, y: &mut [f32]) {
    portable::rope::rotate(x, turns, pairing, y);
}
