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

use super::Executor;
use crate::arrange::{Arranged, Kind, Source, arrange, bands, padded};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, Band, DEPTH, FLOAT_DEPTH, LINE, NARROW, PanelGroup, TILE};
use crate::pool::{Grid, Tile};
use crate::weights::Matrix;

/// Bytes of activations that stay in the second cache, with the sums of a band
/// and the weights that pass through.
const CHUNK: usize = 1_400_000;

/// Bands of a piece, at the most: with as many, activations that come from
/// beyond the second cache are fetched seldom enough.
const BANDS: usize = 8;

/// Bands of a piece of a step of few rows, at the most.
const NARROW_BANDS: usize = 4;

/// Pieces for each thread, so that who is late leaves its last ones to others.
const SHARE: usize = 4;

/// Numbers of scratch for so many rows of `width` values: a row that is made
/// while it is arranged, and the sums of products.
pub(crate) fn local_size(rows: usize, width: usize) -> usize {
    if rows <= NARROW { width } else { width.max(BANDS * padded(rows) * BAND) }
}

/// Arranges activations for products, rows of `width` values.
pub(crate) fn arranged(
    executor: &mut Executor<'_>,
    kind: Kind,
    source: Source<'_>,
    width: usize,
    words: &mut [u32],
) {
    let (table, rows) = (executor.table, source.len() / width);
    let each = kind.block_words();
    let grid = Grid { width: padded(rows).max(1) * each, row_step: usize::MAX, column_step: TILE * each };
    let words = &mut words[..kind.size(rows, width)];
    executor.pool.tiles(executor.locals, words, grid, |tile, scratch| {
        let (first, columns) = (tile.columns().start / each, tile.columns().len() / each);
        if first + columns > rows {
            tile.rows().for_each(|block| tile.row(block).fill(0));
        }
        for column in 0..columns.min(rows - first) {
            let row = source.row(table, first + column, width, scratch);
            for (block, values) in row.chunks(kind.depth()).enumerate() {
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

/// Each `output = x · weightᵀ + bias`, in one task, of the same rows; an output
/// without a product is empty.
pub(crate) fn linear(
    executor: &mut Executor<'_>,
    products: [Option<Product<'_>>; MOST_PRODUCTS],
    outputs: [&mut [f32]; MOST_PRODUCTS],
) {
    let (table, pool) = (executor.table, executor.pool);
    let rows = products.iter().flatten().map(|product| product.x.rows).max().unwrap_or(0);
    executor.variant = variant(table, rows, &products);
    let all: usize = products.iter().flatten().map(|product| bands(product.weight.rows)).sum();
    let most = if rows <= NARROW { NARROW_BANDS } else { BANDS };
    let bands = (all / (pool.threads() * SHARE)).clamp(1, most);
    let mut widths = products.iter().map(|product| product.as_ref().map_or(1, |product| product.weight.rows));
    let outputs = outputs.map(|output| {
        let width = widths.next().expect("as many products as outputs");
        (output, Grid { width, row_step: rows.max(1), column_step: bands * BAND })
    });
    pool.tiles_of(executor.locals, outputs, |index, tile, scratch| {
        let product = products[index].expect("where there is no product there are no tiles");
        let Product { x, weight, bias } = product;
        Piece { table, x, weight, bias, tile }.compute(scratch);
    });
}

/// Which kernels compute products of so many rows, in words.
fn variant(table: &Table, rows: usize, products: &[Option<Product<'_>>]) -> [&'static str; 4] {
    let way = match rows {
        0 | 1 => "gemv",
        rows if rows <= NARROW => "small",
        _ => "gemm",
    };
    let one = |name: fn(&Table, &Product<'_>) -> &'static str| {
        let mut names = products.iter().flatten().map(|product| name(table, product));
        let first = names.next().unwrap_or("");
        if names.all(|name| name == first) { first } else { "mixed" }
    };
    let numbers = one(|table, product| match product.x.kind {
        Kind::Brains => table.products.brains_by,
        kind => kind.name(),
    });
    [way, table.name, numbers, one(|_, product| product.weight.layout.name())]
}

/// Some bands of the weights with all rows of the step.
struct Piece<'a, 'b, 'c> {
    table: &'a Table,
    x: Arranged<'a>,
    weight: &'a Matrix,
    bias: Option<&'a [f32]>,
    tile: &'b mut Tile<'c, f32>,
}

impl Piece<'_, '_, '_> {
    fn compute(&mut self, scratch: &mut [f32]) {
        let (products, x) = (&self.table.products, self.x);
        match x.kind {
            _ if x.rows > NARROW => self.wide(scratch),
            Kind::Integers(_) => self.narrow(|band, sums| (products.narrow)(band, x.whole(), sums)),
            Kind::Brains => self.narrow(|band, sums| (products.brains)(band, 0, x.whole(), sums)),
            _ if self.weight.layout.coding().is_none() && self.weight.is_float() => {
                self.narrow(|band, sums| (products.floats)(band, 0, x.whole(), sums));
            }
            _ => self.narrow_decoded(),
        }
    }

    fn bands(&self) -> std::ops::Range<usize> {
        let columns = self.tile.columns();
        columns.start / BAND..columns.end.div_ceil(BAND)
    }

    /// Few rows, each band at once.
    fn narrow(&mut self, products: impl Fn(Band<'_>, &mut [[f32; BAND]])) {
        for band in self.bands() {
            let mut sums = [[0.0; BAND]; NARROW];
            products(self.weight.band(band), &mut sums[..self.x.rows]);
            self.put(band, &sums[..self.x.rows]);
        }
    }

    /// Few rows, and weights that are decoded to floats.
    fn narrow_decoded(&mut self) {
        for band in self.bands() {
            let mut sums = [[0.0; BAND]; NARROW];
            let sums = &mut sums[..self.x.rows];
            self.multiply(band, 0..self.x.blocks(), sums);
            self.put(band, sums);
        }
    }

    /// Many rows, chunk by chunk of the input.
    fn wide(&mut self, scratch: &mut [f32]) {
        let padded = padded(self.x.rows);
        let (blocks, bands) = (self.x.blocks(), self.bands());
        let chunk = (CHUNK / (padded * self.x.kind.block_words() * size_of::<u32>())).max(1);
        let (all, _) = scratch.as_chunks_mut::<BAND>();
        for first in (0..blocks).step_by(chunk) {
            let last = blocks.min(first + chunk);
            for (index, band) in bands.clone().enumerate() {
                // Sums that are complete after one chunk need no place of their own.
                let index = if blocks <= chunk { 0 } else { index };
                let sums = &mut all[index * padded..(index + 1) * padded];
                if first == 0 {
                    sums.fill([0.0; BAND]);
                }
                self.multiply(band, first..last, sums);
                if last == blocks {
                    self.put(band, &sums[..self.x.rows]);
                }
            }
        }
    }

    /// Adds the products of some blocks of a band with all columns.
    fn multiply(&self, band: usize, blocks: std::ops::Range<usize>, sums: &mut [[f32; BAND]]) {
        let weights = self.weight.band(band);
        match self.x.kind {
            Kind::Integers(coding) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                for block in blocks {
                    let groups = DEPTH.min(self.weight.groups() - block * DEPTH);
                    (self.table.products.decode)(weights, block * DEPTH, groups, &mut panels);
                    for tile in self.x.tiles() {
                        let x = self.x.part(block, tile);
                        let sums = &mut sums[tile.0..tile.0 + tile.1];
                        (self.table.products.tile)(coding, &panels, groups, x, sums);
                    }
                }
            }
            Kind::Brains => {
                for (block, tile) in blocks.flat_map(|block| self.x.tiles().map(move |tile| (block, tile))) {
                    let sums = &mut sums[tile.0..tile.0 + tile.1];
                    (self.table.products.brains)(
                        weights,
                        block * FLOAT_DEPTH,
                        self.x.part(block, tile),
                        sums,
                    );
                }
            }
            Kind::Floats | Kind::Bf16 if self.weight.is_float() => {
                for block in blocks {
                    self.multiply_floats(weights, block * FLOAT_DEPTH, block, sums);
                }
            }
            Kind::Floats | Kind::Bf16 => {
                let mut lines = [0; FLOAT_DEPTH * 2 * LINE];
                for block in blocks {
                    let decoded = self.weight.decoded(self.table, band, block * FLOAT_DEPTH, &mut lines);
                    self.multiply_floats(decoded, 0, block, sums);
                }
            }
        }
    }

    /// Adds the products of floats from column `first` on with a block of all
    /// columns of activations.
    fn multiply_floats(&self, weights: Band<'_>, first: usize, block: usize, sums: &mut [[f32; BAND]]) {
        for tile in self.x.tiles() {
            let x = self.x.part(block, tile);
            (self.table.products.floats)(weights, first, x, &mut sums[tile.0..tile.0 + tile.1]);
        }
    }

    /// Writes the results of a band for all rows.
    fn put(&mut self, band: usize, sums: &[[f32; BAND]]) {
        let columns = self.tile.columns();
        let range = band * BAND..columns.end.min((band + 1) * BAND);
        for (row, sums) in sums.iter().enumerate() {
            let y = &mut self.tile.row(row)[range.start - columns.start..range.end - columns.start];
            y.copy_from_slice(&sums[..range.len()]);
            if let Some(bias) = self.bias {
                y.iter_mut().zip(&bias[range.clone()]).for_each(|(y, bias)| *y += bias);
            }
        }
    }
}
