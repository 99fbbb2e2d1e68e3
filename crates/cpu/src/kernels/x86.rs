//! What the tables for x86 share: bytes of blocks as vectors of small integers,
//! and the end of a sum.
//!
//! Everything here works within 256 bits, for which AVX2 is enough; how wide
//! the numbers are that come of it is each table's own affair.

use std::arch::x86_64::*;

use super::QUAD;

/// Small integers that are decoded at once.
pub(super) const GROUP: usize = 16;

/// The blocks of a format that takes `BYTES` bytes for `VALUES` values, each with
/// the place of its values.
///
/// # Panics
/// When the lengths are not the same number of whole blocks.
#[inline(always)]
pub(super) fn blocks<'a, const BYTES: usize, const VALUES: usize>(
    bytes: &'a [u8],
    values: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32; VALUES])> {
    let (blocks, bytes_rest) = bytes.as_chunks();
    let (values, values_rest) = values.as_chunks_mut();
    let whole = bytes_rest.is_empty() && values_rest.is_empty() && blocks.len() == values.len();
    assert!(whole, "whole blocks of {BYTES} bytes and {VALUES} values");
    blocks.iter().zip(values)
}

/// Reads 16 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load_bytes(bytes: &[u8; GROUP]) -> __m128i {
    // SAFETY: the array is 16 readable bytes; this load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The bytes of numbers, in the order of memory, which on x86 is that of files.
pub(super) fn as_bytes(values: &[f32]) -> &[u8] {
    let (start, len) = (values.as_ptr().cast(), size_of_val(values));
    // SAFETY: the bytes are those of the slice, which is borrowed for as long;
    // bytes need no alignment, and numbers have no padding between them.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Asks for the line of memory in which `bytes` begins, for the second cache.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().cast());
}

/// The half-precision number that two bytes hold.
#[target_feature(enable = "f16c")]
#[inline]
pub(super) fn half(bytes: [u8; 2]) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(bytes)))))
}

/// The lower and the upper four bits of each byte.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn nibbles(bytes: __m128i) -> (__m128i, __m128i) {
    let mask = _mm_set1_epi8(15);
    (_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask))
}

/// The integers of a block of Q4_0, less 8.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q4_0(packed: &[u8; GROUP]) -> [__m128i; 2] {
    let (low, high) = nibbles(load_bytes(packed));
    let middle = _mm_set1_epi8(8);
    [_mm_sub_epi8(low, middle), _mm_sub_epi8(high, middle)]
}

/// The eight scales and then the eight minimums of a block of Q4_K, before
/// they are multiplied by the block's own.
pub(super) fn q4_k_lines(packed: &[u8; 12]) -> [u8; GROUP] {
    let mut lines = [0; GROUP];
    for i in 0..4 {
        let (a, b, c) = (packed[i], packed[4 + i], packed[8 + i]);
        lines[i] = a & 63;
        lines[4 + i] = a >> 6 << 4 | c & 15;
        lines[8 + i] = b & 63;
        lines[12 + i] = b >> 6 << 4 | c >> 4;
    }
    lines
}

/// Four groups of the integers of Q6_K, less 32, each 32 values after the one
/// before: `low` holds the lower bits of the first and the third, `next` those
/// of the second and the fourth, `upper` the upper bits of all four.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q6_k(low: &[u8; GROUP], next: &[u8; GROUP], upper: &[u8; GROUP]) -> [__m128i; 4] {
    let (first, third) = nibbles(load_bytes(low));
    let (second, fourth) = nibbles(load_bytes(next));
    let upper = load_bytes(upper);
    // Shifted within 16 bits: what comes from the neighbour is masked away.
    let mask = _mm_set1_epi8(0x30);
    let uppers = [_mm_slli_epi16::<4>(upper), _mm_slli_epi16::<2>(upper), upper, _mm_srli_epi16::<2>(upper)];
    let mut integers = [first, second, third, fourth];
    for (integer, upper) in integers.iter_mut().zip(uppers) {
        let whole = _mm_or_si128(*integer, _mm_and_si128(upper, mask));
        *integer = _mm_sub_epi8(whole, _mm_set1_epi8(32));
    }
    integers
}

/// Adds up the four lanes of each vector: `(l0 + l2) + (l1 + l3)`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn add_lanes([a, b, c, d]: [__m128; QUAD]) -> [f32; QUAD] {
    let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    let sums = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
    [
        _mm_cvtss_f32(sums),
        _mm_cvtss_f32(_mm_shuffle_ps::<1>(sums, sums)),
        _mm_cvtss_f32(_mm_shuffle_ps::<2>(sums, sums)),
        _mm_cvtss_f32(_mm_shuffle_ps::<3>(sums, sums)),
    ]
}
