//! What adapters add to the products of a step's rows with a matrix: `factor · (B · t)` for each row that chose an
//! adapter, where `t = A · x` is known.

use super::product::Product;
use crate::activations::{ActivationKind, PackedActivations};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, LINE, TILE};
use crate::kernels::prefetch::prefetch_line;
use crate::packed_matrix::PackedMatrix;

/// The rows of a step that chose an adapter, in runs of at most [`TILE`] rows that chose the same one.
#[derive(Clone, Copy)]
pub(crate) struct AdapterRows<'a> {
    /// Each row, by adapter.
    pub rows: &'a [u32],
    /// Its factor.
    pub factors: &'a [f32],
    /// The adapter of each run.
    pub adapters: &'a [u32],
    /// The end of each run among the rows.
    pub ends: &'a [u32],
}

impl AdapterRows<'_> {
    /// The rows of a run, as a range of those that chose an adapter.
    pub fn run(&self, run: usize) -> std::ops::Range<usize> {
        let start = if run == 0 { 0 } else { self.ends[run - 1] };
        start as usize..self.ends[run] as usize
    }
}

/// Where packed columns begin if those before begin likewise: nine columns or more are padded by a third at most, fewer
/// are not.
pub(super) fn packed_start(columns: usize) -> usize {
    columns + columns / 3
}

/// The products with A of all rows that chose an adapter, and B of each adapter.
#[derive(Clone, Copy)]
pub(crate) struct AdapterTerms<'a> {
    pub rows: AdapterRows<'a>,
    pub b: &'a [PackedMatrix],
    /// How `words` are packed, run by run.
    pub kind: ActivationKind,
    pub words: &'a [u32],
}

impl AdapterTerms<'_> {
    /// Adds what adapters add to a band of the results: `sums` has each row of the step. Rows without an adapter get zero,
    /// as in the graph.
    pub fn add(&self, table: &Table, band: usize, sums: &mut [[f32; BAND]]) {
        sums.as_flattened_mut().iter_mut().for_each(|sum| *sum += 0.0);
        self.each(table, band, |row, factor, product| {
            sums[row].iter_mut().zip(product).for_each(|(sum, term)| *sum += factor * term);
        });
    }

    /// Calls `put` with each row that chose an adapter, its factor, and its product with a band of B.
    pub fn each(&self, table: &Table, band: usize, mut put: impl FnMut(usize, f32, &[f32; BAND])) {
        for (run, adapter) in self.rows.adapters.iter().enumerate() {
            let (rows, weight) = (self.rows.run(run), &self.b[*adapter as usize]);
            let unit = self.kind.size(1, weight.columns);
            let words = &self.words[packed_start(rows.start) * unit..];
            let x = PackedActivations { kind: self.kind, rows: rows.len(), width: weight.columns, words };
            let mut products = [[0.0; BAND]; TILE];
            Product { x, weight }.set(table, band, &mut products[..crate::activations::padded(rows.len())]);
            for (row, product) in rows.zip(&products) {
                put(self.rows.rows[row] as usize, self.rows.factors[row], product);
            }
        }
    }

    /// Prefetches a band of B of each adapter that some row chose.
    pub fn prefetch(&self, band: usize) {
        for adapter in self.rows.adapters {
            let lines = self.b[*adapter as usize].band(band).bytes.as_ptr_range();
            (lines.start.addr()..lines.end.addr()).step_by(LINE).for_each(prefetch_line);
        }
    }
}
