//! Rows of a table for ids.

use super::executor::Executor;
use super::rows::by_rows;
use crate::weights::PackedMatrix;

/// Copies the row of `table` for each token to `output`.
pub(crate) fn embed(executor: &mut Executor<'_>, tokens: &[u32], table: &PackedMatrix, output: &mut [f32]) {
    let kernels = executor.table;
    executor.pool.tiles(executor.locals, output, by_rows(table.columns), |tile, _| {
        for row in tile.rows() {
            table.row(tokens[row] as usize, kernels, tile.row(row));
        }
    });
}
