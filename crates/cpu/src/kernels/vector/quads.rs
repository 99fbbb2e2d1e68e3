//! What quantizing does to four groups at once: vectors of four numbers, one for
//! each group.

use std::arch::x86_64::*;

use super::Vectors;
use crate::kernels::portable::quantize::{LEAST, LEVELS};

/// Groups whose results are made together.
pub(super) const QUAD: usize = 4;

/// Joins the four lanes of each vector by `join`: 0 with 2, 1 with 3, then both,
/// the order in which the portable kernel adds numbers.
#[inline(always)]
pub(super) fn join_lanes<V: Vectors>(
    _: V,
    [a, b, c, d]: [__m128i; QUAD],
    join: impl Fn(__m128i, __m128i) -> __m128i,
) -> __m128i {
    // SAFETY: the token says that the processor has AVX2.
    let (pairs, other) = unsafe {
        (
            [_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)],
            [_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d)],
        )
    };
    let (ab, cd) = (join(pairs[0], pairs[1]), join(other[0], other[1]));
    // SAFETY: the token says that the processor has AVX2.
    let (low, high) = unsafe { (_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd)) };
    join(low, high)
}

/// The largest lane of each of four vectors.
#[inline(always)]
pub(super) fn largest_lanes<V: Vectors>(v: V, vectors: [__m128i; QUAD]) -> __m128i {
    // SAFETY: the token says that the processor has AVX2.
    join_lanes(v, vectors, |a, b| unsafe { _mm_max_epi32(a, b) })
}

/// The sum of each of four vectors' lanes.
#[inline(always)]
pub(super) fn sum_lanes<V: Vectors>(v: V, vectors: [__m128i; QUAD]) -> __m128i {
    // SAFETY: the token says that the processor has AVX2.
    join_lanes(v, vectors, |a, b| unsafe { _mm_add_epi32(a, b) })
}

/// The sum of each of four vectors' lanes, which are floats.
#[inline(always)]
fn sum_float_lanes<V: Vectors>(v: V, [a, b, c, d]: [__m128; QUAD]) -> __m128 {
    // SAFETY: the token says that the processor has AVX2.
    unsafe {
        let bits = [_mm_castps_si128(a), _mm_castps_si128(b), _mm_castps_si128(c), _mm_castps_si128(d)];
        _mm_castsi128_ps(join_lanes(v, bits, |a, b| {
            _mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b)))
        }))
    }
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
    // SAFETY: the token says that the processor has AVX2.
    unsafe {
        let largest = _mm_castsi128_ps(largest);
        let enough = _mm_cmpge_ps(largest, _mm_set1_ps(LEAST));
        let finite = _mm_cmplt_ps(largest, _mm_set1_ps(f32::INFINITY));
        if _mm_movemask_ps(_mm_and_ps(enough, finite)) != 0b1111 {
            return None;
        }
        let (mut best, mut inverses) = (_mm_setzero_ps(), _mm_setzero_ps());
        let mut least = _mm_set1_ps(f32::INFINITY);
        for (levels, weight) in LEVELS {
            let levels = _mm_set1_ps(levels);
            let these = _mm_div_ps(levels, largest);
            let squares = _mm_mul_ps(squares_left(v, groups, spread(v, these)), _mm_set1_ps(weight));
            let less = _mm_cmplt_ps(squares, least);
            best = _mm_blendv_ps(best, levels, less);
            inverses = _mm_blendv_ps(inverses, these, less);
            least = _mm_blendv_ps(least, squares, less);
        }
        Some((_mm_div_ps(largest, best), spread(v, inverses)))
    }
}

/// The sum of the squares that rounding leaves of each group, once it is multiplied
/// by its number.
#[inline(always)]
fn squares_left<V: Vectors>(v: V, groups: &[[V::Lanes; 2]], inverses: [__m128; QUAD]) -> __m128 {
    // SAFETY: the token says that the processor has AVX2.
    let mut quarters = unsafe { [_mm_setzero_ps(); QUAD] };
    for ((quarter, [a, b]), inverse) in quarters.iter_mut().zip(groups).zip(inverses) {
        let inverse = v.broadcast(inverse);
        let a = v.rounding(v.mul(v.load(a), inverse));
        let b = v.rounding(v.mul(v.load(b), inverse));
        *quarter = v.fold(v.add(v.mul(a, a), v.mul(b, b)));
    }
    sum_float_lanes(v, quarters)
}

/// Each of four numbers in all lanes of a vector.
#[inline(always)]
fn spread<V: Vectors>(_: V, numbers: __m128) -> [__m128; QUAD] {
    // SAFETY: the token says that the processor has AVX2.
    unsafe {
        [
            _mm_shuffle_ps::<0b00_00_00_00>(numbers, numbers),
            _mm_shuffle_ps::<0b01_01_01_01>(numbers, numbers),
            _mm_shuffle_ps::<0b10_10_10_10>(numbers, numbers),
            _mm_shuffle_ps::<0b11_11_11_11>(numbers, numbers),
        ]
    }
}

/// Writes four numbers.
#[inline(always)]
pub(super) fn write_floats<V: Vectors>(_: V, vector: __m128, numbers: &mut [f32; QUAD]) {
    // SAFETY: the token says that the processor has AVX2; the array is 16 writable
    // bytes, which need no alignment.
    unsafe { _mm_storeu_ps(numbers.as_mut_ptr(), vector) }
}

/// Writes four integers.
#[inline(always)]
pub(super) fn write_integers<V: Vectors>(_: V, vector: __m128i, integers: &mut [i32; QUAD]) {
    // SAFETY: the token says that the processor has AVX2; the array is 16 writable
    // bytes, which need no alignment.
    unsafe { _mm_storeu_si128(integers.as_mut_ptr().cast(), vector) }
}
