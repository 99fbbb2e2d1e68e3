//! The product of a band of packed weights with packed rows, in one thread.

use std::ops::Range;

use crate::activations::{ActivationKind, PackedActivations, pack_block, padded};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, Band, DEPTH, FLOAT_DEPTH, GROUP, LINE, NARROW, PanelGroup, TILE};
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
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                for block in blocks {
                    let groups = DEPTH.min(self.weight.columns.div_ceil(GROUP) - block * DEPTH);
                    (table.matmul.decode)(weights, block * DEPTH, groups, &mut panels);
                    for tile in self.x.tiles() {
                        let x = self.x.part(block, tile);
                        let sums = &mut sums[tile.0..tile.0 + tile.1];
                        (table.matmul.tile)(coding, &panels, groups, x, sums);
                    }
                }
            }
            ActivationKind::Bf16Pairs => {
                for (block, tile) in blocks.flat_map(|block| self.x.tiles().map(move |tile| (block, tile))) {
                    let sums = &mut sums[tile.0..tile.0 + tile.1];
                    (table.matmul.bf16)(weights, block * FLOAT_DEPTH, self.x.part(block, tile), sums);
                }
            }
            ActivationKind::Floats | ActivationKind::Rounded(_) if self.weight.is_float() => {
                for block in blocks {
                    self.multiply_floats(table, weights, block * FLOAT_DEPTH, block, sums);
                }
            }
            ActivationKind::Floats | ActivationKind::Rounded(_) => {
                let mut lines = [0; FLOAT_DEPTH * 2 * LINE];
                for block in blocks {
                    let first = block * FLOAT_DEPTH;
                    let columns = first..self.weight.columns.min(first + FLOAT_DEPTH);
                    let decoded = self.weight.decoded(table, band, columns, &mut lines);
                    self.multiply_floats(table, decoded, 0, block, sums);
                }
            }
        }
    }

    /// Adds the products of floats from column `first` on with one block of all columns of activations.
    fn multiply_floats(
        &self,
        table: &Table,
        weights: Band<'_>,
        first: usize,
        block: usize,
        sums: &mut [[f32; BAND]],
    ) {
        for tile in self.x.tiles() {
            let x = self.x.part(block, tile);
            (table.matmul.floats)(weights, first, x, &mut sums[tile.0..tile.0 + tile.1]);
        }
    }
}
