//! The operators that compute row by row or element by element.

use super::executor::{Executor, StepRows};
use crate::pool::Grid;
use crate::weights::PackedMatrix;

/// The number of values in a piece; for fewer, starting a second thread takes longer than
/// computing them.
pub(super) const ROW_PIECE_VALUES: usize = 1 << 14;

/// Pieces of whole rows of `width` values.
pub(super) fn by_rows(width: usize) -> Grid {
    Grid { width, row_step: (ROW_PIECE_VALUES / width).max(1), column_step: width }
}

/// Copies the row of `table` for each token to `output`.
pub(crate) fn embed(executor: &mut Executor<'_>, tokens: &[u32], table: &PackedMatrix, output: &mut [f32]) {
    let kernels = executor.table;
    executor.pool.tiles(executor.locals, output, by_rows(table.columns), |tile, _| {
        for row in tile.rows() {
            table.row(tokens[row] as usize, kernels, tile.row(row));
        }
    });
}

/// Normalizes each run of `weight.len()` values.
pub(crate) fn norm(executor: &mut Executor<'_>, x: &[f32], weight: &[f32], epsilon: f32, output: &mut [f32]) {
    let (kernels, width) = (executor.table, weight.len());
    executor.pool.tiles(executor.locals, output, by_rows(width), |tile, _| {
        for row in tile.rows() {
            (kernels.norm)(&x[row * width..(row + 1) * width], weight, epsilon, tile.row(row));
        }
    });
}

/// Copies the output rows of `x` to `output`.
pub(crate) fn gather(x: &[f32], stride: usize, rows: StepRows<'_>, output: &mut [f32]) {
    for (&row, y) in rows.output_rows.iter().zip(output.chunks_exact_mut(stride)) {
        y.copy_from_slice(&x[row as usize * stride..][..stride]);
    }
}

/// Calls `f` with each piece of the output and the same range of the operands.
pub(crate) fn elementwise<const N: usize>(
    executor: &mut Executor<'_>,
    operands: [&[f32]; N],
    output: &mut [f32],
    f: impl Fn([&[f32]; N], &mut [f32]) + Sync,
) {
    let grid = Grid { width: output.len().max(1), row_step: 1, column_step: ROW_PIECE_VALUES };
    executor.pool.tiles(executor.locals, output, grid, |tile, _| {
        let columns = tile.columns();
        f(operands.map(|operand| &operand[columns.clone()]), tile.row(0));
    });
}
