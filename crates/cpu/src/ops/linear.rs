//! Products with a matrix of weights, cut by bands of its rows only: a result
//! is one sum over the whole input, whoever computes it.
//!
//! ```text
//! for each chunk of blocks of the input:           activations stay in the second cache
//!     for each band of the piece:
//!         for each block:                          weights stay in the first cache,
//!             decode the band's part               integers as panels
//!             for each tile of columns:
//!                 sums += weights · activations
//! ```
//! A step of few rows goes through each band once, whole, and decodes it in
//! registers. Bytes moved: the weights as packed, once for each step; the sums
//! of a longer step once more for each chunk.
//!
//! Where a row is two columns of activations, its result is the sum of theirs:
//! the first one's and then the second one's, each made as if it were alone.

use std::array;
use std::iter;
use std::ops::Range;

use girih_graph::Act;

use super::Executor;
use crate::arrange::{Arranged, Kind, Source, arrange, bands, padded};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, Band, DEPTH, FLOAT_DEPTH, LINE, NARROW, PanelGroup, TILE};
use crate::pool::{Grid, Pool, Tile};
use crate::weights::Matrix;

/// Bytes of activations that stay in the second cache, with the sums of a band
/// and the weights that pass through.
const CHUNK: usize = 1_400_000;

/// Bands of a piece, of both matrices together where one gates the other, at the
/// most: with as many, activations that come from beyond the second cache are
/// fetched seldom enough.
const BANDS: usize = 8;

/// Bands of each matrix in a piece of few columns of activations, at the most.
/// Processors that fetch what comes next have to see anew where each run of bands
/// begins.
const NARROW_BANDS: usize = 4;

/// Values of a piece of rows that are arranged: about 10 µs.
const PIECE: usize = 1 << 13;

/// Pieces for each thread, so that who is late leaves its last ones to others.
const SHARE: usize = 4;

/// Numbers of scratch for so many columns of `width` activations: a row that is
/// made while it is arranged, and the sums of products.
pub(crate) fn local_size(columns: usize, width: usize) -> usize {
    if columns <= NARROW { width } else { width.max(BANDS * padded(columns) * BAND) }
}

/// Arranges activations for products, rows of `width` values.
pub(crate) fn arranged(
    executor: &mut Executor<'_>,
    kind: Kind,
    source: Source<'_>,
    width: usize,
    words: &mut [u32],
) {
    let (table, rows, terms) = (executor.table, source.len() / width, kind.terms());
    let (each, all) = (kind.block_words(), rows * terms);
    // Few rows are one tile; such as lie in memory are cut by blocks.
    let row_step = match source {
        Source::Rows(_) if all <= NARROW => (PIECE / (rows.max(1) * kind.depth())).max(1),
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
                arrange(table, kind, values, (column, columns), tile.row(block));
            }
        }
    });
}

/// Products of one task, at the most: those of attention are three.
pub(crate) const MOST_PRODUCTS: usize = 4;

/// Activations and the matrix that they are multiplied by.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub x: Arranged<'a>,
    pub weight: &'a Matrix,
    pub bias: Option<&'a [f32]>,
}

/// What becomes of products before they are stored.
#[derive(Clone, Copy)]
pub(crate) enum Finish<'a> {
    /// Nothing: each is stored where its output is.
    Store,
    /// The only one is added to this, in rows of as many values.
    Add(&'a [f32]),
    /// The second, gated by the first, is stored where the first output is.
    /// They are of activations of one kind.
    Gate(Act),
}

/// Each `output = x · weightᵀ + bias`, in one task, of the same rows; an output
/// without a product is empty.
pub(crate) fn linear(
    executor: &mut Executor<'_>,
    products: [Option<Product<'_>>; MOST_PRODUCTS],
    finish: Finish<'_>,
    outputs: [&mut [f32]; MOST_PRODUCTS],
) {
    let (table, pool) = (executor.table, executor.pool);
    let most = |of: fn(&Arranged<'_>) -> usize| {
        products.iter().flatten().map(|product| of(&product.x)).max().unwrap_or(0)
    };
    let (rows, few) = (most(|x| x.rows), most(|x| x.columns()) <= NARROW);
    executor.variant = variant(table, rows, few, &products);
    let weights = products.iter().flatten().map(|product| product.weight);
    // Each product takes the way for its own number of columns.
    let narrow = products.iter().flatten().any(|product| product.x.columns() <= NARROW);
    let bands = bands_of_task(weights, matches!(finish, Finish::Gate(_)), narrow, pool.threads());
    let mut widths = products.iter().map(|product| product.as_ref().map_or(1, |product| product.weight.rows));
    let outputs = outputs.map(|output| {
        let width = widths.next().expect("as many products as outputs");
        (output, Grid { width, row_step: rows.max(1), column_step: bands * BAND })
    });
    pool.tiles_of(executor.locals, outputs, |index, tile, scratch| {
        let gated = if matches!(finish, Finish::Gate(_)) { products[1] } else { None };
        let first = products[index].expect("where there is no product there are no tiles");
        Piece { table, first, gated, finish, tile }.compute(scratch);
    });
}

/// Has each thread ask for what it reads first of a task of these matrices, for few
/// columns of activations, whenever it waits.
pub(crate) fn foresee<'a>(pool: &Pool, weights: impl Iterator<Item = &'a Matrix> + Clone, gated: bool) {
    let Some(first) = weights.clone().next() else { return };
    let (bytes, band_bytes) = first.all_bands();
    pool.foresee(bytes, bands_of_task(weights, gated, true, pool.threads()) * band_bytes);
}

/// Bands of a matrix in a piece of a task; where one matrix gates another, a piece
/// has as many bands of each.
fn bands_of_task<'a>(
    weights: impl Iterator<Item = &'a Matrix>,
    gated: bool,
    narrow: bool,
    threads: usize,
) -> usize {
    let all = weights.map(|weight| bands(weight.rows)).sum();
    bands_of_piece(all, if gated { 2 } else { 1 }, narrow, threads)
}

/// Bands of a matrix in a piece of a task of `all` bands, where a piece has as
/// many of `each` of one or two matrices; `narrow` if one meets few columns.
pub(crate) fn bands_of_piece(all: usize, each: usize, narrow: bool, threads: usize) -> usize {
    let most = if narrow { NARROW_BANDS } else { BANDS / each };
    (all / each / (threads * SHARE)).clamp(1, most)
}

/// Which kernels compute products of so many rows, in words.
fn variant(table: &Table, rows: usize, few: bool, products: &[Option<Product<'_>>]) -> [&'static str; 4] {
    let way = match rows {
        0 | 1 => "gemv",
        _ if few => "small",
        _ => "gemm",
    };
    let one = |name: fn(&Table, &Product<'_>) -> &'static str| {
        let mut names = products.iter().flatten().map(|product| name(table, product));
        let first = names.next().unwrap_or("");
        if names.all(|name| name == first) { first } else { "mixed" }
    };
    let numbers = one(|table, product| match product.x.kind {
        Kind::Brains => table.matmul.bf16_name,
        kind => kind.name(),
    });
    [way, table.name, numbers, one(|_, product| product.weight.layout.name())]
}

/// Some bands of the weights with all rows of the step.
struct Piece<'a, 'b, 'c> {
    table: &'a Table,
    first: Product<'a>,
    /// What the first gates.
    gated: Option<Product<'a>>,
    finish: Finish<'a>,
    tile: &'b mut Tile<'c, f32>,
}

impl Piece<'_, '_, '_> {
    fn compute(&mut self, scratch: &mut [f32]) {
        if self.first.x.columns() > NARROW { self.wide(scratch) } else { self.narrow() }
    }

    fn bands(&self) -> Range<usize> {
        let columns = self.tile.columns();
        columns.start / BAND..columns.end.div_ceil(BAND)
    }

    fn products(&self) -> impl Iterator<Item = &Product<'_>> {
        iter::once(&self.first).chain(&self.gated)
    }

    /// Few rows: the bands of one matrix and then those of the other, as they
    /// follow each other in memory.
    fn narrow(&mut self) {
        let (columns, bands) = (self.first.x.columns(), self.bands());
        assert!(bands.len() <= NARROW_BANDS, "{bands:?} have sums");
        let mut sums = [[[[0.0; BAND]; NARROW]; NARROW_BANDS]; 2];
        for (product, sums) in self.products().zip(&mut sums) {
            for (band, sums) in bands.clone().zip(sums) {
                product.narrow(self.table, band, &mut sums[..columns]);
            }
        }
        let [first, gated] = &mut sums;
        for ((band, first), gated) in bands.zip(first).zip(gated) {
            self.put(band, &mut first[..columns], &mut gated[..columns]);
        }
    }

    /// Many rows, chunk by chunk of the input.
    fn wide(&mut self, scratch: &mut [f32]) {
        let x = self.first.x;
        let (padded, count) = (padded(x.columns()), self.products().count());
        let (blocks, bands) = (x.blocks(), self.bands());
        let chunk = (CHUNK / (padded * x.kind.block_words() * size_of::<u32>())).max(1);
        let (all, _) = scratch.as_chunks_mut::<BAND>();
        for first in (0..blocks).step_by(chunk) {
            let last = blocks.min(first + chunk);
            for (index, band) in bands.clone().enumerate() {
                // Sums that are complete after one chunk need no place of their own.
                let index = if blocks <= chunk { 0 } else { index };
                let sums = &mut all[index * count * padded..(index + 1) * count * padded];
                for (product, sums) in self.products().zip(sums.chunks_exact_mut(padded)) {
                    if first == 0 {
                        sums.fill([0.0; BAND]);
                    }
                    product.multiply(self.table, band, first..last, sums);
                }
                if last == blocks {
                    let (sums, gated) = sums.split_at_mut(padded);
                    self.put(band, &mut sums[..x.columns()], gated);
                }
            }
        }
    }

    /// Writes what becomes of the sums of a band, for all columns.
    fn put(&mut self, band: usize, sums: &mut [[f32; BAND]], gated: &mut [[f32; BAND]]) {
        let (table, width) = (self.table, self.first.weight.rows);
        let range = band * BAND..self.tile.columns().end.min((band + 1) * BAND);
        let sums = self.first.joined(range.clone(), sums);
        if let Some(product) = &self.gated {
            product.joined(range.clone(), gated);
        }
        let columns = range.clone();
        match self.finish {
            Finish::Store => self.write(range, sums, |_, sums, y| y.copy_from_slice(sums)),
            Finish::Add(other) => self.write(range, sums, |row, sums, y| {
                (table.add)(&other[row * width..][columns.clone()], sums, y);
            }),
            Finish::Gate(act) => self.write(range, sums, |row, sums, y| {
                (table.gate)(act, sums, &gated[row][..sums.len()], y);
            }),
        }
    }

    /// Lets `write` make the results of these columns of each row's sums.
    fn write(
        &mut self,
        columns: Range<usize>,
        sums: &[[f32; BAND]],
        write: impl Fn(usize, &[f32], &mut [f32]),
    ) {
        let first = self.tile.columns().start;
        for (row, sums) in sums.iter().enumerate() {
            let y = &mut self.tile.row(row)[columns.start - first..columns.end - first];
            write(row, &sums[..columns.len()], y);
        }
    }
}

impl Product<'_> {
    /// The products of a band with few rows, added to zeros.
    fn narrow(&self, table: &Table, band: usize, sums: &mut [[f32; BAND]]) {
        let (weights, x) = (self.weight.band(band), self.x);
        match x.kind {
            Kind::Integers(_) | Kind::IntegersTwice(_) => (table.matmul.narrow)(weights, x.whole(), sums),
            Kind::Brains => (table.matmul.bf16)(weights, 0, x.whole(), sums),
            _ if self.weight.is_float() => {
                (table.matmul.floats)(weights, 0, x.whole(), sums);
            }
            _ => self.multiply(table, band, 0..x.blocks(), sums),
        }
    }

    /// The sums of each row, which lie before those of columns: of one column or of
    /// two, and of the bias of the rows `range` of the weights.
    fn joined<'a>(&self, range: Range<usize>, sums: &'a mut [[f32; BAND]]) -> &'a mut [[f32; BAND]] {
        let terms = self.x.kind.terms();
        let rows = sums.len() / terms;
        if terms > 1 {
            for row in 0..rows {
                sums[row] = array::from_fn(|sequence| sums[2 * row][sequence] + sums[2 * row + 1][sequence]);
            }
        }
        let sums = &mut sums[..rows];
        if let Some(bias) = self.bias {
            for sums in sums.iter_mut() {
                sums.iter_mut().zip(&bias[range.clone()]).for_each(|(sum, bias)| *sum += bias);
            }
        }
        sums
    }

    /// Adds the products of some blocks of a band with all columns.
    fn multiply(&self, table: &Table, band: usize, blocks: Range<usize>, sums: &mut [[f32; BAND]]) {
        let weights = self.weight.band(band);
        match self.x.kind {
            Kind::Integers(coding) | Kind::IntegersTwice(coding) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                for block in blocks {
                    let groups = DEPTH.min(self.weight.groups() - block * DEPTH);
                    (table.matmul.decode)(weights, block * DEPTH, groups, &mut panels);
                    for tile in self.x.tiles() {
                        let x = self.x.part(block, tile);
                        let sums = &mut sums[tile.0..tile.0 + tile.1];
                        (table.matmul.tile)(coding, &panels, groups, x, sums);
                    }
                }
            }
            Kind::Brains => {
                for (block, tile) in blocks.flat_map(|block| self.x.tiles().map(move |tile| (block, tile))) {
                    let sums = &mut sums[tile.0..tile.0 + tile.1];
                    (table.matmul.bf16)(weights, block * FLOAT_DEPTH, self.x.part(block, tile), sums);
                }
            }
            Kind::Floats | Kind::Bf16 if self.weight.is_float() => {
                for block in blocks {
                    self.multiply_floats(table, weights, block * FLOAT_DEPTH, block, sums);
                }
            }
            Kind::Floats | Kind::Bf16 => {
                let mut lines = [0; FLOAT_DEPTH * 2 * LINE];
                for block in blocks {
                    let decoded = self.weight.decoded(table, band, block * FLOAT_DEPTH, &mut lines);
                    self.multiply_floats(table, decoded, 0, block, sums);
                }
            }
        }
    }

    /// Adds the products of floats from column `first` on with a block of all
    /// columns of activations.
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
