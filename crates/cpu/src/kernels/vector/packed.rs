//! Multiplication of packed codes, by byte products. `floats` multiplies packed floats.
//!
//! ```text
//! for each two vectors of rows of a band:     16 rows in a vector with AVX-512, 8 with AVX2
//!     for each group:
//!         for each line j of codes:           four codes in each lane
//!             for each column c:              n[c]     += codes[j] · x[c][4j..4j+4]
//!         for each column c:                  sums[c]  += s[c] · (scale · n[c])
//! ```
//! `n` begins with the bits of a large float, less the zero point's share, so
//! neither the zero point nor the conversion costs an instruction; see
//! [`INTEGER_BIAS`]. From `n` on the operations are those of all tables, so are the bits.
//!
//! **AVX-512** multiplies with VNNI. A group of one column takes 8 byte products and 2
//! other instructions of the two ports for 512-bit arithmetic, 3 with minimums, 4
//! where scales are shared by 16 columns: at most 79, 72 and 66 % of the peak, with
//! the panel's own multiplication.
//!
//! **AVX-VNNI** has the same product with vectors of 8 lanes, and the registers of AVX2.
//!
//! **AVX2** adds two neighbours in 16 bits, which must not saturate. Codes of four bits
//! leave room for all eight lines of a group before the pairs are added up
//! (15 · 127 · 2 · 8 = 30 480), codes of five bits for four (31 · 127 · 2 · 4 =
//! 31 496), of six for two (63 · 127 · 2 · 2 = 32 004). Codes of eight bits are made
//! signed again and multiplied by their magnitude with the sign carried over to `x`
//! (128 · 127 · 2 = 32 512), which takes two instructions more; their zero point then
//! has no share. The table of AVX2 computes signed codes and magnitudes once if several tiles read them (`avx2/signed.rs`). A group of one column and one vector takes 16 instructions of
//! arithmetic for codes of four bits, 20 for six, 32 for eight, and 4 for the scale;
//! the loads and the decoding are shared by all columns or run beside them.
//!
//! **Registers.** Sums on the stack cost more than the multiplications, and the compiler mixes
//! what it unrolls until they no longer fit into the registers. With AVX2 the lines of a tile are a loop
//! of a length unknown to the compiler, and fences (`keep_order`) separate the loads of two columns, of
//! two halves of a group, and of what sums begin with from the lines before; with AVX-512 the
//! halves of a group of many columns are such a loop. No fence is an instruction. A tile of AVX2
//! multiplies two vectors by six columns: twelve sums of pairs, two vectors of weights and a word.
//!
//! With few columns weights come from memory and are decoded in registers; every line is
//! prefetched where that helps (see [`prefetch`]).

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{Ordering, compiler_fence};

use super::parts::{GroupScales, codes, scales};
use super::{Packed, VectorKernel, by_count};
use crate::kernels::layout::{Codes, IntegerLayout, LINE, Line, for_integers};
use crate::kernels::machine::{prefetch_address_l1, prefetch_address_l2};
use crate::kernels::packed::{
    Band, DEPTH, GROUP, INTEGER_BIAS, INTEGER_BIAS_FLOAT, MatmulTileOperands, NARROW, PanelGroup, Panels,
    Sums, TILE,
};
use crate::kernels::prefetch::{FEW_COLUMNS, PrefetchDistance};

/// Lines of decoded codes in a group.
pub(in super::super) const LINES: usize = GROUP / 4;

/// Rows of words of a group of activations: codes, what a sum begins with, scale.
pub(in super::super) const PLAIN: usize = LINES + 2;

/// As [`PLAIN`], with two sums.
pub(in super::super) const HALVED: usize = LINES + 3;

pub(in super::super) const COLUMNS: &str = "sums for each column";

/// Sums of one vector for each piece of a line and for each half of the band. Sets whose
/// lines are one piece use the first.
type BandSums<F> = [[F; 2]; 2];

/// The units of a band, each the codes of all its groups and then their scales.
#[inline(always)]
fn units<P: IntegerLayout>(bytes: &[u8]) -> slice::ChunksExact<'_, Line> {
    bytes.as_chunks().0.chunks_exact(const { P::SCALES.groups() * P::CODES.lines() + P::SCALES.lines() })
}

/// Prefetches what lies at the distance behind each line.
#[inline(always)]
pub(in super::super) fn prefetch_lines(lines: &[Line], distance: PrefetchDistance) {
    if !distance.is_set() {
        return;
    }
    for line in lines {
        let line = line.as_ptr();
        prefetch_address_l2(line.wrapping_add(distance.far));
        prefetch_address_l1(line.wrapping_add(distance.near));
    }
}

/// As [`prefetch_lines`], for the codes of group `group` of a unit and its share of the
/// unit's scales `tail`.
#[inline(always)]
fn prefetch_group<P: IntegerLayout>(codes: &[Line], tail: &[Line], group: usize, distance: PrefetchDistance) {
    if !distance.is_set() {
        return;
    }
    prefetch_lines(codes, distance);
    let share = const { P::SCALES.lines().div_ceil(P::SCALES.groups()) };
    for index in group * share..(group + 1) * share {
        prefetch_lines(slice::from_ref(&tail[index.min(P::SCALES.lines() - 1)]), distance);
    }
}

/// Keeps the compiler from moving loads across this point, and so from loading the words of all
/// columns before it multiplies the first, which takes more registers than there are.
#[inline(always)]
pub(in super::super) fn keep_order() {
    compiler_fence(Ordering::SeqCst);
}

/// A word of activations as a float in all lanes.
#[inline(always)]
pub(in super::super) fn float<I: Packed>(isa: I, word: u32) -> I::Floats {
    isa.splat(f32::from_bits(word))
}

/// What a sum of integers begins with, given the word with the zero point's share, if
/// there is one.
#[inline(always)]
pub(in super::super) fn first_integer<I: Packed>(bits: u8, minimums: bool, word: u32) -> i32 {
    let shareless = minimums || I::has_zero(bits);
    if shareless { INTEGER_BIAS } else { word as i32 }
}

/// [`first_integer`] in all lanes.
#[inline(always)]
fn begin<I: Packed>(isa: I, bits: u8, minimums: bool, word: u32) -> I::Integers {
    isa.splat_integer(first_integer::<I>(bits, minimums, word))
}

/// As [`begin`], for the sums of both halves of a band.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // counts are constants
fn begins<I: Packed, const C: usize>(
    isa: I,
    bits: u8,
    minimums: bool,
    words: &[u32; C],
) -> [[I::Integers; C]; 2] {
    let mut n = [[isa.splat_integer(0); C]; 2];
    for c in 0..C {
        let begin = begin(isa, bits, minimums, words[c]);
        (n[0][c], n[1][c]) = (begin, begin);
    }
    n
}

/// Adds what a sum of integers yields: `sum + s · (scale · n)`, where `bias` is
/// [`INTEGER_BIAS_FLOAT`] times the scale.
#[inline(always)]
pub(in super::super) fn scale_in<I: Packed>(
    isa: I,
    n: I::Integers,
    scale: I::Floats,
    bias: I::Floats,
    x: u32,
    sum: I::Floats,
) -> I::Floats {
    // Exactly `scale · n`, rounded once: the product with the large float is exact.
    let scaled = isa.fmsub(isa.as_floats(n), scale, bias);
    isa.fmadd(scaled, float(isa, x), sum)
}

pub(super) fn narrow<I: Packed>(isa: I, band: Band<'_>, x: &[u32], sums: &mut [Sums]) {
    const { assert!(NARROW == 8, "a kernel for each number of columns") };
    by_count!(sums.len(), [1 2 3 4 5 6 7 8], |C| for_integers!(band.layout, |P| isa
        .enter(Narrow::<P, C> { band, x, sums, layout: PhantomData })));
}

/// Multiplies a band by `C` columns.
struct Narrow<'a, P, const C: usize> {
    band: Band<'a>,
    x: &'a [u32],
    sums: &'a mut [Sums],
    layout: PhantomData<P>,
}

impl<I: Packed, P: IntegerLayout, const C: usize> VectorKernel<I> for Narrow<'_, P, C> {
    #[inline(always)]
    fn run(self, isa: I) {
        let Narrow { band, x, sums, .. } = self;
        let (each, lines) = const { (P::SCALES.groups(), P::CODES.lines()) };
        let mut groups = x.as_chunks::<C>().0.chunks_exact(P::CODING.words());
        let distance = if each == 1 { band.prefetch.distance(C) } else { PrefetchDistance::OF_UNITS };
        // The halves of a group: not a constant, so that the second does not begin before the sums
        // of the first have left their registers.
        let parts = black_box(2);
        let sums: &mut [Sums; C] = sums.as_mut_array().expect(COLUMNS);
        let mut all = [[[isa.splat(0.0); 2]; 2]; C];
        for c in 0..C {
            let vectors = I::split(&sums[c]);
            (all[c][0][0], all[c][0][1]) = (isa.load(&vectors[0]), isa.load(&vectors[I::PIECES]));
            if I::PIECES == 2 {
                (all[c][1][0], all[c][1][1]) = (isa.load(&vectors[1]), isa.load(&vectors[3]));
            }
        }
        for unit in units::<P>(band.bytes) {
            let (codes, tail) = unit.split_at(each * lines);
            for (group, codes) in codes.chunks_exact(lines).enumerate() {
                let Some(x) = groups.next() else { break };
                prefetch_group::<P>(codes, tail, group, distance);
                let group = Group { lines: codes, tail, group, x };
                if I::PIECES == 1 {
                    group.add_piece::<I, P>(isa, 0, parts, &mut all);
                } else {
                    for piece in 0..I::PIECES {
                        group.add_piece::<I, P>(isa, piece, parts, &mut all);
                    }
                }
            }
        }
        for c in 0..C {
            let vectors = I::split_mut(&mut sums[c]);
            isa.store(all[c][0][0], &mut vectors[0]);
            isa.store(all[c][0][1], &mut vectors[I::PIECES]);
            if I::PIECES == 2 {
                isa.store(all[c][1][0], &mut vectors[1]);
                isa.store(all[c][1][1], &mut vectors[3]);
            }
        }
    }
}

/// A group of a band and of `C` columns.
#[derive(Clone, Copy)]
struct Group<'a, const C: usize> {
    lines: &'a [Line],
    tail: &'a [Line],
    group: usize,
    x: &'a [[u32; C]],
}

impl<const C: usize> Group<'_, C> {
    /// Adds the multiply-accumulates of one piece of the group's lines.
    #[inline(always)]
    fn add_piece<I: Packed, P: IntegerLayout>(
        self,
        isa: I,
        piece: usize,
        parts: usize,
        all: &mut [BandSums<I::Floats>; C],
    ) {
        match const { (P::CODES, P::CODING.halves) } {
            (Codes::Eight, _) if I::BYTES_IN_ORDER && C <= FEW_COLUMNS => {
                self.add_bytes::<I, P>(isa, piece, all);
            }
            (_, false) => self.add::<I, P, 1, 0>(isa, piece, all),
            (_, true) if C > 4 && !I::BY_COLUMN => {
                for part in 0..parts {
                    match part {
                        0 => self.add::<I, P, 2, 0>(isa, piece, all),
                        _ => self.add::<I, P, 2, 1>(isa, piece, all),
                    }
                }
            }
            (_, true) => {
                self.add::<I, P, 2, 0>(isa, piece, all);
                if I::BY_COLUMN {
                    keep_order();
                }
                self.add::<I, P, 2, 1>(isa, piece, all);
            }
        }
    }

    /// Adds the multiply-accumulates of part `PART` of `PARTS` of the group.
    #[inline(always)]
    fn add<I: Packed, P: IntegerLayout, const PARTS: usize, const PART: usize>(
        self,
        isa: I,
        piece: usize,
        all: &mut [BandSums<I::Floats>; C],
    ) {
        let Group { lines, tail, group, x } = self;
        let (bits, minimums) = const { (P::CODING.bits, P::CODING.minimums) };
        let run = I::run_lines(bits).min(LINES / PARTS);
        // Left to itself the compiler does better where look-ups take the time, and where the
        // sums of all columns do not fit into the registers in any order.
        let look_ups = const { matches!(P::CODES, Codes::Iq4 | Codes::E2m1) };
        let in_order = I::BY_COLUMN && PARTS == 1 && (C <= 4 || run == 1) && !(look_ups && C == 1);
        let zero = isa.splat_integer(0);
        // Behind the lines of the group, where it would take registers from pairs that are added up there.
        let late = I::BY_COLUMN && run == LINES;
        let mut n = [[zero; C]; 2];
        if !late {
            n = begins(isa, bits, minimums, &x[LINES + PART]);
        }
        for first in (PART * LINES / PARTS..(PART + 1) * LINES / PARTS).step_by(run) {
            let mut pairs = [[zero; C]; 2];
            for line in first..first + run {
                let codes = codes::<I, P>(isa, lines, line, piece);
                for c in 0..C {
                    let x = isa.splat_integer(x[line][c] as i32);
                    isa.dot(bits, &mut n[0][c], &mut pairs[0][c], codes[0], x);
                    isa.dot(bits, &mut n[1][c], &mut pairs[1][c], codes[1], x);
                    if run == 1 {
                        isa.flush(&mut n[0][c], pairs[0][c]);
                        isa.flush(&mut n[1][c], pairs[1][c]);
                    }
                    if in_order {
                        keep_order();
                    }
                }
            }
            if late {
                keep_order();
                n = begins(isa, bits, minimums, &x[LINES + PART]);
            }
            if run > 1 {
                for c in 0..C {
                    isa.flush(&mut n[0][c], pairs[0][c]);
                    isa.flush(&mut n[1][c], pairs[1][c]);
                }
            }
        }
        // They lie behind the codes, and lines are best read in their order.
        let scales = scales::<I, P>(isa, tail, group, piece);
        self.add_scaled::<I, P, PARTS, PART>(isa, n[0], [piece, 0], &scales, all);
        self.add_scaled::<I, P, PARTS, PART>(isa, n[1], [piece, 1], &scales, all);
    }

    /// Adds the multiply-accumulates of codes of eight bits with one scale for each row.
    /// Lines are those of the lower half of the band and then of the upper: in this
    /// order memory is read from one end to the other. With more columns than few both
    /// halves at once are faster, as they share the activations' loads.
    #[inline(always)]
    fn add_bytes<I: Packed, P: IntegerLayout>(
        self,
        isa: I,
        piece: usize,
        all: &mut [BandSums<I::Floats>; C],
    ) {
        let Group { lines, tail, group, x } = self;
        let zero = isa.splat_integer(0);
        let mut n = [[zero; C]; 2];
        for (n, lines) in n.iter_mut().zip(lines.chunks_exact(LINES)) {
            for c in 0..C {
                n[c] = begin(isa, P::CODING.bits, P::CODING.minimums, x[LINES][c]);
            }
            for (line, x) in lines.iter().zip(x) {
                let codes = isa.load_piece(line, piece);
                for c in 0..C {
                    let mut pairs = zero;
                    isa.dot(P::CODING.bits, &mut n[c], &mut pairs, codes, isa.splat_integer(x[c] as i32));
                    isa.flush(&mut n[c], pairs);
                }
            }
        }
        let scales = scales::<I, P>(isa, tail, group, piece);
        self.add_scaled::<I, P, 1, 0>(isa, n[0], [piece, 0], &scales, all);
        self.add_scaled::<I, P, 1, 0>(isa, n[1], [piece, 1], &scales, all);
    }

    /// Adds what the sums of integers of one half of the band yield.
    #[inline(always)]
    fn add_scaled<I: Packed, P: IntegerLayout, const PARTS: usize, const PART: usize>(
        self,
        isa: I,
        n: [I::Integers; C],
        [piece, half]: [usize; 2],
        scales: &GroupScales<I::Floats>,
        all: &mut [BandSums<I::Floats>; C],
    ) {
        let x = self.x;
        let scale = scales.scales[PART][half];
        let bias = isa.mul(scale, isa.splat(INTEGER_BIAS_FLOAT));
        for c in 0..C {
            let sum = scale_in(isa, n[c], scale, bias, x[LINES + PARTS][c], all[c][piece][half]);
            all[c][piece][half] = if P::CODING.minimums {
                isa.fnmadd(scales.minimums[PART][half], float(isa, x[LINES + PART][c]), sum)
            } else {
                sum
            };
        }
    }
}

pub(super) fn decode<I: Packed>(isa: I, band: Band<'_>, first: usize, count: usize, panels: &mut Panels) {
    for_integers!(band.layout, |P| isa.enter(Decode::<P> {
        bytes: band.bytes,
        first,
        count,
        panels,
        layout: PhantomData
    }));
}

/// Decodes `count` groups of a band from number `first` on, each into both panels.
struct Decode<'a, P> {
    bytes: &'a [u8],
    first: usize,
    count: usize,
    panels: &'a mut Panels,
    layout: PhantomData<P>,
}

impl<I: Packed, P: IntegerLayout> VectorKernel<I> for Decode<'_, P> {
    #[inline(always)]
    fn run(self, isa: I) {
        let Decode { bytes, first, count, panels: [low, high], .. } = self;
        assert!(count <= DEPTH, "a panel holds {DEPTH} groups");
        let (each, lines) = const { (P::SCALES.groups(), P::CODES.lines()) };
        let mut panels = low[..count].iter_mut().zip(&mut high[..count]);
        let mut skip = first % each;
        for unit in units::<P>(bytes).skip(first / each) {
            let (codes, tail) = unit.split_at(each * lines);
            for (group, codes) in codes.chunks_exact(lines).enumerate().skip(skip) {
                let Some((low, high)) = panels.next() else { return };
                for piece in 0..I::PIECES {
                    let scales = scales::<I, P>(isa, tail, group, piece);
                    put::<I, P>(isa, codes, piece, &scales, [&mut *low, &mut *high]);
                }
            }
            skip = 0;
        }
    }
}

/// Puts one piece of one group into two panels.
#[inline(always)]
fn put<I: Packed, P: IntegerLayout>(
    isa: I,
    lines: &[Line],
    piece: usize,
    scales: &GroupScales<I::Floats>,
    mut to: [&mut PanelGroup; 2],
) {
    // One panel after the other, where few registers hold the masks of both halves at once.
    if I::BY_COLUMN && P::SCALES.groups() == 1 {
        for (half, to) in to.iter_mut().enumerate() {
            for line in 0..LINES {
                isa.store_piece(codes::<I, P>(isa, lines, line, piece)[half], &mut to.codes[line], piece);
            }
        }
    } else {
        for line in 0..LINES {
            let codes = codes::<I, P>(isa, lines, line, piece);
            isa.store_piece(codes[0], &mut to[0].codes[line], piece);
            isa.store_piece(codes[1], &mut to[1].codes[line], piece);
        }
    }
    for (half, to) in to.into_iter().enumerate() {
        for part in 0..P::CODING.sums() {
            isa.store(scales.scales[part][half], &mut I::split_mut(&mut to.scales[part])[piece]);
            if P::CODING.minimums {
                isa.store(scales.minimums[part][half], &mut I::split_mut(&mut to.minimums[part])[piece]);
            }
        }
    }
}

pub(in super::super) fn tile<I: Packed>(isa: I, operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    const { assert!(TILE == 12, "a kernel for each third of a tile") };
    let coding = operands.coding;
    by_count!(sums.len(), [4 8 12], |C| {
        match (I::dot_bits(coding.bits), coding.minimums, coding.halves) {
            (4, false, false) => isa.enter(MatmulTile::<C, PLAIN, 4, false>(operands, sums)),
            (4, true, false) => isa.enter(MatmulTile::<C, PLAIN, 4, true>(operands, sums)),
            (4, false, true) => isa.enter(MatmulTile::<C, HALVED, 4, false>(operands, sums)),
            (4, true, true) => isa.enter(MatmulTile::<C, HALVED, 4, true>(operands, sums)),
            (5, false, false) => isa.enter(MatmulTile::<C, PLAIN, 5, false>(operands, sums)),
            (5, true, false) => isa.enter(MatmulTile::<C, PLAIN, 5, true>(operands, sums)),
            (6, false, true) => isa.enter(MatmulTile::<C, HALVED, 6, false>(operands, sums)),
            (8, false, false) => isa.enter(MatmulTile::<C, PLAIN, 8, false>(operands, sums)),
            _ => unreachable!("no layout has codes as {coding:?}"),
        }
    });
}

/// Adds the multiply-accumulates of both halves of a band with `C` columns.
struct MatmulTile<'a, const C: usize, const ROWS: usize, const BITS: u8, const MINIMUMS: bool>(
    MatmulTileOperands<'a>,
    &'a mut [Sums],
);

impl<I: Packed, const C: usize, const ROWS: usize, const BITS: u8, const MINIMUMS: bool> VectorKernel<I>
    for MatmulTile<'_, C, ROWS, BITS, MINIMUMS>
{
    #[inline(always)]
    fn run(self, isa: I) {
        if C == TILE && I::tile_columns(BITS) == 6 {
            self.add::<I, 6>(isa);
        } else {
            self.add::<I, 4>(isa);
        }
    }
}

impl<const C: usize, const ROWS: usize, const BITS: u8, const MINIMUMS: bool>
    MatmulTile<'_, C, ROWS, BITS, MINIMUMS>
{
    /// Adds the multiply-accumulates of `C` columns, `N` columns and two vectors of rows at a time, which
    /// share each broadcast of an activation.
    #[inline(always)]
    fn add<I: Packed, const N: usize>(self, isa: I) {
        let MatmulTile(MatmulTileOperands { panels: [low, high], groups, x, next, .. }, sums) = self;
        let (low, high) = (&low[..groups], &high[..groups]);
        let turns = turns::<I, BITS>(if ROWS == HALVED { 2 } else { 1 });
        let mut next = NextLines::new(next, groups * I::PIECES * (C / N));
        for vector in (0..2 * I::PIECES).step_by(2) {
            // With two pieces in a line both vectors are of the same half of the band.
            let halves = match (I::PIECES, vector) {
                (1, _) => [low, high],
                (_, 0) => [low, low],
                _ => [high, high],
            };
            for column in (0..C).step_by(N) {
                let sums = &mut sums[column..column + N];
                let mut all = [[isa.splat(0.0); N]; 2];
                for (v, all) in all.iter_mut().enumerate() {
                    for (all, sums) in all.iter_mut().zip(&*sums) {
                        *all = isa.load(&I::split(sums)[vector + v]);
                    }
                }
                let panels = halves[0].iter().zip(halves[1]);
                for ((first, second), x) in panels.zip(x.as_chunks::<C>().0.as_chunks::<ROWS>().0) {
                    if vector == 0 && column == 0 {
                        prefetch_next(x, groups);
                    }
                    next.prefetch();
                    let group = PanelColumns::<C, ROWS> { weights: [first, second], x, column, turns };
                    if ROWS == HALVED {
                        group.add::<I, N, BITS, MINIMUMS, 2, 0>(isa, &mut all);
                        group.add::<I, N, BITS, MINIMUMS, 2, 1>(isa, &mut all);
                    } else {
                        group.add::<I, N, BITS, MINIMUMS, 1, 0>(isa, &mut all);
                    }
                }
                for (v, all) in all.iter().enumerate() {
                    for (all, sums) in all.iter().zip(&mut *sums) {
                        isa.store(*all, &mut I::split_mut(sums)[vector + v]);
                    }
                }
            }
        }
    }
}

/// Weights that are decoded later. A tile prefetches a few of their lines with each group, as a processor has a limited
/// number of reads under way: many at once would wait.
pub(in super::super) struct NextLines<'a> {
    lines: slice::Chunks<'a, u8>,
    at_once: usize,
}

impl<'a> NextLines<'a> {
    /// The lines of `next`, to be prefetched in `times` turns.
    #[inline(always)]
    pub fn new(next: &'a [u8], times: usize) -> NextLines<'a> {
        NextLines { lines: next.chunks(LINE), at_once: next.len().div_ceil(LINE).div_ceil(times.max(1)) }
    }

    /// Prefetches the lines of a turn into L2.
    #[inline(always)]
    pub fn prefetch(&mut self) {
        for line in self.lines.by_ref().take(self.at_once) {
            prefetch_address_l2(line.as_ptr());
        }
    }
}

/// Prefetches the activations `groups` groups further: those of the next tile, which
/// lie behind this one's. They come from L2 or L3, and their lines are too far
/// apart in time for the processor's own prefetching.
#[inline(always)]
pub(in super::super) fn prefetch_next<const C: usize, const ROWS: usize>(
    x: &[[u32; C]; ROWS],
    groups: usize,
) {
    let next = x.as_ptr().wrapping_add(groups * ROWS).cast::<u8>();
    for line in (0..size_of_val(x)).step_by(LINE) {
        prefetch_address_l1(next.wrapping_add(line));
    }
}

/// A decoded group for two vectors of rows, and `C` columns.
#[derive(Clone, Copy)]
struct PanelColumns<'a, const C: usize, const ROWS: usize> {
    weights: [&'a PanelGroup; 2],
    x: &'a [[u32; C]; ROWS],
    /// The first column that is multiplied.
    column: usize,
    /// Those of [`turns`].
    turns: usize,
}

/// Turns of the loop over the lines of one of `parts` parts of a group: the lines of a run behind its first
/// in [`PanelColumns::sums_of_pairs`], the runs in [`PanelColumns::sums`]. Not a constant where registers are
/// few: the compiler would unroll the loop and mix what is in it, and then sums no longer stay in registers.
#[inline(always)]
fn turns<I: Packed, const BITS: u8>(parts: usize) -> usize {
    let run = I::run_lines(BITS).min(LINES / parts);
    let turns = if run > 2 { run - 1 } else { LINES / parts / run };
    if I::BY_COLUMN { black_box(turns) } else { turns }
}

impl<const C: usize, const ROWS: usize> PanelColumns<'_, C, ROWS> {
    /// Adds the multiply-accumulates of part `PART` of `PARTS`, which has a scale of its own.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // counts are constants
    fn add<
        I: Packed,
        const N: usize,
        const BITS: u8,
        const MINIMUMS: bool,
        const PARTS: usize,
        const PART: usize,
    >(
        self,
        isa: I,
        all: &mut [[I::Floats; N]; 2],
    ) {
        let PanelColumns { weights, x, column, .. } = self;
        let lines = PART * LINES / PARTS..(PART + 1) * LINES / PARTS;
        let n = if I::run_lines(BITS) > 2 {
            self.sums_of_pairs::<I, N, BITS, MINIMUMS>(isa, lines, LINES + PART)
        } else {
            self.sums::<I, N, BITS, MINIMUMS>(isa, lines.start, LINES + PART)
        };
        for v in 0..2 {
            let piece = v * (I::PIECES - 1);
            let scale = isa.load(&I::split(&weights[v].scales[PART])[piece]);
            let bias = isa.mul(scale, isa.splat(INTEGER_BIAS_FLOAT));
            for c in 0..N {
                let sum = scale_in(isa, n[v][c], scale, bias, x[ROWS - 1][column + c], all[v][c]);
                all[v][c] = if MINIMUMS {
                    let minimum = isa.load(&I::split(&weights[v].minimums[PART])[piece]);
                    isa.fnmadd(minimum, float(isa, x[LINES + PART][column + c]), sum)
                } else {
                    sum
                };
            }
        }
    }

    /// The sums of integers from line `first` on, with one line or two before a flush: sums stay in registers,
    /// pairs are gone after each column. Row `begin` of the words is what sums begin with.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // counts are constants
    fn sums<I: Packed, const N: usize, const BITS: u8, const MINIMUMS: bool>(
        self,
        isa: I,
        first: usize,
        begin: usize,
    ) -> [[I::Integers; N]; 2] {
        let (run, zero) = (I::run_lines(BITS), isa.splat_integer(0));
        let mut n = [[zero; N]; 2];
        for c in 0..N {
            let begin = self.begin::<I, BITS, MINIMUMS>(isa, begin, c);
            (n[0][c], n[1][c]) = (begin, begin);
        }
        for turn in 0..self.turns {
            let line = first + turn * run;
            // SAFETY: `turns` counts the runs of a part, whose lines are below `LINES`.
            let first_line = unsafe { self.line(isa, line) };
            // SAFETY: as above.
            let lines = [first_line, unsafe { self.line(isa, line + run - 1) }];
            for c in 0..N {
                let mut pairs = [zero; 2];
                for (codes, x) in &lines[..run] {
                    let x = isa.splat_integer(x[self.column + c] as i32);
                    isa.dot(BITS, &mut n[0][c], &mut pairs[0], codes[0], x);
                    isa.dot(BITS, &mut n[1][c], &mut pairs[1], codes[1], x);
                }
                isa.flush(&mut n[0][c], pairs[0]);
                isa.flush(&mut n[1][c], pairs[1]);
                if I::BY_COLUMN {
                    keep_order();
                }
            }
        }
        n
    }

    /// As [`PanelColumns::sums`], with more lines before a flush: pairs stay in registers. What sums begin with
    /// is read behind the lines, else it would take the registers of pairs.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // counts are constants
    fn sums_of_pairs<I: Packed, const N: usize, const BITS: u8, const MINIMUMS: bool>(
        self,
        isa: I,
        lines: Range<usize>,
        begin: usize,
    ) -> [[I::Integers; N]; 2] {
        let zero = isa.splat_integer(0);
        let mut n = [[zero; N]; 2];
        for first in lines.clone().step_by(I::run_lines(BITS)) {
            // The first line by itself, so that nothing is added to zero.
            let mut pairs = [[zero; N]; 2];
            // SAFETY: `first` is a line of the part, and those are below `LINES`.
            unsafe { self.add_line::<I, N, BITS>(isa, first, &mut pairs) };
            for turn in 0..self.turns {
                // SAFETY: `turns` counts the other lines of a run, which are lines of the part, too.
                unsafe { self.add_line::<I, N, BITS>(isa, first + 1 + turn, &mut pairs) };
            }
            keep_order();
            for c in 0..N {
                if first == lines.start {
                    let begin = self.begin::<I, BITS, MINIMUMS>(isa, begin, c);
                    (n[0][c], n[1][c]) = (begin, begin);
                }
                isa.flush(&mut n[0][c], pairs[0][c]);
                isa.flush(&mut n[1][c], pairs[1][c]);
            }
        }
        n
    }

    /// Adds the multiply-accumulates of a line to pairs.
    ///
    /// # Safety
    /// `line` is below [`LINES`].
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // counts are constants
    unsafe fn add_line<I: Packed, const N: usize, const BITS: u8>(
        self,
        isa: I,
        line: usize,
        pairs: &mut [[I::Integers; N]; 2],
    ) {
        // SAFETY: as the caller says.
        let (codes, x) = unsafe { self.line(isa, line) };
        let mut untouched = codes[0];
        for c in 0..N {
            let x = isa.splat_integer(x[self.column + c] as i32);
            isa.dot(BITS, &mut untouched, &mut pairs[0][c], codes[0], x);
            isa.dot(BITS, &mut untouched, &mut pairs[1][c], codes[1], x);
        }
    }

    /// What the sums of column `c` begin with, given the row of the words.
    #[inline(always)]
    fn begin<I: Packed, const BITS: u8, const MINIMUMS: bool>(
        self,
        isa: I,
        row: usize,
        c: usize,
    ) -> I::Integers {
        begin(isa, BITS, MINIMUMS, self.x[row][self.column + c])
    }

    /// The codes of line `line` of both vectors, and the words of its columns. Checks would tell the compiler how many turns
    /// there can be, and it would unroll them.
    ///
    /// # Safety
    /// `line` is below [`LINES`].
    #[inline(always)]
    unsafe fn line<I: Packed>(&self, isa: I, line: usize) -> ([I::Integers; 2], &[u32; C]) {
        debug_assert!(line < LINES, "a turn for each line at most");
        let [first, second] = self.weights;
        // SAFETY: the caller says that `line` is below `LINES`, the number of lines.
        let first = unsafe { first.codes.get_unchecked(line) };
        // SAFETY: as above.
        let second = unsafe { second.codes.get_unchecked(line) };
        // SAFETY: as above; words have more rows than that.
        let x = unsafe { self.x.get_unchecked(line) };
        ([isa.load_piece(first, 0), isa.load_piece(second, I::PIECES - 1)], x)
    }
}
