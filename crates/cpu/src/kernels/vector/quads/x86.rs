//! Vectors of four numbers as SSE4.1 has them.

use std::arch::x86_64::*;

use crate::kernels::portable::quantize::LEAST;
use crate::kernels::vector::{QUAD, Vectors, instructions};

/// Vectors of four numbers, whose instructions every set has.
pub(in super::super) trait SseQuads: Vectors {
    instructions! {
        quad(value: f32) -> __m128 { _mm_set1_ps(value) }
        zero_quad() -> __m128i { _mm_setzero_si128() }
        quad_bits(x: __m128) -> __m128i { _mm_castps_si128(x) }
        quad_floats(x: __m128i) -> __m128 { _mm_castsi128_ps(x) }
        add_quads(a: __m128, b: __m128) -> __m128 { _mm_add_ps(a, b) }
        mul_quads(a: __m128, b: __m128) -> __m128 { _mm_mul_ps(a, b) }
        div_quads(a: __m128, b: __m128) -> __m128 { _mm_div_ps(a, b) }
        less_quads(a: __m128, b: __m128) -> __m128 { _mm_cmplt_ps(a, b) }
        select_quads(yes: __m128, no: __m128, mask: __m128) -> __m128 { _mm_blendv_ps(no, yes, mask) }
        max_quads(a: __m128i, b: __m128i) -> __m128i { _mm_max_epi32(a, b) }
        add_integer_quads(a: __m128i, b: __m128i) -> __m128i { _mm_add_epi32(a, b) }
        mix_lanes(a: __m128i, b: __m128i) -> [__m128i; 2] { [_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)] }
        mix_pairs(a: __m128i, b: __m128i) -> [__m128i; 2] { [_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)] }

        // Whether all four groups, whose largest values these are, have scales.
        have_scales(largest: __m128) -> bool {
            let enough = _mm_cmpge_ps(largest, _mm_set1_ps(LEAST));
            let finite = _mm_cmplt_ps(largest, _mm_set1_ps(f32::INFINITY));
            _mm_movemask_ps(_mm_and_ps(enough, finite)) == 0b1111
        }
        // Each of four numbers in all lanes of a vector.
        spread(numbers: __m128) -> [__m128; QUAD] {
            [
                _mm_shuffle_ps::<0b00_00_00_00>(numbers, numbers),
                _mm_shuffle_ps::<0b01_01_01_01>(numbers, numbers),
                _mm_shuffle_ps::<0b10_10_10_10>(numbers, numbers),
                _mm_shuffle_ps::<0b11_11_11_11>(numbers, numbers),
            ]
        }
        write_quad(vector: __m128, numbers: &mut [f32; QUAD]) {
            _mm_storeu_ps(numbers.as_mut_ptr(), vector)
        }
        write_integer_quad(vector: __m128i, integers: &mut [i32; QUAD]) {
            _mm_storeu_si128(integers.as_mut_ptr().cast(), vector)
        }
    }
}

impl<V: Vectors> SseQuads for V {}
