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
//! added up (15 · 127 · 2 · 8 = 30 480), codes of six bits for two (63 · 127 · 2 · 2 =
//! 32 004). Codes of eight bits are made signed again and multiplied by their
//! size with the sign carried over to `x` (128 · 127 · 2 = 32 512), which takes
//! two instructions more; their zero point then has no share.
//!
//! From `n` on the operations are those of the other tables, so are the bits. A
//! group of one column and one quarter takes 16 instructions of arithmetic for
//! codes of four bits, 20 for six, 32 for eight, and 4 for the scale; the loads
//! and the decoding are shared by all columns or run beside them.
//!
//! With few columns weights come from memory and are decoded in registers;
//! every line is asked for early: into the second cache 8 KB ahead, into the
//! first 1 KB ahead.

use std::arch::x86_64::*;

use super::{LANES, load, store};
use crate::kernels::packed::{
    BAND, Band, Coding, DEPTH, LINE, Layout, MAGIC, MAGIC_FLOAT, NARROW, Panel, PanelGroup, TILE,
};
use crate::kernels::portable;

/// Bytes ahead of the present line that are brought into the second cache.
const FAR: usize = 8192;

/// Bytes ahead of the present line that are brought into the first cache.
const NEAR: usize = 1024;

/// Vectors of rows in a band.
const QUARTERS: usize = BAND / LANES;

type Line = [u8; LINE];

/// Half a line: the codes of eight rows, or of twice as many.
type HalfLine = [u8; LINE / 2];

/// Rows of a group of activations, without those of codes: a sum and a scale.
const PLAIN: usize = 10;

/// As [`PLAIN`], with two sums.
const HALVED: usize = 11;

/// Lines of codes in a group.
const LINES: usize = 8;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_codes(bytes: &HalfLine) -> __m256i {
    // SAFETY: the array is 32 readable bytes; this load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store_codes(codes: __m256i, bytes: &mut HalfLine) {
    // SAFETY: the array is 32 writable bytes; this store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), codes) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_eight(bytes: &[u8; 8]) -> __m128i {
    // SAFETY: the array is 8 readable bytes; this load needs no alignment.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

/// Asks for the memory beyond a line; what lies there is not read.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn prefetch(line: &Line) {
    let line = line.as_ptr();
    _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(FAR).cast());
    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(NEAR).cast());
}

/// One half of a line.
#[inline(always)]
fn side(line: &Line, side: usize) -> &HalfLine {
    &line.as_chunks().0[side]
}

/// The 32 numbers of half precision of a line.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn half_line(line: &Line) -> [__m256; QUARTERS] {
    let parts = line.as_chunks().0;
    [0, 1, 2, 3].map(|quarter| _mm256_cvtph_ps(super::super::x86::load_bytes(&parts[quarter])))
}

/// The lower and the upper four bits of each byte.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn nibbles(bytes: &HalfLine) -> [__m256i; 2] {
    let (bytes, mask) = (load_codes(bytes), _mm256_set1_epi8(15));
    [_mm256_and_si256(bytes, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask)]
}

/// What belongs to the scale of a group: for each half of its columns and each
/// quarter of the band.
#[derive(Clone, Copy)]
struct Scales {
    scales: [[__m256; QUARTERS]; 2],
    minimums: [[__m256; QUARTERS]; 2],
}

impl Scales {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn plain(scales: [__m256; QUARTERS]) -> Scales {
        Scales { scales: [scales; 2], minimums: [[_mm256_setzero_ps(); QUARTERS]; 2] }
    }
}

/// The scales and the minimums of the eight groups of Q4_K.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q4_k_scales(unit: &[Line; 72]) -> [Scales; 8] {
    let mut all = [Scales::plain([_mm256_setzero_ps(); QUARTERS]); 8];
    let (outer, outer_minimums) = (half_line(&unit[70]), half_line(&unit[71]));
    for quarter in 0..QUARTERS {
        let lines = &unit[64 + 3 * (quarter / 2)..];
        let [first, second, uppers] = [0, 1, 2].map(|line| side(&lines[line], quarter % 2));
        let sixes = sixes(first, second, uppers);
        for (group, all) in all.iter_mut().enumerate() {
            let scale = byte(sixes[group / 4], group % 4);
            let minimum = byte(sixes[2 + group / 4], group % 4);
            all.scales[0][quarter] = _mm256_mul_ps(scale, outer[quarter]);
            all.minimums[0][quarter] = _mm256_mul_ps(minimum, outer_minimums[quarter]);
        }
    }
    all
}

/// Sixteen six-bit numbers for each row: four vectors of four bytes in a lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sixes(first: &HalfLine, second: &HalfLine, uppers: &HalfLine) -> [__m256i; 4] {
    let ([a, b], [c, d], uppers) = (nibbles(first), nibbles(second), load_codes(uppers));
    [
        with_uppers(a, _mm256_slli_epi16::<4>(uppers)),
        with_uppers(b, _mm256_slli_epi16::<2>(uppers)),
        with_uppers(c, uppers),
        with_uppers(d, _mm256_srli_epi16::<2>(uppers)),
    ]
}

/// Codes of four bits with bits 4 and 5 of other bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn with_uppers(codes: __m256i, uppers: __m256i) -> __m256i {
    _mm256_or_si256(codes, _mm256_and_si256(uppers, _mm256_set1_epi8(0x30)))
}

/// Byte `index` of each lane as a float.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn byte(lanes: __m256i, index: usize) -> __m256 {
    let shifted = _mm256_srlv_epi32(lanes, _mm256_set1_epi32(8 * index as i32));
    _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(255)))
}

/// The scales of the eight groups of Q6_K.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q6_k_scales(unit: &[Line; 105]) -> [Scales; 8] {
    let mut all = [Scales::plain([_mm256_setzero_ps(); QUARTERS]); 8];
    let outer = half_line(&unit[104]);
    for (all, line) in all.iter_mut().zip(&unit[96..104]) {
        for (index, bytes) in line.as_chunks().0.iter().enumerate() {
            let (part, quarter) = (index / QUARTERS, index % QUARTERS);
            let inner = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_eight(bytes)));
            all.scales[part][quarter] = _mm256_mul_ps(inner, outer[quarter]);
        }
    }
    all
}

/// Half a line of codes of Q6_K.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q6_k_codes(unit: &[Line; 105], group: usize, line: usize, half: usize) -> [__m256i; 2] {
    let [low, high] = nibbles(side(&unit[12 * group + line], half));
    let uppers = load_codes(side(&unit[12 * group + LINES + line / 2], half));
    if line.is_multiple_of(2) {
        let uppers = [_mm256_slli_epi16::<4>(uppers), _mm256_slli_epi16::<2>(uppers)];
        [with_uppers(low, uppers[0]), with_uppers(high, uppers[1])]
    } else {
        [with_uppers(low, uppers), with_uppers(high, _mm256_srli_epi16::<2>(uppers))]
    }
}

/// Products of codes of `BITS` bits with bytes, two neighbours added up in 16
/// bits; codes of eight bits count from 128.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pairs<const BITS: u32>(codes: __m256i, x: __m256i) -> __m256i {
    if BITS == 8 {
        let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN));
        _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
    } else {
        _mm256_maddubs_epi16(codes, x)
    }
}

/// Lines whose pairs have room in 16 bits together.
const fn run(bits: u32) -> usize {
    match bits {
        4 => 8,
        6 => 2,
        _ => 1,
    }
}

/// What a sum of integers begins with.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn begin<const BITS: u32, const MINIMUMS: bool>(word: u32) -> __m256i {
    // The word holds the zero point's share, where there is one.
    let shareless = MINIMUMS || BITS == 8;
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

/// A layout of `$lines` lines for `$groups` groups with codes of `$bits` bits,
/// as far as kernels know it: the scales of a unit, the codes of one half of a
/// line of a group (of rows that are 16 apart), and the products that follow.
macro_rules! layout {
    (
        $name:ident, $groups:literal, $lines:literal, bits: $bits:literal,
        minimums: $minimums:literal, halves: $halves:literal,
        scales: $scales:expr, codes: $codes:expr
    ) => {
        mod $name {
            use super::*;

            /// Groups of a unit.
            const GROUPS: usize = $groups;

            /// Lines of a unit.
            const UNIT_LINES: usize = $lines;

            type Unit = [Line; UNIT_LINES];

            /// Rows of a group of activations.
            const ROWS: usize = if $halves { HALVED } else { PLAIN };

            /// Scales in a group.
            const PARTS: usize = if $halves { 2 } else { 1 };

            /// The products of a band with `C` columns.
            #[target_feature(enable = "avx2,fma,f16c")]
            pub fn products<const C: usize>(bytes: &[u8], x: &[u32], sums: &mut [[f32; BAND]]) {
                let (units, _) = bytes.as_chunks::<LINE>().0.as_chunks::<UNIT_LINES>();
                let mut groups = x.as_chunks::<C>().0.as_chunks::<ROWS>().0.iter();
                let mut all = [[_mm256_setzero_ps(); QUARTERS]; C];
                for unit in units {
                    let scales: [Scales; GROUPS] = $scales(unit);
                    for group in 0..GROUPS {
                        let Some(x) = groups.next() else { break };
                        for line in 0..UNIT_LINES / GROUPS {
                            prefetch(&unit[group * (UNIT_LINES / GROUPS) + line]);
                        }
                        for half in 0..2 {
                            add::<C>(unit, group, half, &scales[group], x, &mut all);
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
            fn add<const C: usize>(
                unit: &Unit,
                group: usize,
                half: usize,
                scales: &Scales,
                x: &[[u32; C]; ROWS],
                all: &mut [[__m256; QUARTERS]; C],
            ) {
                for part in 0..PARTS {
                    let mut n = x[LINES + part].map(|word| [begin::<$bits, $minimums>(word); 2]);
                    for first in (part * LINES / PARTS..(part + 1) * LINES / PARTS).step_by(run($bits)) {
                        let mut sums = [[_mm256_setzero_si256(); 2]; C];
                        for line in first..first + (LINES / PARTS).min(run($bits)) {
                            let codes: [__m256i; 2] = $codes(unit, group, line, half);
                            for c in 0..C {
                                let x = _mm256_set1_epi32(x[line][c] as i32);
                                for (sum, codes) in sums[c].iter_mut().zip(codes) {
                                    *sum = _mm256_add_epi16(*sum, pairs::<$bits>(codes, x));
                                }
                            }
                        }
                        for c in 0..C {
                            n[c] = [add_pairs(n[c][0], sums[c][0]), add_pairs(n[c][1], sums[c][1])];
                        }
                    }
                    for (side, quarter) in [half, 2 + half].into_iter().enumerate() {
                        for c in 0..C {
                            let scale = scales.scales[part][quarter];
                            let sum = scale_in(n[c][side], scale, x[ROWS - 1][c], all[c][quarter]);
                            all[c][quarter] = if $minimums {
                                let total = float(x[LINES + part][c]);
                                _mm256_fnmadd_ps(scales.minimums[part][quarter], total, sum)
                            } else {
                                sum
                            };
                        }
                    }
                }
            }

            /// Puts some groups into panels.
            #[target_feature(enable = "avx2,fma,f16c")]
            pub fn decode(bytes: &[u8], first: usize, count: usize, panels: &mut [Panel; 2]) {
                let (units, _) = bytes.as_chunks::<LINE>().0.as_chunks::<UNIT_LINES>();
                let [low, high] = panels;
                let mut at = first;
                while at < first + count {
                    let unit = &units[at / GROUPS];
                    let start = at / GROUPS * GROUPS;
                    let scales: [Scales; GROUPS] = $scales(unit);
                    let last = (first + count).min(start + GROUPS);
                    for group in at..last {
                        let to = [&mut low[group - first], &mut high[group - first]];
                        put(unit, group - start, &scales[group - start], to);
                    }
                    at = last;
                }
            }

            /// Puts one group into two panels.
            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            fn put(unit: &Unit, group: usize, scales: &Scales, mut to: [&mut PanelGroup; 2]) {
                for line in 0..LINES {
                    for half in 0..2 {
                        let codes: [__m256i; 2] = $codes(unit, group, line, half);
                        for (to, codes) in to.iter_mut().zip(codes) {
                            store_codes(codes, &mut to.codes[line].as_chunks_mut().0[half]);
                        }
                    }
                }
                for quarter in 0..QUARTERS {
                    let (to, half) = (&mut *to[quarter / 2], quarter % 2);
                    for part in 0..PARTS {
                        store(scales.scales[part][quarter], &mut to.scales[part].as_chunks_mut().0[half]);
                        if $minimums {
                            let minimums = to.minimums[part].as_chunks_mut().0;
                            store(scales.minimums[part][quarter], &mut minimums[half]);
                        }
                    }
                }
            }
        }
    };
}

layout!(q4_0, 1, 9, bits: 4, minimums: false, halves: false,
    scales: |unit: &Unit| [Scales::plain(half_line(&unit[8]))],
    codes: |unit: &Unit, _, line: usize, half| nibbles(side(&unit[line], half)));
layout!(q8_0, 1, 17, bits: 8, minimums: false, halves: false,
scales: |unit: &Unit| [Scales::plain(half_line(&unit[16]))],
codes: |unit: &Unit, _, line: usize, half| {
    [load_codes(side(&unit[line], half)), load_codes(side(&unit[LINES + line], half))]
});
layout!(q4_k, 8, 72, bits: 4, minimums: true, halves: false,
    scales: q4_k_scales,
    codes: |unit: &Unit, group: usize, line: usize, half| nibbles(side(&unit[LINES * group + line], half)));
layout!(q6_k, 8, 105, bits: 6, minimums: false, halves: true, scales: q6_k_scales, codes: q6_k_codes);

/// Calls a kernel for as many columns as there are.
macro_rules! columns {
    ($count:expr, [$($c:literal)*], |$n:ident| $call:expr) => {
        match $count {
            $($c => { const $n: usize = $c; $call })*
            other => unreachable!("no kernel is made for {other} columns"),
        }
    };
}

/// The products of a band with up to [`NARROW`] columns.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn narrow(band: Band<'_>, x: &[u32], sums: &mut [[f32; BAND]]) {
    const { assert!(NARROW == 8, "a kernel for each number of columns") };
    let bytes = band.bytes;
    columns!(sums.len(), [1 2 3 4 5 6 7 8], |C| match band.layout {
        Layout::Q4_0 => q4_0::products::<C>(bytes, x, sums),
        Layout::Q8_0 => q8_0::products::<C>(bytes, x, sums),
        Layout::Q4K => q4_k::products::<C>(bytes, x, sums),
        Layout::Q6K => q6_k::products::<C>(bytes, x, sums),
        _ => portable::packed::narrow(band, x, sums),
    })
}

/// Decodes groups of a band into panels.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn decode(band: Band<'_>, first: usize, count: usize, panels: &mut [Panel; 2]) {
    assert!(count <= DEPTH, "a panel holds {DEPTH} groups");
    match band.layout {
        Layout::Q4_0 => q4_0::decode(band.bytes, first, count, panels),
        Layout::Q8_0 => q8_0::decode(band.bytes, first, count, panels),
        Layout::Q4K => q4_k::decode(band.bytes, first, count, panels),
        Layout::Q6K => q6_k::decode(band.bytes, first, count, panels),
        _ => portable::packed::decode(band, first, count, panels),
    }
}

/// Adds the products of panels with a tile of columns.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile(coding: Coding, panels: &[Panel; 2], groups: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    const { assert!(TILE == 12, "a kernel for each third of a tile") };
    for quarter in 0..QUARTERS {
        let panel = &panels[quarter / 2][..groups];
        columns!(sums.len(), [4 8 12], |C| match coding {
            Coding { zero: 8, minimums: false, halves: false } => {
                tile_quarter::<C, PLAIN, 4, false>(panel, x, quarter, sums)
            }
            Coding { zero: 128, minimums: false, halves: false } => {
                tile_quarter::<C, PLAIN, 8, false>(panel, x, quarter, sums)
            }
            Coding { zero: 0, minimums: true, halves: false } => {
                tile_quarter::<C, PLAIN, 4, true>(panel, x, quarter, sums)
            }
            Coding { zero: 32, minimums: false, halves: true } => {
                tile_quarter::<C, HALVED, 6, false>(panel, x, quarter, sums)
            }
            other => unreachable!("no layout has codes as {other:?}"),
        });
    }
}

/// Adds the products of a quarter of a band with `C` columns.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_quarter<const C: usize, const ROWS: usize, const BITS: u32, const MINIMUMS: bool>(
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
            let mut n = x[LINES + part].map(|word| begin::<BITS, MINIMUMS>(word));
            for first in (part * LINES / parts..(part + 1) * LINES / parts).step_by(run(BITS)) {
                let mut sums = [_mm256_setzero_si256(); C];
                for line in first..first + run(BITS) {
                    let codes = load_codes(side(&weights.codes[line], half));
                    for c in 0..C {
                        let x = _mm256_set1_epi32(x[line][c] as i32);
                        sums[c] = _mm256_add_epi16(sums[c], pairs::<BITS>(codes, x));
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
            let units = lines.as_chunks::<$lines>().0.iter();
            for (unit, x) in units.zip(x.as_chunks::<C>().0.as_chunks::<$columns>().0) {
                unit.iter().for_each(|line| prefetch(line));
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

floats!(bf16, 2, 2, |unit: &[Line; 2], column: usize, quarter: usize| {
    let lanes = load_codes(side(&unit[quarter / 2], quarter % 2));
    if column == 0 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(lanes))
    } else {
        _mm256_castsi256_ps(_mm256_and_si256(lanes, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
    }
});
floats!(f16, 1, 1, |unit: &[Line; 1], _, quarter: usize| {
    _mm256_cvtph_ps(super::super::x86::load_bytes(&unit[0].as_chunks().0[quarter]))
});
floats!(f32, 2, 1, |unit: &[Line; 2], _, quarter: usize| {
    _mm256_castsi256_ps(load_codes(side(&unit[quarter / 2], quarter % 2)))
});
