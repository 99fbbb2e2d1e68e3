//! Vectors of four numbers as NEON has them.

use std::arch::aarch64::*;

use crate::kernels::portable::quantize::LEAST;
use crate::kernels::vector::{QUAD, Vectors, instructions};

/// Vectors of four numbers, whose instructions every set has.
pub(in super::super) trait NeonQuads: Vectors {
    instructions! {
        quad(value: f32) -> float32x4_t { vdupq_n_f32(value) }
        zero_quad() -> int32x4_t { vdupq_n_s32(0) }
        quad_bits(x: float32x4_t) -> int32x4_t { vreinterpretq_s32_f32(x) }
        quad_floats(x: int32x4_t) -> float32x4_t { vreinterpretq_f32_s32(x) }
        add_quads(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        mul_quads(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        div_quads(a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
        less_quads(a: float32x4_t, b: float32x4_t) -> float32x4_t { vreinterpretq_f32_u32(vcltq_f32(a, b)) }
        select_quads(yes: float32x4_t, no: float32x4_t, mask: float32x4_t) -> float32x4_t {
            vbslq_f32(vreinterpretq_u32_f32(mask), yes, no)
        }
        max_quads(a: int32x4_t, b: int32x4_t) -> int32x4_t { vmaxq_s32(a, b) }
        add_integer_quads(a: int32x4_t, b: int32x4_t) -> int32x4_t { vaddq_s32(a, b) }
        mix_lanes(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] { [vzip1q_s32(a, b), vzip2q_s32(a, b)] }
        mix_pairs(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
            let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
            [vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b))]
        }

        // Whether all four groups, whose largest values these are, have scales.
        have_scales(largest: float32x4_t) -> bool {
            let enough = vcgeq_f32(largest, vdupq_n_f32(LEAST));
            let finite = vcltq_f32(largest, vdupq_n_f32(f32::INFINITY));
            vminvq_u32(vandq_u32(enough, finite)) != 0
        }
        // Each of four numbers in all lanes of a vector.
        spread(numbers: float32x4_t) -> [float32x4_t; QUAD] {
            [
                vdupq_laneq_f32::<0>(numbers),
                vdupq_laneq_f32::<1>(numbers),
                vdupq_laneq_f32::<2>(numbers),
                vdupq_laneq_f32::<3>(numbers),
            ]
        }
        write_quad(vector: float32x4_t, numbers: &mut [f32; QUAD]) { vst1q_f32(numbers.as_mut_ptr(), vector) }
        write_integer_quad(vector: int32x4_t, integers: &mut [i32; QUAD]) {
            vst1q_s32(integers.as_mut_ptr(), vector)
        }
    }
}

impl<V: Vectors> NeonQuads for V {}
