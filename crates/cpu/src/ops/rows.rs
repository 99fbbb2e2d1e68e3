//! How operators that compute row by row or element by element are cut into pieces, and the loops of their
//! kernels.

use girih_graph::ValueId;

use super::executor::Executor;
use crate::bound::BoundOp;
use crate::kernels::Table;
use crate::pool::Grid;

/// The number of values in a piece; for fewer, starting a second thread takes longer than
/// computing them.
pub(super) const ROW_PIECE_VALUES: usize = 1 << 14;

/// Pieces of whole rows of `width` values.
pub(super) fn by_rows(width: usize) -> Grid {
    Grid { width, row_step: (ROW_PIECE_VALUES / width).max(1), column_step: width }
}

/// Calls `f` with the table, the index of each row of `width` values, that row of `x`, and its result.
pub(super) fn each_row(
    executor: &mut Executor<'_>,
    x: &[f32],
    width: usize,
    output: &mut [f32],
    f: impl Fn(&Table, usize, &[f32], &mut [f32]) + Sync,
) {
    let table = executor.table;
    executor.pool.tiles(executor.locals, output, by_rows(width), |tile, _| {
        for row in tile.rows() {
            f(table, row, &x[row * width..(row + 1) * width], tile.row(row));
        }
    });
}

/// Computes each element of `y` from that of `x`.
#[inline(always)] // Kernels consist of it.
pub(super) fn each(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

/// Computes each element of `y` from those of `a` and `b`.
#[inline(always)] // As above.
pub(super) fn pairwise(a: &[f32], b: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = f(a, b);
    }
}

/// Computes each element of `y` from that of `x` and its own.
#[inline(always)] // As above.
pub(super) fn pairwise_in_place(x: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x, *y);
    }
}

/// An op that calls `f` with each piece of its result and the same range of its operands.
pub(super) fn elementwise<const N: usize>(
    output: ValueId,
    operands: [ValueId; N],
    f: impl Fn(&Table, [&[f32]; N], &mut [f32]) + Send + Sync + 'static,
) -> BoundOp {
    BoundOp::new(move |step| {
        let (output, operands) = step.values.split(output, operands);
        let Executor { table, pool, locals, .. } = &mut step.executor;
        let grid = Grid { width: output.len().max(1), row_step: 1, column_step: ROW_PIECE_VALUES };
        pool.tiles(locals, output, grid, |tile, _| {
            let columns = tile.columns();
            f(table, operands.map(|operand| &operand[columns.clone()]), tile.row(0));
        });
    })
}
