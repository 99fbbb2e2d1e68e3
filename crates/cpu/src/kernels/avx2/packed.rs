//! Products of packed weights with the byte products of AVX2, and of floats
//! with fused multiply-adds.
//!
//! ```text
//! for each quarter of a band:                 eight rows, one in each lane
//!     for each group:
//!         for each run of lines of codes:
//!             for each column c:              pairs[c] += codes[j] · x[c][4j..4j+4]      16 bits
//!                                             n[c]     += pairs added up                 32 bits
//!         for each column c:                  sums[c]  += s[c] · (scale · n[c])
//! ```
//! A byte product adds two neighbours in 16 bits, and must not saturate. Codes
//! of four bits leave room for all eight lines of a group before the pairs are
//! added up (15 · 127 · 2 · 8 = 30 480), codes of five bits for four (31 · 127 ·
//! 2 · 4 = 31 496), of six for two (63 · 127 · 2 · 2 = 32 004). Codes of eight
//! bits are made signed again and multiplied by their size with the sign carried
//! over to `x` (128 · 127 · 2 = 32 512), which takes two instructions more; their
//! zero point then has no share.
//!
//! From `n` on the operations are those of the other tables, so are the bits. A
//! group of one column and one quarter takes 16 instructions of arithmetic for
//! codes of four bits, 20 for six, 32 for eight, and 4 for the scale; the loads
//! and the decoding are shared by all columns or run beside them.
//!
//! With few columns weights come from memory and are decoded in registers;
//! every line is asked for early where that helps (see [`ahead`]).

use std::arch::x86_64::*;

use super::parts::{Scales, codes, half_of, load_codes, scales};
use super::{LANES, load, store};
use crate::kernels::ahead::{self, Ahead};
use crate::kernels::layout::{Parts, for_parts};
use crate::kernels::packed::{
    BAND, Band, Coding, FLOAT_DEPTH, LINE, Layout, MAGIC, MAGIC_FLOAT, NARROW, Panel, PanelGroup, TILE,
};
use crate::kernels::x86::{
    HALVED, Line, PLAIN, ask, ask_for_group, brain_lines, columns, decode_groups, load_bytes, units, widened,
};

/// Vectors of rows in a band.
const QUARTERS: usize = BAND / LANES;

/// Half a line: the codes of eight rows, or of twice as many.
pub(super) type HalfLine = [u8; LINE / 2];

/// Lines of codes in a group.
const LINES: usize = 8;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store_codes(codes: __m256i, bytes: &mut HalfLine) {
    // SAFETY: the array is 32 writable bytes; this store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), codes) }
}

/// Products of codes of so many bits with bytes, two neighbours added up in 16
/// bits; codes of eight bits count from 128.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pairs(bits: u8, codes: __m256i, x: __m256i) -> __m256i {
    if bits == 8 {
        let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN));
        _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
    } else {
        _mm256_maddubs_epi16(codes, x)
    }
}

/// Lines whose pairs have room in 16 bits together.
const fn run(bits: u8) -> usize {
    match bits {
        0..=4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    }
}

/// What a sum of integers begins with, given the word that holds the zero
/// point's share where there is one.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn begin(bits: u8, minimums: bool, word: u32) -> __m256i {
    let shareless = minimums || bits == 8;
    _mm256_set1_epi32(if shareless { MAGIC } else { word as i32 })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn float(word: u32) -> __m256 {
    _mm256_set1_ps(f32::from_bits(word))
}

/// Adds pairs to a sum of integers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_pairs(n: __m256i, pairs: __m256i) -> __m256i {
    _mm256_add_epi32(n, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Adds what a sum of integers yields: `sum + s · (scale · n)`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn scale_in(n: __m256i, scale: __m256, x: u32, sum: __m256) -> __m256 {
    // Exactly `scale · n`, rounded once: the product with the large float is exact.
    let magic = _mm256_mul_ps(scale, _mm256_set1_ps(MAGIC_FLOAT));
    _mm256_fmadd_ps(_mm256_fmsub_ps(_mm256_castsi256_ps(n), scale, magic), float(x), sum)
}

/// The products of a band with up to [`NARROW`] columns.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn narrow(band: Band<'_>, x: &[u32], sums: &mut [[f32; BAND]]) {
    const { assert!(NARROW == 8, "a kernel for each number of columns") };
    columns!(sums.len(), [1 2 3 4 5 6 7 8], |C| for_parts!(band.layout, |P| products::<P, C>(
        band.bytes, x, sums
    )));
}

/// The products of a band with `C` columns.
#[target_feature(enable = "avx2,fma,f16c")]
fn products<P: Parts, const C: usize>(bytes: &[u8], x: &[u32], sums: &mut [[f32; BAND]]) {
    let (each, lines) = const { (P::SCALES.groups(), P::CODES.lines()) };
    let mut groups = x.as_chunks::<C>().0.chunks_exact(P::CODING.words());
    let ahead = if each == 1 { ahead::chosen(C) } else { Ahead::OF_UNITS };
    let mut all = [[_mm256_setzero_ps(); QUARTERS]; C];
    for unit in units::<P>(bytes) {
        let (codes, tail) = unit.split_at(each * lines);
        for (group, codes) in codes.chunks_exact(lines).enumerate() {
            let Some(x) = groups.next() else { break };
            ask_for_group::<P>(codes, tail, group, ahead);
            for half in 0..2 {
                add::<P, C>(codes, half, &scales::<P>(tail, group, half), x, &mut all);
            }
        }
    }
    for (sums, all) in sums.iter_mut().zip(&all) {
        for (sums, all) in sums.as_chunks_mut().0.iter_mut().zip(all) {
            store(*all, sums);
        }
    }
}

/// Adds the products of one group with two quarters of the band.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add<P: Parts, const C: usize>(
    lines: &[Line],
    half: usize,
    scales: &Scales,
    x: &[[u32; C]],
    all: &mut [[__m256; QUARTERS]; C],
) {
    let (bits, minimums, parts) = const { (P::CODING.bits, P::CODING.minimums, P::CODING.sums()) };
    for part in 0..parts {
        let mut n = [[_mm256_setzero_si256(); 2]; C];
        for c in 0..C {
            n[c] = [begin(bits, minimums, x[LINES + part][c]); 2];
        }
        for first in (part * LINES / parts..(part + 1) * LINES / parts).step_by(run(bits)) {
            let mut sums = [[_mm256_setzero_si256(); 2]; C];
            for line in first..first + (LINES / parts).min(run(bits)) {
                let codes = codes::<P>(lines, line, half);
                for c in 0..C {
                    let x = _mm256_set1_epi32(x[line][c] as i32);
                    for (sum, codes) in sums[c].iter_mut().zip(codes) {
                        *sum = _mm256_add_epi16(*sum, pairs(bits, codes, x));
                    }
                }
            }
            for c in 0..C {
                n[c] = [add_pairs(n[c][0], sums[c][0]), add_pairs(n[c][1], sums[c][1])];
            }
        }
        for (side, quarter) in [half, 2 + half].into_iter().enumerate() {
            for c in 0..C {
                let scale = scales.scales[part][side];
                let sum = scale_in(n[c][side], scale, x[LINES + parts][c], all[c][quarter]);
                all[c][quarter] = if minimums {
                    _mm256_fnmadd_ps(scales.minimums[part][side], float(x[LINES + part][c]), sum)
                } else {
                    sum
                };
            }
        }
    }
}

/// Decodes groups of a band into panels.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn decode(band: Band<'_>, first: usize, count: usize, panels: &mut [Panel; 2]) {
    for_parts!(band.layout, |P| decode_parts::<P>(band.bytes, first, count, panels));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn decode_parts<P: Parts>(bytes: &[u8], first: usize, count: usize, panels: &mut [Panel; 2]) {
    decode_groups::<P>(bytes, first, count, panels, |codes, tail, group, [low, high]| {
        for half in 0..2 {
            put::<P>(codes, half, &scales::<P>(tail, group, half), [&mut *low, &mut *high]);
        }
    });
}

/// Puts two quarters of one group into two panels.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn put<P: Parts>(lines: &[Line], half: usize, scales: &Scales, to: [&mut PanelGroup; 2]) {
    for (side, to) in to.into_iter().enumerate() {
        for line in 0..LINES {
            store_codes(codes::<P>(lines, line, half)[side], &mut to.codes[line].as_chunks_mut().0[half]);
        }
        for part in 0..P::CODING.sums() {
            store(scales.scales[part][side], &mut to.scales[part].as_chunks_mut().0[half]);
            if P::CODING.minimums {
                store(scales.minimums[part][side], &mut to.minimums[part].as_chunks_mut().0[half]);
            }
        }
    }
}

/// Adds the products of panels with a tile of columns.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile(coding: Coding, panels: &[Panel; 2], groups: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    const { assert!(TILE == 12, "a kernel for each third of a tile") };
    for quarter in 0..QUARTERS {
        let panel = &panels[quarter / 2][..groups];
        columns!(sums.len(), [4 8 12], |C| match (coding.bits, coding.minimums, coding.halves) {
            (0..=4, false, false) => tile_quarter::<C, PLAIN, 4, false>(panel, x, quarter, sums),
            (0..=4, true, false) => tile_quarter::<C, PLAIN, 4, true>(panel, x, quarter, sums),
            (0..=4, false, true) => tile_quarter::<C, HALVED, 4, false>(panel, x, quarter, sums),
            (0..=4, true, true) => tile_quarter::<C, HALVED, 4, true>(panel, x, quarter, sums),
            (5, false, false) => tile_quarter::<C, PLAIN, 5, false>(panel, x, quarter, sums),
            (5, true, false) => tile_quarter::<C, PLAIN, 5, true>(panel, x, quarter, sums),
            (6, false, true) => tile_quarter::<C, HALVED, 6, false>(panel, x, quarter, sums),
            (8, false, false) => tile_quarter::<C, PLAIN, 8, false>(panel, x, quarter, sums),
            _ => unreachable!("no layout has codes as {coding:?}"),
        });
    }
}

/// Adds the products of a quarter of a band with `C` columns.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_quarter<const C: usize, const ROWS: usize, const BITS: u8, const MINIMUMS: bool>(
    panel: &[PanelGroup],
    x: &[u32],
    quarter: usize,
    sums: &mut [[f32; BAND]],
) {
    let half = quarter % 2;
    let mut all = [_mm256_setzero_ps(); C];
    for (all, sums) in all.iter_mut().zip(&*sums) {
        *all = load(&sums.as_chunks().0[quarter]);
    }
    let parts = ROWS - LINES - 1;
    for (weights, x) in panel.iter().zip(x.as_chunks::<C>().0.as_chunks::<ROWS>().0) {
        for part in 0..parts {
            let mut n = [_mm256_setzero_si256(); C];
            for c in 0..C {
                n[c] = begin(BITS, MINIMUMS, x[LINES + part][c]);
            }
            for first in (part * LINES / parts..(part + 1) * LINES / parts).step_by(run(BITS)) {
                let mut sums = [_mm256_setzero_si256(); C];
                for line in first..first + (LINES / parts).min(run(BITS)) {
                    let codes = load_codes(half_of(&weights.codes[line], half));
                    for c in 0..C {
                        let x = _mm256_set1_epi32(x[line][c] as i32);
                        sums[c] = _mm256_add_epi16(sums[c], pairs(BITS, codes, x));
                    }
                }
                for c in 0..C {
                    n[c] = add_pairs(n[c], sums[c]);
                }
            }
            let scale = load(&weights.scales[part].as_chunks().0[half]);
            for c in 0..C {
                all[c] = scale_in(n[c], scale, x[ROWS - 1][c], all[c]);
                if MINIMUMS {
                    let minimum = load(&weights.minimums[part].as_chunks().0[half]);
                    all[c] = _mm256_fnmadd_ps(minimum, float(x[LINES + part][c]), all[c]);
                }
            }
        }
    }
    for (all, sums) in all.iter().zip(sums) {
        store(*all, &mut sums.as_chunks_mut().0[quarter]);
    }
}

/// Adds the products of a band of floats: all its quarters at once with few
/// columns, fewer with more, so that the sums stay in registers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let (unit, bytes) = band.layout.unit();
    let lines = band.bytes[first / unit * bytes..].as_chunks::<LINE>().0;
    columns!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| {
        let at_once = const { if C <= 3 { 4 } else if C <= 6 { 2 } else { 1 } };
        for quarter in (0..QUARTERS).step_by(at_once) {
            match (band.layout, at_once) {
                (Layout::Bf16, 4) => bf16::<C, 4>(lines, x, quarter, sums),
                (Layout::Bf16, 2) => bf16::<C, 2>(lines, x, quarter, sums),
                (Layout::Bf16, _) => bf16::<C, 1>(lines, x, quarter, sums),
                (Layout::F16, 4) => f16::<C, 4>(lines, x, quarter, sums),
                (Layout::F16, 2) => f16::<C, 2>(lines, x, quarter, sums),
                (Layout::F16, _) => f16::<C, 1>(lines, x, quarter, sums),
                (Layout::F32, 4) => f32::<C, 4>(lines, x, quarter, sums),
                (Layout::F32, 2) => f32::<C, 2>(lines, x, quarter, sums),
                (Layout::F32, _) => f32::<C, 1>(lines, x, quarter, sums),
                _ => unreachable!("only layouts of floats are multiplied as they are"),
            }
        }
    })
}

/// A kernel for floats with `C` columns and `Q` quarters of a band: `$lines`
/// lines hold `$columns` columns, of each of which `$decode` makes a quarter a vector.
macro_rules! floats {
    ($name:ident, $lines:literal, $columns:literal, $decode:expr) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $name<const C: usize, const Q: usize>(
            lines: &[Line],
            x: &[u32],
            first: usize,
            sums: &mut [[f32; BAND]],
        ) {
            let mut all = [[_mm256_setzero_ps(); Q]; C];
            for (all, sums) in all.iter_mut().zip(&*sums) {
                for (all, sums) in all.iter_mut().zip(&sums.as_chunks().0[first..]) {
                    *all = load(sums);
                }
            }
            let ahead = ahead::chosen(C);
            let units = lines.as_chunks::<$lines>().0.iter();
            for (unit, x) in units.zip(x.as_chunks::<C>().0.as_chunks::<$columns>().0) {
                ask(unit, ahead);
                for column in 0..$columns {
                    for quarter in 0..Q {
                        let weights: __m256 = $decode(unit, column, first + quarter);
                        for c in 0..C {
                            let x = float(x[column][c]);
                            all[c][quarter] = _mm256_fmadd_ps(weights, x, all[c][quarter]);
                        }
                    }
                }
            }
            for (all, sums) in all.iter().zip(sums) {
                for (all, sums) in all.iter().zip(&mut sums.as_chunks_mut().0[first..]) {
                    store(*all, sums);
                }
            }
        }
    };
}

/// A column of two in lines of brain floats, as floats.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn brain_column(unit: &[Line; 2], column: usize, quarter: usize) -> __m256 {
    let lanes = load_codes(half_of(&unit[quarter / 2], quarter % 2));
    _mm256_castsi256_ps(if column == 0 {
        _mm256_slli_epi32::<16>(lanes)
    } else {
        _mm256_and_si256(lanes, _mm256_set1_epi32(0xffff_0000_u32 as i32))
    })
}

floats!(bf16, 2, 2, |unit, column, quarter| brain_column(unit, column, quarter));
// Of a pair the second column comes first.
floats!(brain_pairs, 2, 2, |unit, row, quarter| brain_column(unit, 1 - row, quarter));
floats!(f16, 1, 1, |unit: &[Line; 1], _, quarter: usize| {
    _mm256_cvtph_ps(load_bytes(&unit[0].as_chunks().0[quarter]))
});
floats!(f32, 2, 1, |unit: &[Line; 2], _, quarter: usize| {
    _mm256_castsi256_ps(load_codes(half_of(&unit[quarter / 2], quarter % 2)))
});

/// Adds the products of a band of brain floats with brain floats, which become
/// floats first.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn brains(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let lines = brain_lines(band, first).chunks(FLOAT_DEPTH);
    columns!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| {
        let at_once = const { if C <= 3 { 4 } else if C <= 6 { 2 } else { 1 } };
        let mut floats = [[[0; C]; 2]; FLOAT_DEPTH / 2];
        for (lines, x) in lines.zip(x.as_chunks::<C>().0.chunks(FLOAT_DEPTH / 2)) {
            let x = widened(x, &mut floats);
            for quarter in (0..QUARTERS).step_by(at_once) {
                match at_once {
                    4 => brain_pairs::<C, 4>(lines, x, quarter, sums),
                    2 => brain_pairs::<C, 2>(lines, x, quarter, sums),
                    _ => brain_pairs::<C, 1>(lines, x, quarter, sums),
                }
            }
        }
    });
}
