//! Tiles by instructions that multiply with one of four words of a register, or with two columns.
//!
//! ```text
//! for each 8 rows of a band, each group:
//!     sdot     each line:        2 registers of codes, of 4 rows, by 3 of words, of 4 columns:  24 instructions
//!     smmla    each two lines:   4 registers of codes, of 2 rows, by 6 of words, of 2 columns:  24 instructions
//!     each column c:             sums[c] += s[c] · (scale · n[c])
//! ```
//! The sums of integers of 8 rows and 12 columns take 24 of 32 registers. From `n` on the operations are
//! those of all tables, so are the bits. Bytes moved: the panels and, for each 8 rows, the activations, from L1; with
//! `smmla` the words of activations are arranged once for all rows, 6 KB at most.

use std::hint::black_box;

use super::{ByteProduct, Floats, Integers, Neon};
use crate::kernels::packed::{DEPTH, INTEGER_BIAS_FLOAT, LINE, MatmulTileOperands, PanelGroup, Sums, TILE};
use crate::kernels::vector::packed::{
    HALVED, LINES, NextLines, PLAIN, first_integer, float, prefetch_next, scale_in,
};
use crate::kernels::vector::{Isa, Packed, VectorKernel, Vectors, by_count};

/// How the integers of a tile are multiplied.
pub(super) trait TileProduct: ByteProduct {
    /// Whether `multiply` takes words in an order of its own.
    const ARRANGES: bool;
    /// Brings the words of the lines of a group into the order of `multiply`; called only if that is one of its own.
    fn arrange<const C: usize>(isa: Neon<Self>, x: &[[u32; C]], to: &mut [[u32; C]]);
    /// The sums of products of 8 rows with `C` columns, a multiple of four: those of piece `piece` of lines of
    /// codes of `BITS` bits with as many rows of arranged words, an even number. A column's sums begin with `begin`.
    fn multiply<const C: usize, const BITS: u8>(
        isa: Neon<Self>,
        lines: &[[u8; LINE]],
        piece: usize,
        x: &[[u32; C]],
        begin: [i32; C],
    ) -> [Integers; C];
}

/// Adds to `sums` the matmul of groups of panels with 4, 8 or 12 columns.
pub(super) fn tile<D: TileProduct>(isa: Neon<D>, operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    const { assert!(TILE == 12, "a kernel for each third of a tile") };
    let coding = operands.coding;
    by_count!(sums.len(), [4 8 12], |C| {
        match (coding.bits == 8, coding.minimums, coding.halves) {
            (false, false, false) => isa.enter(NeonTile::<C, PLAIN, 4, false>(operands, sums)),
            (false, true, false) => isa.enter(NeonTile::<C, PLAIN, 4, true>(operands, sums)),
            (false, false, true) => isa.enter(NeonTile::<C, HALVED, 4, false>(operands, sums)),
            (false, true, true) => isa.enter(NeonTile::<C, HALVED, 4, true>(operands, sums)),
            (true, false, false) => isa.enter(NeonTile::<C, PLAIN, 8, false>(operands, sums)),
            _ => unreachable!("no layout has codes as {coding:?}"),
        }
    });
}

/// Adds the multiply-accumulates of both halves of a band with `C` columns.
struct NeonTile<'a, const C: usize, const ROWS: usize, const BITS: u8, const MINIMUMS: bool>(
    MatmulTileOperands<'a>,
    &'a mut [Sums],
);

impl<D: TileProduct, const C: usize, const ROWS: usize, const BITS: u8, const MINIMUMS: bool>
    VectorKernel<Neon<D>> for NeonTile<'_, C, ROWS, BITS, MINIMUMS>
{
    #[inline(always)]
    fn run(self, isa: Neon<D>) {
        let NeonTile(MatmulTileOperands { panels, groups, x, next, .. }, sums) = self;
        let x = &x.as_chunks::<C>().0.as_chunks::<ROWS>().0[..groups];
        let mut arranged = [[[0; C]; LINES]; DEPTH];
        if D::ARRANGES {
            for (x, to) in x.iter().zip(&mut arranged) {
                D::arrange(isa, &x[..LINES], to);
            }
        }
        let mut next = NextLines::new(next, groups * 2 * Neon::<D>::PIECES);
        for vector in 0..2 * Neon::<D>::PIECES {
            let panel = &panels[vector / Neon::<D>::PIECES][..groups];
            let mut all = [isa.splat(0.0); C];
            for (all, sums) in all.iter_mut().zip(&*sums) {
                *all = isa.load(&Neon::<D>::split(sums)[vector]);
            }
            for ((weights, x), words) in panel.iter().zip(x).zip(&arranged) {
                if vector == 0 {
                    prefetch_next(x, groups);
                }
                next.prefetch();
                let words = if D::ARRANGES { &words[..] } else { &x[..LINES] };
                let group = TileGroup { weights, words, x, piece: vector % Neon::<D>::PIECES };
                if ROWS == HALVED {
                    // Not a constant, so that the second half does not begin before the sums of the first
                    // have left their registers.
                    for part in 0..black_box(2) {
                        match part {
                            0 => group.add::<D, BITS, MINIMUMS, 2, 0>(isa, &mut all),
                            _ => group.add::<D, BITS, MINIMUMS, 2, 1>(isa, &mut all),
                        }
                    }
                } else {
                    group.add::<D, BITS, MINIMUMS, 1, 0>(isa, &mut all);
                }
            }
            for (all, sums) in all.iter().zip(&mut *sums) {
                isa.store(*all, &mut Neon::<D>::split_mut(sums)[vector]);
            }
        }
    }
}

/// One piece of a decoded group of half a band, and `C` columns.
#[derive(Clone, Copy)]
struct TileGroup<'a, const C: usize, const ROWS: usize> {
    weights: &'a PanelGroup,
    words: &'a [[u32; C]],
    x: &'a [[u32; C]; ROWS],
    piece: usize,
}

impl<const C: usize, const ROWS: usize> TileGroup<'_, C, ROWS> {
    /// Adds the multiply-accumulates of part `PART` of `PARTS`, which has a scale of its own.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // counts are constants
    fn add<D: TileProduct, const BITS: u8, const MINIMUMS: bool, const PARTS: usize, const PART: usize>(
        self,
        isa: Neon<D>,
        all: &mut [Floats; C],
    ) {
        let TileGroup { weights, words, x, piece } = self;
        let lines = PART * LINES / PARTS..(PART + 1) * LINES / PARTS;
        let mut begin = [0; C];
        for c in 0..C {
            begin[c] = first_integer::<Neon<D>>(BITS, MINIMUMS, x[LINES + PART][c]);
        }
        let n = D::multiply::<C, BITS>(isa, &weights.codes[lines.clone()], piece, &words[lines], begin);
        let scale = isa.load(&Neon::<D>::split(&weights.scales[PART])[piece]);
        let minimum = isa.load(&Neon::<D>::split(&weights.minimums[PART])[piece]);
        let bias = isa.mul(scale, isa.splat(INTEGER_BIAS_FLOAT));
        for c in 0..C {
            let sum = scale_in(isa, n[c], scale, bias, x[ROWS - 1][c], all[c]);
            all[c] = if MINIMUMS { isa.fnmadd(minimum, float(isa, x[LINES + PART][c]), sum) } else { sum };
        }
    }
}
