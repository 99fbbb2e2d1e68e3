//! Rows of activations as small integers, four groups at a time.
//!
//! ```text
//! largest = max |x| as integers     lane by lane, then four groups' lanes together
//! left    = Σ (x · i − round(x · i))²   for each number of levels i · largest
//! codes   = x · (levels / largest)  converted to integers, to even where two are as near
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

/// Vectors of a group.
const VECTORS: usize = GROUP / LANES;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantize(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    x86::by_quads(x, codes, scales, sums, |x, codes, scales, sums| quad(x, codes, scales, sums));
}

/// Quantizes four groups, unless one of them has no scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn quad(
    x: &[f32; QUAD * GROUP],
    codes: &mut [i8; QUAD * GROUP],
    scales: &mut [f32; QUAD],
    sums: &mut [i32; QUAD],
) -> bool {
    let groups = x.as_chunks::<LANES>().0.as_chunks::<VECTORS>().0;
    let size = _mm256_set1_epi32(i32::MAX);
    let mut largest = [_mm_setzero_si128(); QUAD];
    for (largest, x) in largest.iter_mut().zip(groups) {
        let mut lanes = _mm256_setzero_si256();
        for x in x {
            lanes = _mm256_max_epi32(lanes, _mm256_and_si256(_mm256_castps_si256(load(x)), size));
        }
        *largest = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    }
    let largest = x86::join_lanes(largest, |a, b| _mm_max_epi32(a, b));
    let found = x86::scales(largest, |inverses| left(groups, inverses));
    let Some((found, inverses)) = found else { return false };
    x86::store_quad(found, scales);
    let mut totals = [_mm_setzero_si128(); QUAD];
    let codes = codes.as_chunks_mut::<GROUP>().0;
    for (((total, inverse), x), codes) in totals.iter_mut().zip(inverses).zip(groups).zip(codes) {
        let inverse = _mm256_broadcastss_ps(inverse);
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[i]), inverse)));
        store_codes([a, b, c, d], codes);
        let lanes = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
        *total = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    }
    x86::store_integers(x86::join_lanes(totals, |a, b| _mm_add_epi32(a, b)), sums);
    true
}

/// The squares that are left of four groups which are multiplied by these numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn left(groups: &[[[f32; LANES]; VECTORS]], inverses: [__m128; QUAD]) -> __m128 {
    let mut quarters = [_mm_setzero_ps(); QUAD];
    for ((quarter, x), inverse) in quarters.iter_mut().zip(groups).zip(inverses) {
        let inverse = _mm256_broadcastss_ps(inverse);
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| {
            let scaled = _mm256_mul_ps(load(&x[i]), inverse);
            let left = _mm256_sub_ps(scaled, _mm256_round_ps::<NEAREST>(scaled));
            _mm256_mul_ps(left, left)
        });
        let lanes = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
        *quarter = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    }
    x86::lane_sums(quarters)
}

/// Stores integers that fit into bytes as such.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store_codes([a, b, c, d]: [__m256i; VECTORS], codes: &mut [i8; GROUP]) {
    // Each half of the packed vector holds the halves of the four in turn.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let sorted = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let [low, high] = codes.as_chunks_mut().0 else { unreachable!("32 bytes are two times 16") };
    x86::store_bytes(_mm256_castsi256_si128(sorted), low);
    x86::store_bytes(_mm256_extracti128_si256::<1>(sorted), high);
}
