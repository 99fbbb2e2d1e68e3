//! The short convolution: each column of a sequence with taps of its own, over the row and the ones
//! before it.
//!
//! A row is computed from rows of the step and from the carried value, so rows are cut into pieces
//! like those of other operators; the rows to carry are kept when all are computed. A sum begins at
//! the oldest row. Bytes: for each row, the taps, as many rows as there are taps, and the result,
//! nearly all of which is in L1 or L2.

use super::executor::{Executor, StepRows};
use super::rows::by_rows;
use crate::carried::CarriedRows;

/// Convolves the columns of `x` with `taps`, and replaces what is carried.
pub(crate) fn short_conv(
    executor: &mut Executor<'_>,
    x: &[f32],
    taps: &[f32],
    carried: &mut CarriedRows,
    width: usize,
    rows: StepRows<'_>,
    output: &mut [f32],
) {
    let before = &*carried;
    executor.pool.tiles(executor.locals, output, by_rows(width), |tile, _| {
        for row in tile.rows() {
            let sequence = &rows.sequences[rows.origins[row].sequence as usize];
            let (index, held) = (row - sequence.rows.start as usize, before.before(sequence));
            let y = tile.row(row);
            y.fill(0.0);
            let last = taps.len() / width - 1;
            for (tap, taps) in taps.chunks_exact(width).enumerate() {
                let back = last - tap;
                if index >= back {
                    add_products(taps, &x[(row - back) * width..][..width], y);
                } else if let Some(held) = held {
                    add_products(taps, &held[(index + tap) * width..][..width], y);
                } else {
                    // The same bits as with a row of zeros.
                    y.iter_mut().zip(taps).for_each(|(y, tap)| *y += tap * 0.0);
                }
            }
        }
    });
    rows.sequences.iter().for_each(|sequence| carried.carry(sequence, x));
}

/// Adds the products of a row and its taps.
fn add_products(taps: &[f32], x: &[f32], y: &mut [f32]) {
    for ((y, tap), x) in y.iter_mut().zip(taps).zip(x) {
        *y += tap * x;
    }
}
