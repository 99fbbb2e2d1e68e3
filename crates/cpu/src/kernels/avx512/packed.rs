//! Products of packed weights with VNNI, and of floats with fused
//! multiply-adds.
//!
//! ```text
//! for each group of a band:
//!     for each line j of codes:           a vector of four codes for each of 16 rows
//!         for each column c:              n[c] += codes[j] · x[c][4j..4j+4]
//!     for each column c:                  sums[c] += s[c] · (scale · n[c])
//! ```
//! `n` begins with the bits of a large float, less the zero point's share, so
//! neither the zero point nor the conversion costs an instruction; see
//! [`MAGIC`](crate::kernels::packed::MAGIC). A group of one column takes 8
//! products and 2 other instructions of the two ports for 512-bit arithmetic,
//! 3 where there are minimums, 4 where scales are shared by 16 columns: 79, 72
//! and 66 % of the peak at the most, with the panel's own multiplication.
//!
//! With few columns weights come from memory and are decoded in registers;
//! then bandwidth is the limit, if every line is asked for early: into the
//! second cache 8 KB ahead, into the first 1 KB ahead.

use std::arch::x86_64::*;

use super::{load, store};
use crate::kernels::packed::{
    BAND, Band, Coding, DEPTH, LINE, Layout, MAGIC, MAGIC_FLOAT, NARROW, Panel, PanelGroup, TILE,
};
use crate::kernels::portable;

/// Bytes ahead of the present line that are brought into the second cache.
const FAR: usize = 8192;

/// Bytes ahead of the present line that are brought into the first cache.
const NEAR: usize = 1024;

type Line = [u8; LINE];

/// Rows of a group of activations, without those of codes: a sum and a scale.
const PLAIN: usize = 10;

/// As [`PLAIN`], with two sums.
const HALVED: usize = 11;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn load_line(line: &Line) -> __m512i {
    // SAFETY: the array is 64 readable bytes; this load needs no alignment.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn store_line(vector: __m512i, line: &mut Line) {
    // SAFETY: the array is 64 writable bytes; this store needs no alignment.
    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), vector) }
}

/// Asks for the memory beyond a line; what lies there is not read.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn prefetch(line: &Line) {
    let line = line.as_ptr();
    _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(FAR).cast());
    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(NEAR).cast());
}

/// The 16 numbers of half precision in the lower or the upper half of a line.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn half_line(line: &Line) -> [__m512; 2] {
    let line = load_line(line);
    [_mm512_cvtph_ps(_mm512_castsi512_si256(line)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(line))]
}

/// The lower and the upper four bits of each byte.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn nibbles(line: &Line) -> [__m512i; 2] {
    let (line, mask) = (load_line(line), _mm512_set1_epi8(15));
    [_mm512_and_si512(line, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(line), mask)]
}

/// What belongs to the scale of a group: for each half of its columns and each
/// half of the band.
#[derive(Clone, Copy)]
struct Scales {
    scales: [[__m512; 2]; 2],
    minimums: [[__m512; 2]; 2],
}

impl Scales {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    #[inline]
    fn plain(scales: [__m512; 2]) -> Scales {
        Scales { scales: [scales; 2], minimums: [[_mm512_setzero_ps(); 2]; 2] }
    }
}

/// A layout of `LINES` lines for `GROUPS` groups, as far as kernels know it.
macro_rules! layout {
    ($name:ident, $groups:expr, $lines:expr, scales: $scales:expr, codes: $codes:expr) => {
        mod $name {
            use super::*;

            pub const GROUPS: usize = $groups;
            pub const LINES: usize = $lines;

            /// The scales of all groups of a unit.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            #[inline]
            pub fn scales(unit: &[Line; LINES]) -> [Scales; GROUPS] {
                $scales(unit)
            }

            /// The codes of line `line` of group `group`, of both halves of the band.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            #[inline]
            pub fn codes(unit: &[Line; LINES], group: usize, line: usize) -> [__m512i; 2] {
                $codes(unit, group, line)
            }
        }
    };
}

layout!(q4_0, 1, 9,
    scales: |unit: &[Line; 9]| [Scales::plain(half_line(&unit[8]))],
    codes: |unit: &[Line; 9], _, line: usize| nibbles(&unit[line]));
layout!(q8_0, 1, 17,
    scales: |unit: &[Line; 17]| [Scales::plain(half_line(&unit[16]))],
    codes: |unit: &[Line; 17], _, line: usize| [load_line(&unit[line]), load_line(&unit[8 + line])]);
layout!(q4_k, 8, 72, scales: q4_k_scales,
    codes: |unit: &[Line; 72], group: usize, line: usize| nibbles(&unit[8 * group + line]));
layout!(q6_k, 8, 105, scales: q6_k_scales, codes: q6_k_codes);

/// The scales and the minimums of the eight groups of Q4_K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn q4_k_scales(unit: &[Line; 72]) -> [Scales; 8] {
    let mut all = [Scales::plain([_mm512_setzero_ps(); 2]); 8];
    let (outer, outer_minimums) = (half_line(&unit[70]), half_line(&unit[71]));
    for half in 0..2 {
        let sixes = sixes(&unit[64 + 3 * half], &unit[65 + 3 * half], &unit[66 + 3 * half]);
        for (group, all) in all.iter_mut().enumerate() {
            let scale = _mm512_mul_ps(byte(sixes[group / 4], group % 4), outer[half]);
            let minimum = _mm512_mul_ps(byte(sixes[2 + group / 4], group % 4), outer_minimums[half]);
            all.scales[0][half] = scale;
            all.minimums[0][half] = minimum;
        }
    }
    all
}

/// Sixteen six-bit numbers for each row: four vectors of four bytes in a lane.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn sixes(first: &Line, second: &Line, uppers: &Line) -> [__m512i; 4] {
    let ([a, b], [c, d], uppers) = (nibbles(first), nibbles(second), load_line(uppers));
    let mask = _mm512_set1_epi8(0x30);
    let join = |lower, upper| _mm512_or_si512(lower, _mm512_and_si512(upper, mask));
    [
        join(a, _mm512_slli_epi16::<4>(uppers)),
        join(b, _mm512_slli_epi16::<2>(uppers)),
        join(c, uppers),
        join(d, _mm512_srli_epi16::<2>(uppers)),
    ]
}

/// Byte `index` of each lane as a float.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn byte(lanes: __m512i, index: usize) -> __m512 {
    let shifted = _mm512_srlv_epi32(lanes, _mm512_set1_epi32(8 * index as i32));
    _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)))
}

/// The scales of the eight groups of Q6_K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn q6_k_scales(unit: &[Line; 105]) -> [Scales; 8] {
    let mut all = [Scales::plain([_mm512_setzero_ps(); 2]); 8];
    let outer = half_line(&unit[104]);
    for (group, all) in all.iter_mut().enumerate() {
        let line = load_line(&unit[96 + group]);
        let bytes = [
            _mm512_castsi512_si128(line),
            _mm512_extracti32x4_epi32::<1>(line),
            _mm512_extracti32x4_epi32::<2>(line),
            _mm512_extracti32x4_epi32::<3>(line),
        ];
        for (index, bytes) in bytes.into_iter().enumerate() {
            let inner = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
            all.scales[index / 2][index % 2] = _mm512_mul_ps(inner, outer[index % 2]);
        }
    }
    all
}

/// A line of codes of Q6_K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn q6_k_codes(unit: &[Line; 105], group: usize, line: usize) -> [__m512i; 2] {
    let [low, high] = nibbles(&unit[12 * group + line]);
    let uppers = load_line(&unit[12 * group + 8 + line / 2]);
    let uppers = if line.is_multiple_of(2) {
        [_mm512_slli_epi16::<4>(uppers), _mm512_slli_epi16::<2>(uppers)]
    } else {
        [uppers, _mm512_srli_epi16::<2>(uppers)]
    };
    let mask = _mm512_set1_epi8(0x30);
    [
        _mm512_or_si512(low, _mm512_and_si512(uppers[0], mask)),
        _mm512_or_si512(high, _mm512_and_si512(uppers[1], mask)),
    ]
}

/// A word of each of four columns' codes, in every lane.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn words(word: u32) -> __m512i {
    _mm512_set1_epi32(word as i32)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn float(word: u32) -> __m512 {
    _mm512_set1_ps(f32::from_bits(word))
}

/// Adds what a sum of integers yields: `sum + s · (scale · n)`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn scale_in(n: __m512i, scale: __m512, magic: __m512, x: u32, sum: __m512) -> __m512 {
    // Exactly `scale · n`, rounded once: the product with the large float is exact.
    let scaled = _mm512_fmsub_ps(_mm512_castsi512_ps(n), scale, magic);
    _mm512_fmadd_ps(scaled, float(x), sum)
}

/// A kernel for few columns of a layout.
macro_rules! narrow {
    ($layout:ident, minimums: $minimums:expr, halves: $halves:expr) => {
        pub(super) mod $layout {
            use super::super::$layout::*;
            use super::super::*;

            /// Rows of a group of activations.
            const ROWS: usize = if $halves { HALVED } else { PLAIN };

            /// The products of a band with `C` columns.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            pub fn products<const C: usize>(bytes: &[u8], x: &[u32], sums: &mut [[f32; BAND]]) {
                let (units, _) = bytes.as_chunks::<LINE>().0.as_chunks::<LINES>();
                let mut groups = x.as_chunks::<C>().0.as_chunks::<ROWS>().0.iter();
                let mut all = [[_mm512_setzero_ps(); 2]; C];
                for unit in units {
                    let scales = scales(unit);
                    for group in 0..GROUPS {
                        let Some(x) = groups.next() else { break };
                        for line in 0..LINES / GROUPS {
                            prefetch(&unit[group * (LINES / GROUPS) + line]);
                        }
                        add::<C>(unit, group, &scales[group], x, &mut all);
                    }
                }
                for (sums, all) in sums.iter_mut().zip(&all) {
                    let (halves, _) = sums.as_chunks_mut();
                    store(all[0], &mut halves[0]);
                    store(all[1], &mut halves[1]);
                }
            }

            /// Adds the products of one group.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            #[inline]
            fn add<const C: usize>(
                unit: &[Line; LINES],
                group: usize,
                scales: &Scales,
                x: &[[u32; C]; ROWS],
                all: &mut [[__m512; 2]; C],
            ) {
                if $halves {
                    add_part::<C, 2, 0>(unit, group, scales, x, all);
                    add_part::<C, 2, 1>(unit, group, scales, x, all);
                } else {
                    add_part::<C, 1, 0>(unit, group, scales, x, all);
                }
            }

            /// Adds the products of part `PART` of `PARTS` of a group.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            #[inline]
            fn add_part<const C: usize, const PARTS: usize, const PART: usize>(
                unit: &[Line; LINES],
                group: usize,
                scales: &Scales,
                x: &[[u32; C]; ROWS],
                all: &mut [[__m512; 2]; C],
            ) {
                let mut n = [[_mm512_setzero_si512(); 2]; C];
                for c in 0..C {
                    n[c] = [words(if $minimums { MAGIC as u32 } else { x[8 + PART][c] }); 2];
                }
                for line in PART * 8 / PARTS..(PART + 1) * 8 / PARTS {
                    let codes = codes(unit, group, line);
                    for c in 0..C {
                        let x = words(x[line][c]);
                        n[c][0] = _mm512_dpbusd_epi32(n[c][0], codes[0], x);
                        n[c][1] = _mm512_dpbusd_epi32(n[c][1], codes[1], x);
                    }
                }
                for half in 0..2 {
                    let scale = scales.scales[PART][half];
                    let magic = _mm512_mul_ps(scale, _mm512_set1_ps(MAGIC_FLOAT));
                    for c in 0..C {
                        let sum = scale_in(n[c][half], scale, magic, x[ROWS - 1][c], all[c][half]);
                        all[c][half] = if $minimums {
                            _mm512_fnmadd_ps(scales.minimums[PART][half], float(x[8 + PART][c]), sum)
                        } else {
                            sum
                        };
                    }
                }
            }

            /// Puts some groups into panels.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            pub fn decode(bytes: &[u8], first: usize, count: usize, panels: &mut [Panel; 2]) {
                let (units, _) = bytes.as_chunks::<LINE>().0.as_chunks::<LINES>();
                let [low, high] = panels;
                let mut panels = low[..count].iter_mut().zip(&mut high[..count]);
                let mut skip = first - first / GROUPS * GROUPS;
                for unit in &units[first / GROUPS..] {
                    let scales = scales(unit);
                    for (group, scales) in scales.iter().enumerate().skip(skip) {
                        let Some((low, high)) = panels.next() else { return };
                        put(unit, group, scales, [low, high]);
                    }
                    skip = 0;
                }
            }

            /// Puts one group into two panels.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            #[inline]
            fn put(unit: &[Line; LINES], group: usize, scales: &Scales, to: [&mut PanelGroup; 2]) {
                for line in 0..8 {
                    let codes = codes(unit, group, line);
                    store_line(codes[0], &mut to[0].codes[line]);
                    store_line(codes[1], &mut to[1].codes[line]);
                }
                for (half, to) in to.into_iter().enumerate() {
                    for part in 0..if $halves { 2 } else { 1 } {
                        store(scales.scales[part][half], &mut to.scales[part]);
                        if $minimums {
                            store(scales.minimums[part][half], &mut to.minimums[part]);
                        }
                    }
                }
            }
        }
    };
}

mod narrow {
    narrow!(q4_0, minimums: false, halves: false);
    narrow!(q8_0, minimums: false, halves: false);
    narrow!(q4_k, minimums: true, halves: false);
    narrow!(q6_k, minimums: false, halves: true);
}

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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn narrow(band: Band<'_>, x: &[u32], sums: &mut [[f32; BAND]]) {
    const { assert!(NARROW == 8, "a kernel for each number of columns") };
    let bytes = band.bytes;
    columns!(sums.len(), [1 2 3 4 5 6 7 8], |C| match band.layout {
        Layout::Q4_0 => narrow::q4_0::products::<C>(bytes, x, sums),
        Layout::Q8_0 => narrow::q8_0::products::<C>(bytes, x, sums),
        Layout::Q4K => narrow::q4_k::products::<C>(bytes, x, sums),
        Layout::Q6K => narrow::q6_k::products::<C>(bytes, x, sums),
        _ => portable::packed::narrow(band, x, sums),
    })
}

/// Decodes groups of a band into panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn decode(band: Band<'_>, first: usize, count: usize, panels: &mut [Panel; 2]) {
    assert!(count <= DEPTH, "a panel holds {DEPTH} groups");
    match band.layout {
        Layout::Q4_0 => narrow::q4_0::decode(band.bytes, first, count, panels),
        Layout::Q8_0 => narrow::q8_0::decode(band.bytes, first, count, panels),
        Layout::Q4K => narrow::q4_k::decode(band.bytes, first, count, panels),
        Layout::Q6K => narrow::q6_k::decode(band.bytes, first, count, panels),
        _ => portable::packed::decode(band, first, count, panels),
    }
}

/// Adds the products of panels with a tile of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn tile(coding: Coding, panels: &[Panel; 2], groups: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    const { assert!(TILE == 12, "a kernel for each third of a tile") };
    for (half, panel) in panels.iter().enumerate() {
        let panel = &panel[..groups];
        columns!(sums.len(), [4 8 12], |C| match (coding.minimums, coding.halves) {
            (false, false) => tile_half::<C, PLAIN, false, false>(panel, x, half, sums),
            (true, false) => tile_half::<C, PLAIN, true, false>(panel, x, half, sums),
            (false, true) => tile_half::<C, HALVED, false, true>(panel, x, half, sums),
            (true, true) => tile_half::<C, HALVED, true, true>(panel, x, half, sums),
        });
    }
}

/// Adds the products of half a band with `C` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn tile_half<const C: usize, const ROWS: usize, const MINIMUMS: bool, const HALVES: bool>(
    panel: &[PanelGroup],
    x: &[u32],
    half: usize,
    sums: &mut [[f32; BAND]],
) {
    let mut all = [_mm512_setzero_ps(); C];
    for (all, sums) in all.iter_mut().zip(&*sums) {
        *all = load(&sums.as_chunks().0[half]);
    }
    for (weights, x) in panel.iter().zip(x.as_chunks::<C>().0.as_chunks::<ROWS>().0) {
        if HALVES {
            tile_part::<C, ROWS, MINIMUMS, 2, 0>(weights, x, &mut all);
            tile_part::<C, ROWS, MINIMUMS, 2, 1>(weights, x, &mut all);
        } else {
            tile_part::<C, ROWS, MINIMUMS, 1, 0>(weights, x, &mut all);
        }
    }
    for (all, sums) in all.iter().zip(sums) {
        store(*all, &mut sums.as_chunks_mut().0[half]);
    }
}

/// Adds the products of part `PART` of `PARTS` of a group, which has a scale of its own.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn tile_part<
    const C: usize,
    const ROWS: usize,
    const MINIMUMS: bool,
    const PARTS: usize,
    const PART: usize,
>(
    weights: &PanelGroup,
    x: &[[u32; C]; ROWS],
    all: &mut [__m512; C],
) {
    let mut n = [_mm512_setzero_si512(); C];
    for c in 0..C {
        n[c] = words(if MINIMUMS { MAGIC as u32 } else { x[8 + PART][c] });
    }
    let lines = PART * 8 / PARTS..(PART + 1) * 8 / PARTS;
    for (codes, x) in weights.codes[lines.clone()].iter().zip(&x[lines]) {
        let codes = load_line(codes);
        for c in 0..C {
            n[c] = _mm512_dpbusd_epi32(n[c], codes, words(x[c]));
        }
    }
    let scale = load(&weights.scales[PART]);
    let magic = _mm512_mul_ps(scale, _mm512_set1_ps(MAGIC_FLOAT));
    for c in 0..C {
        all[c] = scale_in(n[c], scale, magic, x[ROWS - 1][c], all[c]);
        if MINIMUMS {
            let minimum = load(&weights.minimums[PART]);
            all[c] = _mm512_fnmadd_ps(minimum, float(x[8 + PART][c]), all[c]);
        }
    }
}

/// Adds the products of a band of floats.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn floats(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let (unit, bytes) = band.layout.unit();
    let lines = band.bytes[first / unit * bytes..].as_chunks::<LINE>().0;
    columns!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| match band.layout {
        Layout::Bf16 => bf16::<C>(lines, x, sums),
        Layout::F16 => f16::<C>(lines, x, sums),
        Layout::F32 => f32::<C>(lines, x, sums),
        _ => unreachable!("only layouts of floats are multiplied as they are"),
    })
}

/// The 16 floats of a line.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn float_line(line: &Line) -> __m512 {
    _mm512_castsi512_ps(load_line(line))
}

/// A kernel for floats: `$lines` lines hold `$columns` columns, each of which
/// `$decode` makes into two vectors.
macro_rules! floats {
    ($name:ident, $lines:literal, $columns:literal, $decode:expr) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn $name<const C: usize>(lines: &[Line], x: &[u32], sums: &mut [[f32; BAND]]) {
            let mut all = [[_mm512_setzero_ps(); 2]; C];
            for (all, sums) in all.iter_mut().zip(&*sums) {
                let (halves, _) = sums.as_chunks();
                *all = [load(&halves[0]), load(&halves[1])];
            }
            let units = lines.as_chunks::<$lines>().0.iter();
            for (unit, x) in units.zip(x.as_chunks::<C>().0.as_chunks::<$columns>().0) {
                for line in unit {
                    prefetch(line);
                }
                for column in 0..$columns {
                    let weights: [__m512; 2] = $decode(unit, column);
                    for c in 0..C {
                        let x = float(x[column][c]);
                        all[c][0] = _mm512_fmadd_ps(weights[0], x, all[c][0]);
                        all[c][1] = _mm512_fmadd_ps(weights[1], x, all[c][1]);
                    }
                }
            }
            for (all, sums) in all.iter().zip(sums) {
                let (halves, _) = sums.as_chunks_mut();
                store(all[0], &mut halves[0]);
                store(all[1], &mut halves[1]);
            }
        }
    };
}

floats!(bf16, 2, 2, |unit: &[Line; 2], column: usize| {
    let lanes = [load_line(&unit[0]), load_line(&unit[1])];
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    if column == 0 {
        lanes.map(|lanes| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(lanes)))
    } else {
        lanes.map(|lanes| _mm512_castsi512_ps(_mm512_and_si512(lanes, upper)))
    }
});
floats!(f16, 1, 1, |unit: &[Line; 1], _| half_line(&unit[0]));
floats!(f32, 2, 1, |unit: &[Line; 2], _| [float_line(&unit[0]), float_line(&unit[1])]);
