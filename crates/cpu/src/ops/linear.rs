//! Products with a matrix of weights, cut by output columns only: a result is
//! one dot product over the whole input, whoever computes it.
//!
//! ```text
//! for each band of weight rows, decoded:
//!     for each block of 32 rows of the step:
//!         for each four weight rows of the band:
//!             for each row of the block:    four dot products
//! ```
//! Bytes moved: the weights as stored, once a step. A band and a block stay in
//! the second cache of the thread, four weight rows of a few thousand columns
//! in the first; the activations of a long step come from beyond both, once
//! for each band.

use super::Executor;
use crate::kernels::{QUAD, Table};
use crate::pool::{Grid, Tile};
use crate::weights::Matrix;

/// Output columns of a piece: enough that taking one costs nothing beside it,
/// few enough that the last ones are shared evenly.
const COLUMNS: usize = 16;

/// Rows of the step that meet a band before the next ones do: with a band they
/// fill the second cache of today's processors at the most.
const BLOCK: usize = 32;

/// `output = x · weightᵀ + bias`.
pub(crate) fn linear(
    executor: &mut Executor<'_>,
    x: &[f32],
    weight: &Matrix,
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let (table, pool) = (executor.table, executor.pool);
    let rows = output.len() / weight.rows;
    let band = weight.band_rows(rows);
    let grid =
        Grid { width: weight.rows, row_step: rows.max(1), column_step: COLUMNS.next_multiple_of(band) };
    pool.tiles(executor.locals, output, grid, |tile, scratch| {
        let columns = tile.columns();
        for start in columns.clone().step_by(band) {
            let end = columns.end.min(start + band);
            let weights = weight.values(start..end, table, scratch);
            multiply(table, x, weights, start, tile);
        }
        if let Some(bias) = bias {
            for row in tile.rows() {
                tile.row(row).iter_mut().zip(&bias[columns.clone()]).for_each(|(y, bias)| *y += bias);
            }
        }
    });
}

/// The products of all rows of `x` with the decoded rows `weights`, the first
/// of which makes the output's column `column`.
fn multiply(table: &Table, x: &[f32], weights: &[f32], column: usize, tile: &mut Tile<'_, f32>) {
    let (inputs, rows) = (x.len() / tile.rows().len(), tile.rows());
    let left = column - tile.columns().start;
    for first in rows.clone().step_by(BLOCK) {
        let block = first..rows.end.min(first + BLOCK);
        for (quad, weights) in weights.chunks(QUAD * inputs).enumerate() {
            let left = left + quad * QUAD;
            let columns = left..left + weights.len() / inputs;
            for row in block.clone() {
                let x = &x[row * inputs..(row + 1) * inputs];
                products(table, weights, x, &mut tile.row(row)[columns.clone()]);
            }
        }
    }
}

/// The dot products of `x` with up to [`QUAD`] rows.
pub(super) fn products(table: &Table, rows: &[f32], x: &[f32], results: &mut [f32]) {
    if results.len() == QUAD {
        results.copy_from_slice(&(table.dots)(rows, x));
        return;
    }
    for (result, row) in results.iter_mut().zip(rows.chunks_exact(x.len())) {
        *result = (table.dot)(row, x);
    }
}
