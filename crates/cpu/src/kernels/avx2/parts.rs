//! What layouts are made of, as vectors: the codes of half a line and the
//! scales of a group, one function for each kind. Half a line belongs to two
//! quarters of a band, 16 rows apart; these are the two sides of what follows.

use std::arch::x86_64::*;

use super::packed::HalfLine;
use crate::kernels::layout::{Codes, E2M1, IQ4, Parts, Scales as Kind};
use crate::kernels::x86::{Line, load_bytes};

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn load_codes(bytes: &HalfLine) -> __m256i {
    // SAFETY: the array is 32 readable bytes; this load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_eight(bytes: &[u8; 8]) -> __m128i {
    // SAFETY: the array is 8 readable bytes; this load needs no alignment.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

/// One half of a line.
#[inline(always)]
pub(super) fn half_of(line: &Line, half: usize) -> &HalfLine {
    &line.as_chunks().0[half]
}

/// The codes of one half of line `line` in 0..8 of a group.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn codes<P: Parts>(lines: &[Line], line: usize, half: usize) -> [__m256i; 2] {
    match P::CODES {
        Codes::Two => bits::<2>(lines, line, half, 0),
        Codes::Three => join(bits::<2>(lines, line, half, 0), bits::<1>(&lines[4..], line, half, 2)),
        Codes::Four => bits::<4>(lines, line, half, 0),
        Codes::Five => join(bits::<4>(lines, line, half, 0), bits::<1>(&lines[8..], line, half, 4)),
        Codes::Six => join(bits::<4>(lines, line, half, 0), bits::<2>(&lines[8..], line, half, 4)),
        Codes::Eight => {
            [load_codes(half_of(&lines[line], half)), load_codes(half_of(&lines[8 + line], half))]
        }
        Codes::Iq4 => look_up(&IQ4, bits::<4>(lines, line, half, 0)),
        Codes::E2m1 => look_up(&E2M1, bits::<4>(lines, line, half, 0)),
    }
}

/// The bits of codes out of lines of `BITS` bits for a code, from bit `to` of a
/// code on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn bits<const BITS: usize>(lines: &[Line], line: usize, half: usize, to: usize) -> [__m256i; 2] {
    let each = 8 / (2 * BITS);
    let vector = load_codes(half_of(&lines[line / each], half));
    let mask = _mm256_set1_epi8((((1 << BITS) - 1) << to) as i8);
    let from = 2 * BITS * (line % each);
    [from, from + BITS].map(|from| _mm256_and_si256(moved(vector, from, to), mask))
}

/// Words of 16 bits, moved so that bit `from` becomes bit `to`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn moved(vector: __m256i, from: usize, to: usize) -> __m256i {
    if from < to {
        _mm256_sll_epi16(vector, _mm_cvtsi32_si128((to - from) as i32))
    } else {
        _mm256_srl_epi16(vector, _mm_cvtsi32_si128((from - to) as i32))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn join(lower: [__m256i; 2], upper: [__m256i; 2]) -> [__m256i; 2] {
    [_mm256_or_si256(lower[0], upper[0]), _mm256_or_si256(lower[1], upper[1])]
}

/// The levels that codes of four bits stand for.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn look_up(levels: &[u8; 16], codes: [__m256i; 2]) -> [__m256i; 2] {
    let levels = _mm256_broadcastsi128_si256(load_bytes(levels));
    codes.map(|codes| _mm256_shuffle_epi8(levels, codes))
}

/// What belongs to the scale of a group: for each half of its columns and each
/// side of half a line.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub scales: [[__m256; 2]; 2],
    pub minimums: [[__m256; 2]; 2],
}

/// The scales of group `group` of a unit for one half of its lines.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn scales<P: Parts>(tail: &[Line], group: usize, half: usize) -> Scales {
    let plain = |scales| Scales { scales: [scales; 2], minimums: [[_mm256_setzero_ps(); 2]; 2] };
    let offset = |scales, offsets| Scales { scales: [scales; 2], minimums: [negative(offsets); 2] };
    match P::SCALES {
        Kind::Half => plain(half_numbers(&tail[0], half)),
        Kind::HalfOffset => offset(half_numbers(&tail[0], half), half_numbers(&tail[1], half)),
        Kind::BrainOffset => offset(brains(&tail[group], half), brains(&tail[8 + group], half)),
        Kind::Sixes => sixes(tail, group, half),
        Kind::Fours => fours(tail, group, half),
        Kind::Bytes => plain(products(signed(tail, group, half), half_numbers(&tail[4], half))),
        Kind::HalvedBytes => {
            let outer = half_numbers(&tail[8], half);
            let part = |part: usize| products(signed(tail, 2 * group + part, half), outer);
            Scales { scales: [part(0), part(1)], ..plain(outer) }
        }
        Kind::Powers => plain(unsigned(tail, group, half).map(|exponents| power(exponents))),
    }
}

/// The 16 bytes of each side of a line that has two for each row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sides(line: &Line, half: usize) -> [__m128i; 2] {
    let parts = line.as_chunks().0;
    [load_bytes(&parts[half]), load_bytes(&parts[2 + half])]
}

/// Numbers of half precision.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn half_numbers(line: &Line, half: usize) -> [__m256; 2] {
    sides(line, half).map(|numbers| _mm256_cvtph_ps(numbers))
}

/// Brain floats.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn brains(line: &Line, half: usize) -> [__m256; 2] {
    sides(line, half)
        .map(|numbers| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(numbers))))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn negative(numbers: [__m256; 2]) -> [__m256; 2] {
    numbers.map(|numbers| _mm256_xor_ps(numbers, _mm256_set1_ps(-0.0)))
}

/// Integers as floats, times others.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn products(inner: [__m256i; 2], outer: [__m256; 2]) -> [__m256; 2] {
    let product = |side: usize| _mm256_mul_ps(_mm256_cvtepi32_ps(inner[side]), outer[side]);
    [product(0), product(1)]
}

/// The eight bytes of each side of half line `index`, which has one for each row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn eights(tail: &[Line], index: usize, half: usize) -> [__m128i; 2] {
    let bytes = &tail[index / 2].as_chunks().0[index % 2 * 4..][..4];
    [load_eight(&bytes[half]), load_eight(&bytes[2 + half])]
}

/// The signed bytes of half line `index`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn signed(tail: &[Line], index: usize, half: usize) -> [__m256i; 2] {
    eights(tail, index, half).map(|bytes| _mm256_cvtepi8_epi32(bytes))
}

/// The bytes of half line `index`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unsigned(tail: &[Line], index: usize, half: usize) -> [__m256i; 2] {
    eights(tail, index, half).map(|bytes| _mm256_cvtepu8_epi32(bytes))
}

/// [`Kind::Fours`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fours(tail: &[Line], group: usize, half: usize) -> Scales {
    let (outer, outer_minimums) = (half_numbers(&tail[8], half), half_numbers(&tail[9], half));
    let parts = [unsigned(tail, 2 * group, half), unsigned(tail, 2 * group + 1, half)];
    let mask = _mm256_set1_epi32(15);
    let scales = |[one, other]: [__m256i; 2]| {
        products([_mm256_and_si256(one, mask), _mm256_and_si256(other, mask)], outer)
    };
    let minimums = |[one, other]: [__m256i; 2]| {
        products([_mm256_srli_epi32::<4>(one), _mm256_srli_epi32::<4>(other)], outer_minimums)
    };
    Scales {
        scales: [scales(parts[0]), scales(parts[1])],
        minimums: [minimums(parts[0]), minimums(parts[1])],
    }
}

/// [`Kind::Sixes`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sixes(tail: &[Line], group: usize, half: usize) -> Scales {
    let (part, byte) = (group / 4, 8 * (group % 4));
    let six = |side: usize, which: usize| {
        let lower = from(half_of(&tail[3 * side + which], half), byte + 4 * part, 15);
        let upper = from(half_of(&tail[3 * side + 2], half), byte + 4 * which + 2 * part, 3);
        _mm256_or_si256(lower, _mm256_slli_epi32::<4>(upper))
    };
    Scales {
        scales: [products([six(0, 0), six(1, 0)], half_numbers(&tail[6], half)); 2],
        minimums: [products([six(0, 1), six(1, 1)], half_numbers(&tail[7], half)); 2],
    }
}

/// Bits of each lane from bit `bit` on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn from(bytes: &HalfLine, bit: usize, mask: i32) -> __m256i {
    let moved = _mm256_srl_epi32(load_codes(bytes), _mm_cvtsi32_si128(bit as i32));
    _mm256_and_si256(moved, _mm256_set1_epi32(mask))
}

/// `2^(exponent − 128)`, of which the two smallest are subnormal.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn power(exponents: __m256i) -> __m256 {
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
    let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents);
    _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small))
}
