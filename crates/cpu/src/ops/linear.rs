//! Products with a matrix of weights, cut by output columns only: a result is
//! one dot product over the whole input, whoever computes it.
//!
//! A band of weight rows is decoded once and then met by every row of the step.
//! Bytes moved: the weights as stored, once a step; a band's decoded rows and
//! the activations stay in the caches of the thread.

use super::Executor;
use crate::kernels::{QUAD, Table};
use crate::pool::{Grid, Tile};
use crate::weights::Matrix;

/// Output columns of a piece: enough that taking one costs nothing beside it,
/// few enough that the last ones are shared evenly.
const COLUMNS: usize = 16;

/// `output = x · weightᵀ + bias`.
pub(crate) fn linear(
    executor: &mut Executor<'_>,
    x: &[f32],
    weight: &Matrix,
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let (table, pool) = (executor.table, executor.pool);
    let band = weight.band_rows();
    let rows = output.len() / weight.rows;
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
    let inputs = x.len() / tile.rows().len();
    let left = column - tile.columns().start;
    for (quad, weights) in weights.chunks(QUAD * inputs).enumerate() {
        let left = left + quad * QUAD;
        for (row, x) in tile.rows().zip(x.chunks_exact(inputs)) {
            products(table, weights, x, &mut tile.row(row)[left..left + weights.len() / inputs]);
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
