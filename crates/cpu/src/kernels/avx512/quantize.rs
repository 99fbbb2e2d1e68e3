//! Rows of activations as small integers, four groups at a time.
//!
//! ```text
//! largest = max |x| as integers     lane by lane, then four groups' lanes together
//! left    = Σ (x · i − round(x · i))²   for each number of levels i · largest
//! codes   = x · (levels / largest)  converted to integers, to even where two are as near,
//!                                   which fit into bytes when they are packed
//! sums    = Σ codes                 lane by lane, then four groups' lanes together
//! ```
//! The same operations as in `portable::quantize`, which also takes the groups
//! that are left over and those that have no scale. Bytes: 4 read and 1.25
//! written a value. The results of four groups are made by 5 divisions.

use std::arch::x86_64::*;

use super::super::{GROUP, x86};
use super::{LANES, QUAD, load};

/// Rounding to the nearest integer, to even where two are as near.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) fn quantize(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    x86::by_quads(x, codes, scales, sums, |x, codes, scales, sums| quad(x, codes, scales, sums));
}

/// Quantizes four groups, unless one of them has no scale.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn quad(
    x: &[f32; QUAD * GROUP],
    codes: &mut [i8; QUAD * GROUP],
    scales: &mut [f32; QUAD],
    sums: &mut [i32; QUAD],
) -> bool {
    let x = x.as_chunks::<LANES>().0;
    let size = _mm512_set1_epi32(i32::MAX);
    let mut largest = [_mm_setzero_si128(); QUAD];
    for (largest, x) in largest.iter_mut().zip(x.as_chunks::<2>().0) {
        let [a, b] = [_mm512_castps_si512(load(&x[0])), _mm512_castps_si512(load(&x[1]))];
        let lanes = _mm512_max_epi32(_mm512_and_si512(a, size), _mm512_and_si512(b, size));
        let lanes = _mm256_max_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        *largest = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    }
    let largest = x86::join_lanes(largest, |a, b| _mm_max_epi32(a, b));
    let found = x86::scales(largest, |inverses| left(x, inverses));
    let Some((found, inverses)) = found else { return false };
    x86::store_quad(found, scales);
    let mut totals = [_mm_setzero_si128(); QUAD];
    let mut words = [_mm512_setzero_si512(); QUAD];
    let groups = x.as_chunks::<2>().0.iter().zip(inverses);
    for (((x, inverse), total), words) in groups.zip(&mut totals).zip(&mut words) {
        let inverse = _mm512_broadcastss_ps(inverse);
        let a = _mm512_cvtps_epi32(_mm512_mul_ps(load(&x[0]), inverse));
        let b = _mm512_cvtps_epi32(_mm512_mul_ps(load(&x[1]), inverse));
        *words = _mm512_packs_epi32(a, b);
        let lanes = _mm512_add_epi32(a, b);
        let lanes = _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        *total = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    }
    // Each quarter of packed bytes holds a quarter of each vector that went into it.
    let sorted = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (words, codes) in words.as_chunks::<2>().0.iter().zip(codes.as_chunks_mut().0) {
        let packed = _mm512_packs_epi16(words[0], words[1]);
        store_codes(_mm512_permutexvar_epi32(sorted, packed), codes);
    }
    x86::store_integers(x86::join_lanes(totals, |a, b| _mm_add_epi32(a, b)), sums);
    true
}

/// The squares that are left of four groups which are multiplied by these numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn left(x: &[[f32; LANES]], inverses: [__m128; QUAD]) -> __m128 {
    let mut quarters = [_mm_setzero_ps(); QUAD];
    for ((quarter, x), inverse) in quarters.iter_mut().zip(x.as_chunks::<2>().0).zip(inverses) {
        let inverse = _mm512_broadcastss_ps(inverse);
        let [a, b] = [0, 1].map(|i| {
            let left = _mm512_reduce_ps::<NEAREST>(_mm512_mul_ps(load(&x[i]), inverse));
            _mm512_mul_ps(left, left)
        });
        let lanes = _mm512_add_ps(a, b);
        let lanes = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
        *quarter = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    }
    x86::lane_sums(quarters)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn store_codes(vector: __m512i, codes: &mut [i8; 2 * GROUP]) {
    // SAFETY: the array is 64 writable bytes; this store needs no alignment.
    unsafe { _mm512_storeu_si512(codes.as_mut_ptr().cast(), vector) }
}
