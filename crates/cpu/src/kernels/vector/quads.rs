//! What quantizing does to four groups at once: vectors of four numbers, one for
//! each group.

use std::arch::x86_64::*;

use super::{Vectors, instructions};
use crate::kernels::portable::quantize::{LEAST, LEVELS};

/// Groups whose results are made together.
pub(super) const QUAD: usize = 4;

/// Vectors of four numbers, whose instructions every set has.
pub(super) trait Quads: Vectors {
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

impl<V: Vectors> Quads for V {}

/// Joins the four lanes of each vector by `join`: 0 with 2, 1 with 3, then both,
/// the order in which the portable kernel adds numbers.
#[inline(always)]
fn join_lanes<V: Vectors>(
    v: V,
    [a, b, c, d]: [__m128i; QUAD],
    join: impl Fn(__m128i, __m128i) -> __m128i,
) -> __m128i {
    let ([ab_low, ab_high], [cd_low, cd_high]) = (v.mix_lanes(a, b), v.mix_lanes(c, d));
    let [low, high] = v.mix_pairs(join(ab_low, ab_high), join(cd_low, cd_high));
    join(low, high)
}

/// The largest lane of each of four vectors.
#[inline(always)]
pub(super) fn largest_lanes<V: Vectors>(v: V, vectors: [__m128i; QUAD]) -> __m128i {
    join_lanes(v, vectors, |a, b| v.max_quads(a, b))
}

/// The sum of each of four vectors' lanes.
#[inline(always)]
pub(super) fn sum_lanes<V: Vectors>(v: V, vectors: [__m128i; QUAD]) -> __m128i {
    join_lanes(v, vectors, |a, b| v.add_integer_quads(a, b))
}

/// The sum of each of four vectors' lanes, which are floats.
#[inline(always)]
fn sum_float_lanes<V: Vectors>(v: V, [a, b, c, d]: [__m128; QUAD]) -> __m128 {
    let bits = [v.quad_bits(a), v.quad_bits(b), v.quad_bits(c), v.quad_bits(d)];
    let add = |a, b| v.quad_bits(v.add_quads(v.quad_floats(a), v.quad_floats(b)));
    v.quad_floats(join_lanes(v, bits, add))
}

/// The scales of four groups, whose largest values are given as the bits of
/// numbers without a sign, and what their values are multiplied by, each in all
/// lanes of a vector; nothing if a group cannot be quantized.
#[inline(always)]
pub(super) fn scales<V: Vectors>(
    v: V,
    largest: __m128i,
    groups: &[[V::Lanes; 2]],
) -> Option<(__m128, [__m128; QUAD])> {
    let largest = v.quad_floats(largest);
    if !v.have_scales(largest) {
        return None;
    }
    let (mut best, mut inverses, mut least) = (v.quad(0.0), v.quad(0.0), v.quad(f32::INFINITY));
    for (levels, weight) in LEVELS {
        let levels = v.quad(levels);
        let these = v.div_quads(levels, largest);
        let squares = v.mul_quads(squares_left(v, groups, v.spread(these)), v.quad(weight));
        let less = v.less_quads(squares, least);
        best = v.select_quads(levels, best, less);
        inverses = v.select_quads(these, inverses, less);
        least = v.select_quads(squares, least, less);
    }
    Some((v.div_quads(largest, best), v.spread(inverses)))
}

/// The sum of the squares that rounding leaves of each group, once it is multiplied
/// by its number.
#[inline(always)]
fn squares_left<V: Vectors>(v: V, groups: &[[V::Lanes; 2]], inverses: [__m128; QUAD]) -> __m128 {
    let mut quarters = [v.quad(0.0); QUAD];
    for ((quarter, [a, b]), inverse) in quarters.iter_mut().zip(groups).zip(inverses) {
        let inverse = v.broadcast(inverse);
        let a = v.rounding(v.mul(v.load(a), inverse));
        let b = v.rounding(v.mul(v.load(b), inverse));
        *quarter = v.fold(v.add(v.mul(a, a), v.mul(b, b)));
    }
    sum_float_lanes(v, quarters)
}
