//! One row for each sequence, made of its rows.

use girih_graph::{Pooling, ValueId};

use crate::bound::BoundOp;
use crate::pool::Grid;

/// Columns of a sequence in a piece of pooling: their sums stay in registers and in L1.
const POOLED_COLUMNS: usize = 64;

/// Makes one row of the rows of each sequence. The order of a mean's sums is that of the rows.
pub(crate) fn bind(how: Pooling, x: ValueId, y: ValueId) -> BoundOp {
    BoundOp::new(move |step| {
        let (stride, sequences) = (step.values.stride(y), step.rows.sequences);
        let (y, [x]) = step.values.split(y, [x]);
        let grid = Grid { width: stride, row_step: 1, column_step: POOLED_COLUMNS };
        step.executor.pool.tiles(step.executor.locals, y, grid, |tile, _| {
            let (sequence, columns) = (tile.rows().start, tile.columns());
            let rows = sequences[sequence].rows.indexes();
            let part = |row: usize| &x[row * stride..][columns.clone()];
            match how {
                Pooling::First => tile.row(sequence).copy_from_slice(part(rows.start)),
                Pooling::Last => tile.row(sequence).copy_from_slice(part(rows.end - 1)),
                Pooling::Mean => mean(rows.map(part), tile.row(sequence)),
            }
        });
    })
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
