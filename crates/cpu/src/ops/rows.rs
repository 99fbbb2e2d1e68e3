//! The operators that compute row by row or element by element.

use girih_graph::Pooling;
use girih_graph::backend::GivenRows;

use super::executor::{Executor, StepRows};
use crate::pool::Grid;
use crate::weights::PackedMatrix;

/// The number of values in a piece; for fewer, starting a second thread takes longer than
/// computing them.
pub(super) const ROW_PIECE_VALUES: usize = 1 << 14;

/// Columns of a sequence in a piece of pooling: their sums stay in registers and in L1.
const POOLED_COLUMNS: usize = 64;

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

/// Normalizes each run of `weight.len()` values by its mean and its variance.
pub(crate) fn layer_norm(
    executor: &mut Executor<'_>,
    x: &[f32],
    (weight, bias): (&[f32], Option<&[f32]>),
    epsilon: f32,
    output: &mut [f32],
) {
    let (kernels, width) = (executor.table, weight.len());
    executor.pool.tiles(executor.locals, output, by_rows(width), |tile, _| {
        for row in tile.rows() {
            let x = &x[row * width..(row + 1) * width];
            (kernels.layer_norm)(x, weight, bias, epsilon, tile.row(row));
        }
    });
}

/// Copies `x` to `output`, with the given rows in place of its own.
pub(crate) fn splice(
    executor: &mut Executor<'_>,
    x: &[f32],
    given: &[GivenRows<'_>],
    stride: usize,
    output: &mut [f32],
) {
    elementwise(executor, [x], output, |[x], y| y.copy_from_slice(x));
    for GivenRows { first_row, values } in given {
        output[*first_row as usize * stride..][..values.len()].copy_from_slice(values);
    }
}

/// Makes one row of `stride` values of the rows of each sequence. The order of a mean's sums is that of
/// the rows.
pub(crate) fn pool(
    executor: &mut Executor<'_>,
    x: &[f32],
    stride: usize,
    how: Pooling,
    rows: StepRows<'_>,
    output: &mut [f32],
) {
    let grid = Grid { width: stride, row_step: 1, column_step: POOLED_COLUMNS };
    executor.pool.tiles(executor.locals, output, grid, |tile, _| {
        let (sequence, columns) = (tile.rows().start, tile.columns());
        let rows = rows.sequences[sequence].rows.indexes();
        let part = |row: usize| &x[row * stride..][columns.clone()];
        match how {
            Pooling::First => tile.row(sequence).copy_from_slice(part(rows.start)),
            Pooling::Last => tile.row(sequence).copy_from_slice(part(rows.end - 1)),
            Pooling::Mean => mean(rows.map(part), tile.row(sequence)),
        }
    });
}

/// The mean of some rows of at most [`POOLED_COLUMNS`] values.
fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, output: &mut [f32]) {
    let count = rows.len() as f64;
    let mut sums = [0.0; POOLED_COLUMNS];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    output.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = (sum / count) as f32);
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
