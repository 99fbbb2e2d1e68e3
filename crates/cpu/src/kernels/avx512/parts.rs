//! What layouts are made of, as vectors: the codes of a line and the scales of
//! a group, one function for each kind.

use std::arch::x86_64::*;

use crate::kernels::layout::{Codes, E2M1, IQ4, Parts, Scales as Kind};
use crate::kernels::packed::LINE;
use crate::kernels::x86::{Line, load_bytes};

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub(super) fn load_line(line: &Line) -> __m512i {
    // SAFETY: the array is 64 readable bytes; this load needs no alignment.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}

/// The codes of line `line` in 0..8 of a group, of both halves of the band.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub(super) fn codes<P: Parts>(lines: &[Line], line: usize) -> [__m512i; 2] {
    match P::CODES {
        Codes::Two => bits::<2>(lines, line, 0),
        Codes::Three => join(bits::<2>(lines, line, 0), bits::<1>(&lines[4..], line, 2)),
        Codes::Four => bits::<4>(lines, line, 0),
        Codes::Five => join(bits::<4>(lines, line, 0), bits::<1>(&lines[8..], line, 4)),
        Codes::Six => join(bits::<4>(lines, line, 0), bits::<2>(&lines[8..], line, 4)),
        Codes::Eight => [load_line(&lines[line]), load_line(&lines[8 + line])],
        Codes::Iq4 => look_up(&IQ4, bits::<4>(lines, line, 0)),
        Codes::E2m1 => look_up(&E2M1, bits::<4>(lines, line, 0)),
    }
}

/// The bits of codes out of lines of `BITS` bits for a code, from bit `to` of a
/// code on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn bits<const BITS: usize>(lines: &[Line], line: usize, to: usize) -> [__m512i; 2] {
    let each = 8 / (2 * BITS);
    let vector = load_line(&lines[line / each]);
    let mask = _mm512_set1_epi8((((1 << BITS) - 1) << to) as i8);
    let from = 2 * BITS * (line % each);
    [from, from + BITS].map(|from| _mm512_and_si512(moved(vector, from, to), mask))
}

/// Words of 16 bits, moved so that bit `from` becomes bit `to`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn moved(vector: __m512i, from: usize, to: usize) -> __m512i {
    if from < to {
        _mm512_sll_epi16(vector, _mm_cvtsi32_si128((to - from) as i32))
    } else {
        _mm512_srl_epi16(vector, _mm_cvtsi32_si128((from - to) as i32))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn join(lower: [__m512i; 2], upper: [__m512i; 2]) -> [__m512i; 2] {
    [_mm512_or_si512(lower[0], upper[0]), _mm512_or_si512(lower[1], upper[1])]
}

/// The levels that codes of four bits stand for.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn look_up(levels: &[u8; 16], codes: [__m512i; 2]) -> [__m512i; 2] {
    let levels = _mm512_broadcast_i32x4(load_bytes(levels));
    codes.map(|codes| _mm512_shuffle_epi8(levels, codes))
}

/// What belongs to the scale of a group: for each half of its columns and each
/// half of the band.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub scales: [[__m512; 2]; 2],
    pub minimums: [[__m512; 2]; 2],
}

/// The scales of group `group` of a unit.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub(super) fn scales<P: Parts>(tail: &[Line], group: usize) -> Scales {
    let plain = |scales| Scales { scales: [scales; 2], minimums: [[_mm512_setzero_ps(); 2]; 2] };
    let offset =
        |scales, offsets| Scales { scales: [scales; 2], minimums: [negative(offsets), negative(offsets)] };
    match P::SCALES {
        Kind::Half => plain(half_line(&tail[0])),
        Kind::HalfOffset => offset(half_line(&tail[0]), half_line(&tail[1])),
        Kind::BrainOffset => offset(brain_line(&tail[group]), brain_line(&tail[8 + group])),
        Kind::Sixes => sixes(tail, group),
        Kind::Fours => fours(tail, group),
        Kind::Bytes => plain(products(signed(tail, group), half_line(&tail[4]))),
        Kind::HalvedBytes => {
            let outer = half_line(&tail[8]);
            let part = |part: usize| products(signed(tail, 2 * group + part), outer);
            Scales { scales: [part(0), part(1)], ..plain(outer) }
        }
        Kind::Powers => plain(unsigned(tail, group).map(|exponents| power(exponents))),
    }
}

/// The 32 numbers of half precision of a line.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub(super) fn half_line(line: &Line) -> [__m512; 2] {
    let line = load_line(line);
    [_mm512_cvtph_ps(_mm512_castsi512_si256(line)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(line))]
}

/// The 32 brain floats of a line.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn brain_line(line: &Line) -> [__m512; 2] {
    let line = load_line(line);
    [_mm512_castsi512_si256(line), _mm512_extracti64x4_epi64::<1>(line)]
        .map(|words| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words))))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn negative(numbers: [__m512; 2]) -> [__m512; 2] {
    numbers.map(|numbers| _mm512_xor_ps(numbers, _mm512_set1_ps(-0.0)))
}

/// Integers as floats, times others.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn products(inner: [__m512i; 2], outer: [__m512; 2]) -> [__m512; 2] {
    let product = |half: usize| _mm512_mul_ps(_mm512_cvtepi32_ps(inner[half]), outer[half]);
    [product(0), product(1)]
}

/// The 16 bytes of each half of the band in half line `index`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn halves(tail: &[Line], index: usize) -> [__m128i; 2] {
    let bytes = &tail[index / 2].as_chunks().0[index % 2 * 2..][..2];
    [load_bytes(&bytes[0]), load_bytes(&bytes[1])]
}

/// The signed bytes of half line `index`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn signed(tail: &[Line], index: usize) -> [__m512i; 2] {
    halves(tail, index).map(|bytes| _mm512_cvtepi8_epi32(bytes))
}

/// The bytes of half line `index`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn unsigned(tail: &[Line], index: usize) -> [__m512i; 2] {
    halves(tail, index).map(|bytes| _mm512_cvtepu8_epi32(bytes))
}

/// [`Kind::Fours`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn fours(tail: &[Line], group: usize) -> Scales {
    let (outer, outer_minimums) = (half_line(&tail[8]), half_line(&tail[9]));
    let parts = [unsigned(tail, 2 * group), unsigned(tail, 2 * group + 1)];
    let mask = _mm512_set1_epi32(15);
    let scales = |[low, high]: [__m512i; 2]| {
        products([_mm512_and_si512(low, mask), _mm512_and_si512(high, mask)], outer)
    };
    let minimums = |[low, high]: [__m512i; 2]| {
        products([_mm512_srli_epi32::<4>(low), _mm512_srli_epi32::<4>(high)], outer_minimums)
    };
    Scales {
        scales: [scales(parts[0]), scales(parts[1])],
        minimums: [minimums(parts[0]), minimums(parts[1])],
    }
}

/// [`Kind::Sixes`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn sixes(tail: &[Line], group: usize) -> Scales {
    let (part, byte) = (group / 4, 8 * (group % 4));
    let six = |half: usize, which: usize| {
        let lower = from(&tail[3 * half + which], byte + 4 * part, 15);
        let upper = from(&tail[3 * half + 2], byte + 4 * which + 2 * part, 3);
        _mm512_or_si512(lower, _mm512_slli_epi32::<4>(upper))
    };
    Scales {
        scales: [products([six(0, 0), six(1, 0)], half_line(&tail[6])); 2],
        minimums: [products([six(0, 1), six(1, 1)], half_line(&tail[7])); 2],
    }
}

/// Bits of each lane from bit `bit` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn from(line: &Line, bit: usize, mask: i32) -> __m512i {
    const { assert!(LINE == 64, "a line is a vector") };
    let moved = _mm512_srl_epi32(load_line(line), _mm_cvtsi32_si128(bit as i32));
    _mm512_and_si512(moved, _mm512_set1_epi32(mask))
}

/// `2^(exponent − 128)`, of which the two smallest are subnormal.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn power(exponents: __m512i) -> __m512 {
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
    let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
    let small = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, subnormal))
}
