//! Matmuls with packed weights, split among threads by bands of the weights' rows only (no split-K):
//! each result is one sum over the whole input, computed by one thread.
//!
//! ```text
//! for each chunk of blocks of the input:           activations fit into L2
//!     for each band of the piece:
//!         for each block:                          weights fit into L1,
//!             decode the band's part               integers as panels
//!             for each tile of columns:
//!                 sums += weights · activations
//! ```
//! A step of few rows reads each band once, whole, and decodes it in registers. Bytes moved: the
//! packed weights, once for each step; the sums of a longer step once more for each chunk.
//!
//! Where a row has two columns of activations, its result is the sum of theirs: the first plus
//! the second, each computed as if it were alone.

use std::array;
use std::iter;
use std::ops::Range;

use girih_graph::{Act, GateRule, Graph, ValueId};

use super::activate::Activate;
use super::adapter_terms::AdapterTerms;
use super::add::{Add, AddScaled};
use super::executor::Executor;
use super::gate::Gate;
use super::product::Product;
use super::sparse_product::SparseScratch;
use crate::activations::{ActivationKind, FP16_NAME, PackedActivations, SourceRows, pack_block, padded};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, NARROW, TILE, bands};
use crate::packed_matrix::PackedMatrix;
use crate::pool::{Grid, OutputTile, ThreadPool};

/// Bytes of activations that fit into L2 beside the sums of a band and the weights that pass through.
const ACTIVATION_CHUNK_BYTES: usize = 1_400_000;

/// The maximum number of bands in a piece, of both matrices together if one gates the other: large
/// enough that activations that do not fit into L2 are rarely read again.
const MATMUL_PIECE_BANDS: usize = 8;

/// The maximum number of bands of each matrix in a piece with few columns of activations. Hardware
/// prefetchers must detect each run of bands again.
pub(super) const NARROW_PIECE_BANDS: usize = 4;

/// Values in a piece of packing activations: about 10 µs.
const PACK_PIECE_VALUES: usize = 1 << 13;

/// The number of pieces per thread, so that idle threads can steal the last ones of a late thread.
const MATMUL_PIECES_PER_THREAD: usize = 4;

/// The length of a thread's scratch memory, in `f32` values, for `columns` columns of `width`
/// activations: a row that is computed while it is packed, or the sums of matmuls.
pub(crate) fn local_len(columns: usize, width: usize) -> usize {
    if columns <= NARROW { width } else { width.max(MATMUL_PIECE_BANDS * padded(columns) * BAND) }
}

/// Packs rows of `width` activations for matmuls.
pub(crate) fn pack_activations(
    executor: &mut Executor<'_>,
    kind: ActivationKind,
    source: SourceRows<'_>,
    width: usize,
    words: &mut [u32],
) {
    let (table, rows, terms) = (executor.table, source.len() / width, kind.terms());
    let (each, all) = (kind.block_words(), rows * terms);
    // Few rows are one tile; rows that lie in memory are cut by blocks.
    let row_step = match source {
        SourceRows::Rows(_) if all <= NARROW => (PACK_PIECE_VALUES / (rows.max(1) * kind.depth())).max(1),
        _ => usize::MAX,
    };
    let grid = Grid { width: padded(all).max(1) * each, row_step, column_step: TILE * each };
    let words = &mut words[..kind.size(rows, width)];
    executor.pool.tiles(executor.locals, words, grid, |tile, scratch| {
        let (first, columns) = (tile.columns().start / each, tile.columns().len() / each);
        let blocks = tile.rows();
        if first + columns > all {
            blocks.clone().for_each(|block| tile.row(block).fill(0));
        }
        for column in (0..columns.min(all - first)).step_by(terms) {
            let row = source.row(table, (first + column) / terms, width, scratch);
            for (block, values) in blocks.clone().zip(row.chunks(kind.depth()).skip(blocks.start)) {
                pack_block(table, kind, values, (column, columns), tile.row(block));
            }
        }
    });
}

/// A matmul as data, because lowering groups matmuls of one value to one task.
#[derive(Debug)]
pub(crate) struct BoundMatmul {
    pub weight: ValueId,
    pub bias: Option<ValueId>,
    /// How its activations are packed.
    pub kind: ActivationKind,
    /// The length of a thread's scratch memory, in `f32` values.
    pub local: usize,
}

/// Binds a matmul of activations of this kind.
pub(crate) fn bind(
    graph: &Graph,
    kind: ActivationKind,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> BoundMatmul {
    let columns = graph.value(x).shape.rows() * kind.terms();
    BoundMatmul { weight, bias, kind, local: local_len(columns, graph.value(weight).shape.columns()) }
}

/// The maximum number of matmuls in a task; attention has three.
pub(crate) const MAX_MATMULS: usize = 4;

/// Packed activations and the matrix that they are multiplied by.
#[derive(Clone, Copy)]
pub(crate) struct MatmulOperands<'a> {
    pub x: PackedActivations<'a>,
    pub weight: &'a PackedMatrix,
    pub bias: Option<&'a [f32]>,
    /// What adapters add to its rows.
    pub adapters: Option<AdapterTerms<'a>>,
}

/// What is applied to the sums of matmuls before they are stored.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue<'a> {
    /// Nothing: each sum is stored in its output.
    Store,
    /// Adds this, in rows as wide as the only output.
    Add(&'a [f32]),
    /// Multiplies the second sum by the activation function of the first, and stores the product in the
    /// first output. Both have activations of one kind. If rows have weights, both sums are multiplied by
    /// that of their row first.
    Gate { rule: GateRule, weights: Option<&'a [f32]> },
    /// Stores the activation function of each sum.
    Activate(Act),
    /// Adds each row's sums, times its weight if there is one, to a row of the output.
    AddRows { rows: &'a [u32], weights: Option<&'a [f32]> },
}

/// Computes each `output = x · weightᵀ + bias` in one task, of the same rows; an output without a
/// matmul is empty.
pub(crate) fn linear(
    executor: &mut Executor<'_>,
    matmuls: [Option<MatmulOperands<'_>>; MAX_MATMULS],
    epilogue: Epilogue<'_>,
    outputs: [&mut [f32]; MAX_MATMULS],
) {
    let (table, pool) = (executor.table, executor.pool);
    let max = |of: fn(&PackedActivations<'_>) -> usize| {
        matmuls.iter().flatten().map(|matmul| of(&matmul.x)).max().unwrap_or(0)
    };
    let (rows, few) = (max(|x| x.rows), max(|x| x.columns()) <= NARROW);
    executor.variant = variant(table, rows, few, &matmuls);
    let weights = matmuls.iter().flatten().map(|matmul| matmul.weight);
    // Each matmul uses the kernel for its own number of columns.
    let narrow = matmuls.iter().flatten().any(|matmul| matmul.x.columns() <= NARROW);
    let bands = bands_of_task(weights, matches!(epilogue, Epilogue::Gate { .. }), narrow, pool.threads());
    let mut widths = matmuls.iter().map(|matmul| matmul.as_ref().map_or(1, |matmul| matmul.weight.rows));
    let outputs = outputs.map(|output| {
        let width = widths.next().expect("as many matmuls as outputs");
        (output, Grid { width, row_step: rows.max(1), column_step: bands * BAND })
    });
    pool.tiles_of(executor.locals, outputs, |index, tile, scratch| {
        let gated = if matches!(epilogue, Epilogue::Gate { .. }) { matmuls[1] } else { None };
        let first = matmuls[index].expect("where there is no matmul there are no tiles");
        let bands = bands_of_columns(tile.columns());
        MatmulPiece { table, first, gated, epilogue, bands, base: 0, tile }.compute(scratch);
    });
}

/// Prefetches the next matmuls' weights on idle threads, for few columns of activations.
pub(crate) fn prefetch<'a>(
    pool: &ThreadPool,
    weights: impl Iterator<Item = &'a PackedMatrix> + Clone,
    gated: bool,
) {
    let Some(first) = weights.clone().next() else { return };
    let band_bytes = first.mean_band_bytes();
    pool.prefetch(
        |socket| first.bytes_on(socket),
        bands_of_task(weights, gated, true, pool.threads()) * band_bytes,
    );
}

/// The number of bands of each matrix in a piece of a task; a gated piece has as many of both.
fn bands_of_task<'a>(
    weights: impl Iterator<Item = &'a PackedMatrix>,
    gated: bool,
    narrow: bool,
    threads: usize,
) -> usize {
    let all = weights.map(|weight| bands(weight.rows)).sum();
    bands_of_piece(all, if gated { 2 } else { 1 }, narrow, threads)
}

/// The number of bands of each matrix in a piece, for a task of `all` bands whose pieces take bands
/// from `each` matrices (one or two); `narrow` if one of them is multiplied by few columns.
pub(super) fn bands_of_piece(all: usize, each: usize, narrow: bool, threads: usize) -> usize {
    let max = if narrow { NARROW_PIECE_BANDS } else { MATMUL_PIECE_BANDS / each };
    (all / each / (threads * MATMUL_PIECES_PER_THREAD)).clamp(1, max)
}

/// Names the kernels that compute these matmuls.
fn variant(
    table: &Table,
    rows: usize,
    few: bool,
    matmuls: &[Option<MatmulOperands<'_>>],
) -> [&'static str; 4] {
    let way = match rows {
        0 | 1 => "gemv",
        _ if few => "small",
        _ => "gemm",
    };
    let one = |name: fn(&Table, &MatmulOperands<'_>) -> &'static str| {
        let mut names = matmuls.iter().flatten().map(|matmul| name(table, matmul));
        let first = names.next().unwrap_or("");
        if names.all(|name| name == first) { first } else { "mixed" }
    };
    let numbers = one(|table, matmul| match matmul.x.kind {
        ActivationKind::Bf16Pairs => table.matmul.bf16_name(),
        ActivationKind::Fp16Groups => FP16_NAME,
        kind => kind.name(),
    });
    [way, table.name, numbers, one(|_, matmul| matmul.weight.layout.name())]
}

/// Some bands of the weights with all rows of the activations.
pub(super) struct MatmulPiece<'a, 'b, 'c> {
    pub table: &'a Table,
    pub first: MatmulOperands<'a>,
    /// The matmul that is gated by the first.
    pub gated: Option<MatmulOperands<'a>>,
    pub epilogue: Epilogue<'a>,
    /// Bands whose results lie in the tile.
    pub bands: Range<usize>,
    /// The column of the output that has the results of the weights' first row.
    pub base: usize,
    pub tile: &'b mut OutputTile<'c, f32>,
}

/// The bands that have the results of these columns.
pub(super) fn bands_of_columns(columns: Range<usize>) -> Range<usize> {
    columns.start / BAND..columns.end.div_ceil(BAND)
}

impl MatmulPiece<'_, '_, '_> {
    pub fn compute(&mut self, scratch: &mut [f32]) {
        if self.first.x.columns() > NARROW { self.wide(scratch) } else { self.narrow() }
    }

    fn matmuls(&self) -> impl Iterator<Item = &MatmulOperands<'_>> {
        iter::once(&self.first).chain(&self.gated)
    }

    /// Few rows: all bands of one matrix and then those of the other, in the order of memory.
    fn narrow(&mut self) {
        let (columns, bands) = (self.first.x.columns(), self.bands.clone());
        assert!(bands.len() <= NARROW_PIECE_BANDS, "{bands:?} have sums");
        let mut sums = [[[[0.0; BAND]; NARROW]; NARROW_PIECE_BANDS]; 2];
        for adapters in self.matmuls().filter_map(|matmul| matmul.adapters) {
            bands.clone().for_each(|band| adapters.prefetch(band));
        }
        if self.is_sparse() {
            self.sparse_narrow(&mut sums);
        } else {
            for (matmul, sums) in self.matmuls().zip(&mut sums) {
                for (band, sums) in bands.clone().zip(sums) {
                    matmul.product().narrow(self.table, band, &mut sums[..columns]);
                }
            }
        }
        let [first, gated] = &mut sums;
        for ((band, first), gated) in bands.zip(first).zip(gated) {
            self.store(band, &mut first[..columns], &mut gated[..columns]);
        }
    }

    /// Whether a matrix leaves out units.
    fn is_sparse(&self) -> bool {
        self.matmuls().any(|matmul| matmul.weight.is_sparse())
    }

    /// The sums of few rows, where a matrix is sparse. A function of its own, as it needs much of the stack.
    #[inline(never)]
    fn sparse_narrow(&self, sums: &mut [[[[f32; BAND]; NARROW]; NARROW_PIECE_BANDS]; 2]) {
        let (columns, blocks) = (self.first.x.columns(), 0..self.first.x.blocks());
        let mut scratch = SparseScratch::of(self.matmuls().map(|matmul| matmul.product()));
        for (matmul, sums) in self.matmuls().zip(sums) {
            for (band, sums) in self.bands.clone().zip(sums) {
                scratch.add(matmul.product(), self.table, (band, blocks.clone()), &mut sums[..columns]);
            }
        }
    }

    /// Many rows, one chunk of the input after another.
    fn wide(&mut self, scratch: &mut [f32]) {
        let x = self.first.x;
        let (padded, count) = (padded(x.columns()), self.matmuls().count());
        let (blocks, bands) = (x.blocks(), self.bands.clone());
        let chunk = (ACTIVATION_CHUNK_BYTES / (padded * x.kind.block_words() * size_of::<u32>())).max(1);
        let (all, _) = scratch.as_chunks_mut::<BAND>();
        let sparse = || SparseScratch::of(self.matmuls().map(|matmul| matmul.product()));
        let mut sparse = self.is_sparse().then(sparse);
        for first in (0..blocks).step_by(chunk) {
            let last = blocks.min(first + chunk);
            for (index, band) in bands.clone().enumerate() {
                // Sums that one chunk completes share one buffer.
                let index = if blocks <= chunk { 0 } else { index };
                let sums = &mut all[index * count * padded..(index + 1) * count * padded];
                for (matmul, sums) in self.matmuls().zip(sums.chunks_exact_mut(padded)) {
                    if first == 0 {
                        sums.fill([0.0; BAND]);
                    }
                    match &mut sparse {
                        None => matmul.product().multiply(self.table, band, first..last, sums),
                        Some(sparse) => sparse.add(matmul.product(), self.table, (band, first..last), sums),
                    }
                }
                if last == blocks {
                    let (sums, gated) = sums.split_at_mut(padded);
                    self.store(band, &mut sums[..x.columns()], gated);
                }
            }
        }
    }

    /// Applies the epilogue to the sums of a band and stores the results of all columns.
    fn store(&mut self, band: usize, sums: &mut [[f32; BAND]], gated: &mut [[f32; BAND]]) {
        let (table, width) = (self.table, self.first.weight.rows);
        let range = band * BAND..(self.tile.columns().end - self.base).min((band + 1) * BAND);
        let sums = self.first.row_sums(table, range.clone(), sums);
        if let Some(matmul) = &self.gated {
            matmul.row_sums(table, range.clone(), gated);
        }
        let columns = range.clone();
        match self.epilogue {
            Epilogue::Store => self.write(range, sums, |_, sums, y| y.copy_from_slice(sums)),
            Epilogue::Add(other) => self.write(range, sums, |row, sums, y| {
                table.run(Add { a: &other[row * width..][columns.clone()], b: sums, y });
            }),
            Epilogue::Gate { rule, weights } => {
                let gated = &mut gated[..sums.len()];
                for ((sums, gated), weight) in
                    sums.iter_mut().zip(&mut *gated).zip(weights.into_iter().flatten())
                {
                    sums.iter_mut().chain(gated).for_each(|sum| *sum *= weight);
                }
                table.run(Gate { rule, gate: sums.as_flattened(), up: gated.as_flattened_mut() });
                self.write(range, gated, |_, gated, y| y.copy_from_slice(gated));
            }
            Epilogue::Activate(act) => self.write(range, sums, |_, x, y| table.run(Activate { act, x, y })),
            Epilogue::AddRows { weights, .. } => self.write(range, sums, |row, x, y| {
                table.run(AddScaled { x, factor: weights.map_or(1.0, |weights| weights[row]), y });
            }),
        }
    }

    /// Calls `write` with each row's sums and the output of these columns.
    fn write(
        &mut self,
        columns: Range<usize>,
        sums: &[[f32; BAND]],
        write: impl Fn(usize, &[f32], &mut [f32]),
    ) {
        let (first, top) = (self.tile.columns().start - self.base, self.tile.rows().start);
        for (row, sums) in sums.iter().enumerate() {
            let to = match self.epilogue {
                Epilogue::AddRows { rows, .. } => rows[row] as usize,
                _ => top + row,
            };
            let y = &mut self.tile.row(to)[columns.start - first..columns.end - first];
            write(row, &sums[..columns.len()], y);
        }
    }
}

impl MatmulOperands<'_> {
    fn product(&self) -> Product<'_> {
        Product { x: self.x, weight: self.weight }
    }

    /// Returns the sum of each row: its one column or the sum of its two, plus the bias of the rows
    /// `range` of the weights, which are a band, and what an adapter adds. The row sums overwrite the first columns.
    fn row_sums<'a>(
        &self,
        table: &Table,
        range: Range<usize>,
        sums: &'a mut [[f32; BAND]],
    ) -> &'a mut [[f32; BAND]] {
        let terms = self.x.kind.terms();
        let rows = sums.len() / terms;
        if terms > 1 {
            for row in 0..rows {
                sums[row] = array::from_fn(|lane| sums[2 * row][lane] + sums[2 * row + 1][lane]);
            }
        }
        let sums = &mut sums[..rows];
        if let Some(bias) = self.bias {
            for sums in sums.iter_mut() {
                sums.iter_mut().zip(&bias[range.clone()]).for_each(|(sum, bias)| *sum += bias);
            }
        }
        if let Some(adapters) = &self.adapters {
            adapters.add(table, range.start / BAND, sums);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The matrices of Llama-3.2-1B, for 8, 64 and 192 threads: a piece has up to four bands (eight in
    /// prefill) if each thread then gets four pieces, and a gated piece has the bands of both matrices.
    #[test]
    fn pieces_suit_the_number_of_threads() {
        let pieces = |rows: usize, each: usize, narrow: bool, threads: usize| {
            let all = bands(rows);
            (all / each).div_ceil(bands_of_piece(all, each, narrow, threads))
        };
        let decode = |rows, each| [8, 64, 192].map(|threads| pieces(rows, each, true, threads));
        assert_eq!(decode(3072, 1), [32, 96, 96], "q+k+v");
        assert_eq!(decode(2048, 1), [32, 64, 64], "o");
        assert_eq!(decode(16384, 2), [64, 256, 256], "gate+up");
        assert_eq!(decode(128_256, 1), [1002; 3], "output");
        assert_eq!(pieces(128_256, 1, false, 8), 501, "output in prefill");
    }
}
