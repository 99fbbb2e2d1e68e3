//! The product of a band of packed weights with packed rows, in one thread.

use std::ops::Range;

use crate::activations::{ActivationKind, PackedActivations, pack_block, padded};
use crate::kernels::Table;
use crate::kernels::packed::{
    BAND, Band, DEPTH, FLOAT_DEPTH, FloatKernel, GROUP, LINE, MatmulTileOperands, NARROW, PanelGroup, TILE,
};
use crate::kernels::prefetch::{PrefetchChoice, PrefetchDistance};
use crate::packed_matrix::PackedMatrix;

/// Packs `rows` rows of `width` activations in this thread.
pub(super) fn pack_rows<'a>(
    table: &Table,
    kind: ActivationKind,
    rows: usize,
    row: impl Fn(usize) -> &'a [f32],
    words: &mut [u32],
) {
    let (terms, each) = (kind.terms(), kind.block_words());
    let (all, padded) = (rows * terms, padded(rows * terms));
    for first in (0..padded).step_by(TILE) {
        let columns = TILE.min(padded - first);
        let part = first * each..(first + columns) * each;
        if first + columns > all {
            words.chunks_exact_mut(padded * each).for_each(|block| block[part.clone()].fill(0));
        }
        for column in (0..columns.min(all - first)).step_by(terms) {
            let values = row((first + column) / terms).chunks(kind.depth());
            for (block, values) in words.chunks_exact_mut(padded * each).zip(values) {
                pack_block(table, kind, values, (column, columns), &mut block[part.clone()]);
            }
        }
    }
}

/// The kernel of a table for activations of its kind.
pub(super) fn fp16_kernel(table: &Table) -> FloatKernel {
    table.matmul.fp16.expect("such activations are packed for tables that have the kernel")
}

/// Packed rows and the matrix that they are multiplied by.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub x: PackedActivations<'a>,
    pub weight: &'a PackedMatrix,
}

impl Product<'_> {
    /// Sets the sums, which must be zeros, of a band with all columns of activations: as many sums as there are columns
    /// with their padding.
    pub fn set(&self, table: &Table, band: usize, sums: &mut [[f32; BAND]]) {
        assert!(!self.weight.is_sparse(), "matrices of adapters are packed whole");
        self.add(table, band, 0..self.x.blocks(), sums);
    }

    /// Adds the products of some blocks of a band, all of them if there are few rows, to the sums of all columns.
    pub fn add(&self, table: &Table, band: usize, blocks: Range<usize>, sums: &mut [[f32; BAND]]) {
        if self.x.columns() <= NARROW {
            self.narrow(table, band, sums);
        } else {
            self.multiply(table, band, blocks, sums);
        }
    }

    /// Adds the products of a band with few rows.
    pub fn narrow(&self, table: &Table, band: usize, sums: &mut [[f32; BAND]]) {
        let (weights, x) = (self.weight.band(band), self.x);
        match x.kind {
            ActivationKind::Integers(_) | ActivationKind::IntegersTwice(_) => {
                (table.matmul.narrow)(weights, x.whole(), sums)
            }
            ActivationKind::Bf16Pairs => (table.matmul.bf16)(weights, 0, x.whole(), sums),
            ActivationKind::Fp16Groups => fp16_kernel(table)(weights, 0, x.whole(), sums),
            _ if self.weight.is_float() => {
                (table.matmul.floats)(weights, 0, x.whole(), sums);
            }
            _ => self.multiply(table, band, 0..x.blocks(), sums),
        }
    }

    /// Adds the products of some blocks of a band with all columns.
    pub fn multiply(&self, table: &Table, band: usize, blocks: Range<usize>, sums: &mut [[f32; BAND]]) {
        let weights = self.weight.band(band);
        match self.x.kind {
            ActivationKind::Integers(coding) | ActivationKind::IntegersTwice(coding) => {
                let (mut panels, mut signed) = ([[PanelGroup::ZERO; DEPTH]; 2], None);
                for block in blocks.clone() {
                    let groups = DEPTH.min(self.weight.columns.div_ceil(GROUP) - block * DEPTH);
                    (table.matmul.decode)(weights, block * DEPTH, groups, &mut panels);
                    let tiles = self.x.tiles().count().max(1);
                    let signed = table.matmul.signed_for(tiles, coding, (&panels, groups), &mut signed);
                    let next = self.next_block(band, block, &blocks);
                    let mut next = next.chunks(next.len().div_ceil(tiles).next_multiple_of(LINE).max(LINE));
                    for tile in self.x.tiles() {
                        let x = self.x.part(block, tile);
                        let (sums, next) =
                            (&mut sums[tile.0..tile.0 + tile.1], next.next().unwrap_or_default());
                        (table.matmul.tile)(
                            MatmulTileOperands { coding, panels: &panels, signed, groups, x, next },
                            sums,
                        );
                    }
                }
            }
            ActivationKind::Bf16Pairs => self.multiply_floats(table.matmul.bf16, band, blocks, sums),
            ActivationKind::Fp16Groups => self.multiply_floats(fp16_kernel(table), band, blocks, sums),
            ActivationKind::Floats | ActivationKind::Rounded(_) if self.weight.is_float() => {
                self.multiply_floats(table.matmul.floats, band, blocks, sums);
            }
            ActivationKind::Floats | ActivationKind::Rounded(_) => {
                let mut lines = [0; FLOAT_DEPTH * 2 * LINE];
                for block in blocks {
                    let first = block * FLOAT_DEPTH;
                    let columns = first..self.weight.columns.min(first + FLOAT_DEPTH);
                    let decoded = self.weight.decoded(table, band, columns, &mut lines);
                    self.multiply_block(table.matmul.floats, (decoded, 0), block, sums);
                }
            }
        }
    }

    /// The weights that follow block `block` of some blocks of a band: the next one's, or those of the next band. Another matrix, or
    /// another thread, may come between.
    fn next_block(&self, band: usize, block: usize, blocks: &Range<usize>) -> &[u8] {
        let (band, block) = if block + 1 < blocks.end { (band, block + 1) } else { (band + 1, blocks.start) };
        let depth = self.x.kind.depth();
        self.weight.columns_to_prefetch(band, block * depth..(block + 1) * depth)
    }

    /// Adds the products of some blocks of a band of floats. The first tile of a block prefetches the next block.
    fn multiply_floats(
        &self,
        kernel: FloatKernel,
        band: usize,
        blocks: Range<usize>,
        sums: &mut [[f32; BAND]],
    ) {
        let weights = self.weight.band(band);
        for block in blocks.clone() {
            let own = self.weight.columns_to_prefetch(band, block * FLOAT_DEPTH..self.weight.columns);
            let next = self.next_block(band, block, &blocks);
            // A prefetch may have any address, so it does not matter if the thread has just changed its socket.
            let far =
                if next.is_empty() { 0 } else { next.as_ptr().addr().wrapping_sub(own.as_ptr().addr()) };
            let distance = PrefetchDistance { far, ..PrefetchDistance::OF_UNITS };
            let weights = Band { prefetch: PrefetchChoice::all(distance), ..weights };
            self.multiply_block(kernel, (weights, block * FLOAT_DEPTH), block, sums);
        }
    }

    /// Adds the products of floats from column `first` on with one block of all columns of activations.
    fn multiply_block(
        &self,
        kernel: FloatKernel,
        (mut weights, first): (Band<'_>, usize),
        block: usize,
        sums: &mut [[f32; BAND]],
    ) {
        for tile in self.x.tiles() {
            kernel(weights, first, self.x.part(block, tile), &mut sums[tile.0..tile.0 + tile.1]);
            weights.prefetch = PrefetchChoice::NONE; // the other tiles read the same lines
        }
    }
}
