//! Words of activations, which lie row by row, column by column, as tiles of AMX take them.

use std::arch::x86_64::*;

use crate::kernels::packed::LANES;
use crate::kernels::vector::packed::LINES;

/// Puts eight rows of words, one word of each column, into the rows of the columns from byte `AT` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn put_columns<const C: usize, const AT: usize, const BYTES: usize>(
    x: &[[u32; C]; LINES],
    columns: &mut [[u8; BYTES]; LANES],
) {
    const { assert!(C <= LANES && AT + 4 * LINES <= BYTES) };
    let mut words = [_mm512_setzero_si512(); LINES];
    for line in 0..LINES {
        // SAFETY: the words that the mask names are those of the array.
        words[line] = unsafe { _mm512_maskz_loadu_epi32(((1u32 << C) - 1) as u16, x[line].as_ptr().cast()) };
    }
    // A quarter of vector `j` of each four: four words of the lines 0..4 or 4..8 of a column `4q + j`.
    let (low, high) = (quads(words[..4].as_array().expect(FOUR)), quads(words[4..].as_array().expect(FOUR)));
    let first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for j in 0..4 {
        for (to, which) in [(j, first), (8 + j, second)] {
            let two = _mm512_permutex2var_epi64(low[j], which, high[j]);
            let (column, other) = (_mm512_castsi512_si256(two), _mm512_extracti64x4_epi64::<1>(two));
            // SAFETY: a column has 32 bytes from `AT` on, as was asserted.
            unsafe { _mm256_storeu_si256(columns[to][AT..].as_mut_ptr().cast(), column) };
            // SAFETY: as above.
            unsafe { _mm256_storeu_si256(columns[to + 4][AT..].as_mut_ptr().cast(), other) };
        }
    }
}

const FOUR: &str = "half of eight lines";

/// Transposes four rows of four words in each quarter.
#[inline]
#[target_feature(enable = "avx512f")]
fn quads([a, b, c, d]: &[__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(*a, *b), _mm512_unpacklo_epi32(*c, *d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(*a, *b), _mm512_unpackhi_epi32(*c, *d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}
