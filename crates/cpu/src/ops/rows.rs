//! The operators that work on one row at a time, and those that work on one
//! element at a time.

use super::{Executor, Rows};
use crate::pool::Grid;
use crate::weights::Matrix;

/// Values of a piece: fewer are computed sooner than a second thread is told.
pub(super) const PIECE: usize = 1 << 14;

/// Whole rows of `width` values, as many as make a piece.
pub(super) fn by_rows(width: usize) -> Grid {
    Grid { width, row_step: (PIECE / width).max(1), column_step: width }
}

/// The rows of `table` that the tokens name.
pub(crate) fn embed(executor: &mut Executor<'_>, tokens: &[u32], table: &Matrix, output: &mut [f32]) {
    let kernels = executor.table;
    executor.pool.tiles(executor.locals, output, by_rows(table.columns), |tile, _| {
        for row in tile.rows() {
            table.row(tokens[row] as usize, kernels, tile.row(row));
        }
    });
}

/// Normalises each run of as many values as there are weights.
pub(crate) fn norm(executor: &mut Executor<'_>, x: &[f32], weight: &[f32], epsilon: f32, output: &mut [f32]) {
    let (kernels, width) = (executor.table, weight.len());
    executor.pool.tiles(executor.locals, output, by_rows(width), |tile, _| {
        for row in tile.rows() {
            (kernels.norm)(&x[row * width..(row + 1) * width], weight, epsilon, tile.row(row));
        }
    });
}

/// The output rows of `x`.
pub(crate) fn take(x: &[f32], stride: usize, rows: Rows<'_>, output: &mut [f32]) {
    for (&row, y) in rows.output_rows.iter().zip(output.chunks_exact_mut(stride)) {
        y.copy_from_slice(&x[row as usize * stride..][..stride]);
    }
}

/// Calls `f` with each stretch of the output and the same stretch of the operands.
pub(crate) fn elementwise<const N: usize>(
    executor: &mut Executor<'_>,
    operands: [&[f32]; N],
    output: &mut [f32],
    f: impl Fn([&[f32]; N], &mut [f32]) + Sync,
) {
    let grid = Grid { width: output.len().max(1), row_step: 1, column_step: PIECE };
    executor.pool.tiles(executor.locals, output, grid, |tile, _| {
        let columns = tile.columns();
        f(operands.map(|operand| &operand[columns.clone()]), tile.row(0));
    });
}
