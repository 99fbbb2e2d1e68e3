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
//! then bandwidth is the limit, if every line is there in time. Lines are read
//! in their order, which some processors see; others are asked for early (see
//! [`ahead`]).

use std::arch::x86_64::*;

use super::parts::{Scales, codes, half_line, load_line, scales};
use super::{load, store};
use crate::kernels::ahead::{self, Ahead, FEW};
use crate::kernels::layout::{Codes, Parts, for_parts};
use crate::kernels::packed::{
    BAND, Band, Coding, FLOAT_DEPTH, LINE, Layout, MAGIC, MAGIC_FLOAT, NARROW, Panel, PanelGroup, TILE,
};
use crate::kernels::x86::{
    HALVED, Line, PLAIN, ask, ask_for_group, brain_lines, columns, decode_groups, units, widened,
};

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn store_line(vector: __m512i, line: &mut Line) {
    // SAFETY: the array is 64 writable bytes; this store needs no alignment.
    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), vector) }
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

/// The products of a band with up to [`NARROW`] columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn narrow(band: Band<'_>, x: &[u32], sums: &mut [[f32; BAND]]) {
    const { assert!(NARROW == 8, "a kernel for each number of columns") };
    columns!(sums.len(), [1 2 3 4 5 6 7 8], |C| for_parts!(band.layout, |P| products::<P, C>(
        band.bytes, x, sums
    )));
}

/// The products of a band with `C` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn products<P: Parts, const C: usize>(bytes: &[u8], x: &[u32], sums: &mut [[f32; BAND]]) {
    let (each, lines) = const { (P::SCALES.groups(), P::CODES.lines()) };
    let mut groups = x.as_chunks::<C>().0.chunks_exact(P::CODING.words());
    let ahead = if each == 1 { ahead::chosen(C) } else { Ahead::OF_UNITS };
    let mut all = [[_mm512_setzero_ps(); 2]; C];
    for unit in units::<P>(bytes) {
        let (codes, tail) = unit.split_at(each * lines);
        for (group, codes) in codes.chunks_exact(lines).enumerate() {
            let Some(x) = groups.next() else { break };
            ask_for_group::<P>(codes, tail, group, ahead);
            match const { (P::CODES, P::CODING.halves) } {
                (Codes::Eight, _) if C <= FEW => add_bytes::<P, C>(codes, tail, x, &mut all),
                (_, false) => add_part::<P, C, 1, 0>(codes, (tail, group), x, &mut all),
                (_, true) => {
                    add_part::<P, C, 2, 0>(codes, (tail, group), x, &mut all);
                    add_part::<P, C, 2, 1>(codes, (tail, group), x, &mut all);
                }
            }
        }
    }
    for (sums, all) in sums.iter_mut().zip(&all) {
        let (halves, _) = sums.as_chunks_mut();
        store(all[0], &mut halves[0]);
        store(all[1], &mut halves[1]);
    }
}

/// Adds the products of part `PART` of `PARTS` of a group.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn add_part<P: Parts, const C: usize, const PARTS: usize, const PART: usize>(
    lines: &[Line],
    (tail, group): (&[Line], usize),
    x: &[[u32; C]],
    all: &mut [[__m512; 2]; C],
) {
    let mut n = [[_mm512_setzero_si512(); C]; 2];
    for c in 0..C {
        let begin = words(if P::CODING.minimums { MAGIC as u32 } else { x[8 + PART][c] });
        (n[0][c], n[1][c]) = (begin, begin);
    }
    for line in PART * 8 / PARTS..(PART + 1) * 8 / PARTS {
        let codes = codes::<P>(lines, line);
        for c in 0..C {
            let x = words(x[line][c]);
            n[0][c] = _mm512_dpbusd_epi32(n[0][c], codes[0], x);
            n[1][c] = _mm512_dpbusd_epi32(n[1][c], codes[1], x);
        }
    }
    // They lie behind the codes, and lines are best read in their order.
    let scales = scales::<P>(tail, group);
    add_scaled::<P, C, PARTS, PART>(n[0], 0, &scales, x, all);
    add_scaled::<P, C, PARTS, PART>(n[1], 1, &scales, x, all);
}

/// Adds the products of a group of bytes, which has one scale for each row. Its
/// lines are those of the lower half of the band and then of the upper: in this
/// order, so that memory is read from one end to the other. With more columns
/// than few both halves at once are faster, as they share the activations' loads.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn add_bytes<P: Parts, const C: usize>(
    lines: &[Line],
    tail: &[Line],
    x: &[[u32; C]],
    all: &mut [[__m512; 2]; C],
) {
    let mut n = [[_mm512_setzero_si512(); C]; 2];
    for (n, lines) in n.iter_mut().zip(lines.chunks_exact(8)) {
        for c in 0..C {
            n[c] = words(x[8][c]);
        }
        for (line, x) in lines.iter().zip(x) {
            let codes = load_line(line);
            for c in 0..C {
                n[c] = _mm512_dpbusd_epi32(n[c], codes, words(x[c]));
            }
        }
    }
    let scales = scales::<P>(tail, 0);
    add_scaled::<P, C, 1, 0>(n[0], 0, &scales, x, all);
    add_scaled::<P, C, 1, 0>(n[1], 1, &scales, x, all);
}

/// Adds what the sums of integers of one half of the band yield.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn add_scaled<P: Parts, const C: usize, const PARTS: usize, const PART: usize>(
    n: [__m512i; C],
    half: usize,
    scales: &Scales,
    x: &[[u32; C]],
    all: &mut [[__m512; 2]; C],
) {
    let scale = scales.scales[PART][half];
    let magic = _mm512_mul_ps(scale, _mm512_set1_ps(MAGIC_FLOAT));
    for c in 0..C {
        let sum = scale_in(n[c], scale, magic, x[8 + PARTS][c], all[c][half]);
        all[c][half] = if P::CODING.minimums {
            _mm512_fnmadd_ps(scales.minimums[PART][half], float(x[8 + PART][c]), sum)
        } else {
            sum
        };
    }
}

/// Decodes groups of a band into panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn decode(band: Band<'_>, first: usize, count: usize, panels: &mut [Panel; 2]) {
    for_parts!(band.layout, |P| decode_parts::<P>(band.bytes, first, count, panels));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn decode_parts<P: Parts>(bytes: &[u8], first: usize, count: usize, panels: &mut [Panel; 2]) {
    decode_groups::<P>(bytes, first, count, panels, |codes, tail, group, panels| {
        put::<P>(codes, &scales::<P>(tail, group), panels);
    });
}

/// Puts one group into two panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn put<P: Parts>(lines: &[Line], scales: &Scales, to: [&mut PanelGroup; 2]) {
    for line in 0..8 {
        let codes = codes::<P>(lines, line);
        store_line(codes[0], &mut to[0].codes[line]);
        store_line(codes[1], &mut to[1].codes[line]);
    }
    for (half, to) in to.into_iter().enumerate() {
        for part in 0..P::CODING.sums() {
            store(scales.scales[part][half], &mut to.scales[part]);
            if P::CODING.minimums {
                store(scales.minimums[part][half], &mut to.minimums[part]);
            }
        }
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

/// Asks for the activations `groups` groups ahead: those of the next tile, which
/// lie behind this one's. They come from the second cache or the third, and
/// their lines are too far apart in time for the processor to ask by itself.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn prefetch_next<const C: usize, const ROWS: usize>(x: &[[u32; C]; ROWS], groups: usize) {
    let next = x.as_ptr().wrapping_add(groups * ROWS).cast::<i8>();
    for line in (0..size_of_val(x)).step_by(LINE) {
        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(line));
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
        if half == 0 {
            prefetch_next(x, panel.len());
        }
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
            let ahead = ahead::chosen(C);
            let units = lines.as_chunks::<$lines>().0.iter();
            for (unit, x) in units.zip(x.as_chunks::<C>().0.as_chunks::<$columns>().0) {
                ask(unit, ahead);
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

/// A column of two in lines of brain floats, as floats.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn brain_column(unit: &[Line; 2], column: usize) -> [__m512; 2] {
    let lanes = [load_line(&unit[0]), load_line(&unit[1])];
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    if column == 0 {
        lanes.map(|lanes| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(lanes)))
    } else {
        lanes.map(|lanes| _mm512_castsi512_ps(_mm512_and_si512(lanes, upper)))
    }
}

floats!(bf16, 2, 2, |unit, column| brain_column(unit, column));
// Of a pair the second column comes first.
floats!(brain_pairs, 2, 2, |unit, row| brain_column(unit, 1 - row));
floats!(f16, 1, 1, |unit: &[Line; 1], _| half_line(&unit[0]));
floats!(f32, 2, 1, |unit: &[Line; 2], _| [float_line(&unit[0]), float_line(&unit[1])]);

/// Adds the products of a band of brain floats with brain floats, which become
/// floats first: for processors without products of their own for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn brains(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let lines = brain_lines(band, first).chunks(FLOAT_DEPTH);
    columns!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| {
        let mut floats = [[[0; C]; 2]; FLOAT_DEPTH / 2];
        for (lines, x) in lines.zip(x.as_chunks::<C>().0.chunks(FLOAT_DEPTH / 2)) {
            brain_pairs::<C>(lines, widened(x, &mut floats), sums);
        }
    });
}

/// As [`brains`], with the products of pairs that some processors have.
///
/// ```text
/// for each pair of columns of weights:    two vectors, 16 rows each
///     for each column c:                  sums[c] += upper · x[c] upper, then lower · x[c] lower
/// ```
/// Twice as many products in an instruction as with floats, and half the bytes
/// of activations; a tile of 12 columns takes 24 instructions a pair, and the
/// loads (two lines, 12 words) fit beside them, and so does asking for the words of
/// the next tile. Bytes moved: the band, once.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) fn brain_dots(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let lines = brain_lines(band, first);
    columns!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| dots::<C>(lines, x, sums));
}

/// [`brain_dots`] with `C` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
fn dots<const C: usize>(lines: &[Line], x: &[u32], sums: &mut [[f32; BAND]]) {
    let mut all = [[_mm512_setzero_ps(); 2]; C];
    for (all, sums) in all.iter_mut().zip(&*sums) {
        let (halves, _) = sums.as_chunks();
        *all = [load(&halves[0]), load(&halves[1])];
    }
    let ahead = ahead::chosen(C);
    let pairs = x.as_chunks::<C>().0;
    for (unit, x) in lines.as_chunks::<2>().0.iter().zip(pairs) {
        ask(unit, ahead);
        if C == TILE {
            // The next tile's words lie behind this one's, as many. Behind the last
            // tile of a block lies nothing that is wanted, and nothing is read.
            _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(pairs.len() * C).cast());
        }
        let weights = [brain_vector(load_line(&unit[0])), brain_vector(load_line(&unit[1]))];
        for c in 0..C {
            let x = brain_vector(words(x[c]));
            all[c][0] = _mm512_dpbf16_ps(all[c][0], weights[0], x);
            all[c][1] = _mm512_dpbf16_ps(all[c][1], weights[1], x);
        }
    }
    for (all, sums) in all.iter().zip(sums) {
        let (halves, _) = sums.as_chunks_mut();
        store(all[0], &mut halves[0]);
        store(all[1], &mut halves[1]);
    }
}

/// The same bits as brain floats.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
#[inline]
fn brain_vector(vector: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of which any are valid.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(vector) }
}
