//! Multiplication of packed floats by floats, with fused multiply-adds.
//!
//! ```text
//! for each column of weights:         vectors of 16 rows with AVX-512, of 8 with AVX2, 1, 2 or 4 at once
//!     for each column c:              sums[c] += weights · x[c]
//! ```
//! Each sum adds one column of weights after the other, in all tables and for any number of columns.

use std::hint::black_box;
use std::marker::PhantomData;

use super::packed::{COLUMNS, float, prefetch_lines};
use super::{Packed, VectorKernel, by_count};
use crate::kernels::layout::{LINE, Line};
use crate::kernels::packed::{Band, FLOAT_DEPTH, Layout, NARROW, Sums};
use crate::kernels::prefetch::PrefetchChoice;

/// The upper half of a lane.
const UPPER: i32 = 0xffff_0000_u32 as i32;

/// How floats lie in lines.
trait FloatLayout {
    /// Lines of a unit.
    const LINES: usize;
    /// Columns of a unit.
    const COLUMNS: usize;

    /// Vector `vector` of the rows of a column of a unit. With `few_registers` no
    /// constant of it takes one through a whole loop.
    fn column<I: Packed>(
        isa: I,
        unit: &[Line],
        column: usize,
        vector: usize,
        few_registers: bool,
    ) -> I::Floats;
}

struct Bf16;

impl FloatLayout for Bf16 {
    const LINES: usize = 2;
    const COLUMNS: usize = 2;

    #[inline(always)]
    fn column<I: Packed>(
        isa: I,
        unit: &[Line],
        column: usize,
        vector: usize,
        few_registers: bool,
    ) -> I::Floats {
        let lanes = isa.load_piece(&unit[vector / I::PIECES], vector % I::PIECES);
        isa.as_floats(if column == 0 {
            isa.shift_left(lanes, 16)
        } else {
            isa.and_integers(lanes, isa.splat_integer(if few_registers { black_box(UPPER) } else { UPPER }))
        })
    }
}

/// As [`Bf16`]; of a pair the second column comes first.
struct Bf16Swapped;

impl FloatLayout for Bf16Swapped {
    const LINES: usize = 2;
    const COLUMNS: usize = 2;

    #[inline(always)]
    fn column<I: Packed>(
        isa: I,
        unit: &[Line],
        column: usize,
        vector: usize,
        few_registers: bool,
    ) -> I::Floats {
        Bf16::column(isa, unit, 1 - column, vector, few_registers)
    }
}

struct F16;

impl FloatLayout for F16 {
    const LINES: usize = 1;
    const COLUMNS: usize = 1;

    #[inline(always)]
    fn column<I: Packed>(isa: I, unit: &[Line], _: usize, vector: usize, _: bool) -> I::Floats {
        isa.read_f16(&unit[0][2 * I::LANES * vector..])
    }
}

struct F32;

impl FloatLayout for F32 {
    const LINES: usize = 2;
    const COLUMNS: usize = 1;

    #[inline(always)]
    fn column<I: Packed>(isa: I, unit: &[Line], _: usize, vector: usize, _: bool) -> I::Floats {
        isa.as_floats(isa.load_piece(&unit[vector / I::PIECES], vector % I::PIECES))
    }
}

pub(super) fn floats<I: Packed>(isa: I, band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]) {
    let (unit, bytes) = band.layout.unit();
    let (lines, prefetch) = (band.bytes[first / unit * bytes..].as_chunks::<LINE>().0, band.prefetch);
    by_count!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| match band.layout {
        Layout::Bf16 => by_vectors::<I, Bf16, C>(isa, lines, prefetch, x, sums),
        Layout::F16 => by_vectors::<I, F16, C>(isa, lines, prefetch, x, sums),
        Layout::F32 => by_vectors::<I, F32, C>(isa, lines, prefetch, x, sums),
        _ => unreachable!("only layouts of floats are multiplied as they are"),
    })
}

/// Adds the multiply-accumulates of a band, all its vectors at once with few columns, fewer
/// with more, and half of the columns at once where the sums of all need more registers than there are.
fn by_vectors<I: Packed, L: FloatLayout, const C: usize>(
    isa: I,
    lines: &[Line],
    prefetch: PrefetchChoice,
    x: &[u32],
    sums: &mut [Sums],
) {
    let at_once = I::vectors_at_once(C);
    for first in (0..2 * I::PIECES).step_by(at_once) {
        let operands = |column| {
            // A tile reads the same lines again from L1.
            let is_first = first == 0 && column == 0;
            let prefetch = if is_first || C <= NARROW { prefetch } else { PrefetchChoice::NONE };
            FloatOperands::<L> { lines, prefetch, x, first, column, layout: PhantomData }
        };
        match (at_once, C) {
            (4, _) => isa.enter(Floats::<L, C, C, 4>(operands(0), sums)),
            (2, 12) if I::REGISTERS == 16 => {
                let (left, right) = sums.split_at_mut(6);
                isa.enter(Floats::<L, C, 6, 2>(operands(0), left));
                isa.enter(Floats::<L, C, 6, 2>(operands(6), right));
            }
            (2, 8) if I::REGISTERS == 16 => {
                let (left, right) = sums.split_at_mut(4);
                isa.enter(Floats::<L, C, 4, 2>(operands(0), left));
                isa.enter(Floats::<L, C, 4, 2>(operands(4), right));
            }
            (2, _) => isa.enter(Floats::<L, C, C, 2>(operands(0), sums)),
            _ => isa.enter(Floats::<L, C, C, 1>(operands(0), sums)),
        }
    }
}

struct FloatOperands<'a, L> {
    lines: &'a [Line],
    prefetch: PrefetchChoice,
    x: &'a [u32],
    /// The first vector of rows.
    first: usize,
    /// The first column that is multiplied.
    column: usize,
    layout: PhantomData<L>,
}

/// Adds the multiply-accumulates of `V` vectors of rows with `N` of `C` columns.
struct Floats<'a, L, const C: usize, const N: usize, const V: usize>(FloatOperands<'a, L>, &'a mut [Sums]);

impl<I: Packed, L: FloatLayout, const C: usize, const N: usize, const V: usize> VectorKernel<I>
    for Floats<'_, L, C, N, V>
{
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // counts are constants
    fn run(self, isa: I) {
        let FloatOperands { lines, prefetch, x, first, column, .. } = self.0;
        // A constant where a band is done at once.
        let first = if V == 2 * I::PIECES { 0 } else { first };
        let begin = if N == C { 0 } else { column };
        let sums: &mut [Sums; N] = self.1.as_mut_array().expect(COLUMNS);
        let mut all = [[isa.splat(0.0); V]; N];
        for c in 0..N {
            for (vector, all) in all[c].iter_mut().enumerate() {
                *all = isa.load(&I::split(&sums[c])[first + vector]);
            }
        }
        let distance = prefetch.distance(C);
        let units = lines.chunks_exact(L::LINES);
        for (unit, x) in units.zip(x.as_chunks::<C>().0.chunks_exact(L::COLUMNS)) {
            prefetch_lines(unit, distance);
            for column in 0..L::COLUMNS {
                let x: &[u32; N] = x[column][begin..].first_chunk().expect(COLUMNS);
                // The weights of two vectors stay in registers, those of more do not.
                if V == 2 {
                    let lower = L::column(isa, unit, column, first, N < C);
                    let upper = L::column(isa, unit, column, first + 1, N < C);
                    for c in 0..N {
                        let x = float(isa, x[c]);
                        all[c][0] = isa.fmadd(lower, x, all[c][0]);
                        all[c][V - 1] = isa.fmadd(upper, x, all[c][V - 1]);
                    }
                } else {
                    for vector in 0..V {
                        let weights = L::column(isa, unit, column, first + vector, N < C);
                        for c in 0..N {
                            all[c][vector] = isa.fmadd(weights, float(isa, x[c]), all[c][vector]);
                        }
                    }
                }
            }
        }
        for c in 0..N {
            for (vector, all) in all[c].into_iter().enumerate() {
                isa.store(all, &mut I::split_mut(&mut sums[c])[first + vector]);
            }
        }
    }
}

/// The lines of a band of bf16 numbers from column `first` on.
///
/// # Panics
/// When the band is of another layout.
pub(in super::super) fn bf16_lines(band: Band<'_>, first: usize) -> &[Line] {
    assert_eq!(band.layout, Layout::Bf16, "bf16 numbers are multiplied by bf16 numbers");
    &band.bytes.as_chunks().0[first..]
}

/// Adds the multiply-accumulates of a band of bf16 numbers with bf16 numbers, which become
/// floats first: for processors without an instruction for pairs of them.
pub(super) fn bf16<I: Packed>(isa: I, band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]) {
    let lines = bf16_lines(band, first).chunks(FLOAT_DEPTH);
    by_count!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| {
        let mut floats = [[[0; C]; 2]; FLOAT_DEPTH / 2];
        for (lines, words) in lines.zip(x.as_chunks::<C>().0.chunks(FLOAT_DEPTH / 2)) {
            let floats = &mut floats[..words.len()];
            isa.enter(Widen { words, floats });
            let x = floats.as_flattened().as_flattened();
            by_vectors::<I, Bf16Swapped, C>(isa, lines, band.prefetch, x, sums);
        }
    });
}

/// Makes rows of words of two bf16 numbers rows of floats: of each row the upper halves,
/// then the lower ones.
struct Widen<'a, const C: usize> {
    words: &'a [[u32; C]],
    floats: &'a mut [[[u32; C]; 2]],
}

impl<I: Packed, const C: usize> VectorKernel<I> for Widen<'_, C> {
    #[inline(always)]
    fn run(self, _: I) {
        for (words, [upper, lower]) in self.words.iter().zip(self.floats) {
            for ((word, upper), lower) in words.iter().zip(upper).zip(lower) {
                (*upper, *lower) = (word & 0xffff_0000, word << 16);
            }
        }
    }
}
