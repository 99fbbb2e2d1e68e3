//! The short convolution: each column of a sequence with taps of its own, over the row and the ones
//! before it.
//!
//! A row is computed from rows of the step and from the carried value, so rows are cut into pieces
//! like those of other operators; the rows to carry are kept when all are computed. A sum begins with
//! the bias, if there is one, and the oldest row. Bytes: for each row, the taps, as many rows as there are taps, and the result,
//! nearly all of which is in L1 or L2.

use girih_graph::ValueId;

use super::rows::by_rows;
use crate::bound::BoundOp;

/// Convolves the columns of `x` with `taps`, and replaces what is carried.
pub(crate) fn bind([x, taps, carried]: [ValueId; 3], bias: Option<ValueId>, y: ValueId) -> BoundOp {
    BoundOp::new(move |step| {
        let (width, rows, taps) = (step.values.stride(y), step.rows, step.weights.vector(taps));
        let bias = bias.map(|bias| step.weights.vector(bias));
        let carried = step.state.carried_mut(step.values.state(carried));
        let (y, [x]) = step.values.split(y, [x]);
        let (before, last) = (&*carried, taps.len() / width - 1);
        step.executor.pool.tiles(step.executor.locals, y, by_rows(width), |tile, _| {
            for row in tile.rows() {
                let sequence = &rows.sequences[rows.origins[row].sequence as usize];
                let (index, held) = (row - sequence.rows.start as usize, before.before(sequence));
                let y = tile.row(row);
                match bias {
                    Some(bias) => y.copy_from_slice(bias),
                    None => y.fill(0.0),
                }
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
        rows.sequences.iter().for_each(|sequence| carried.carry_rows(sequence, x));
    })
}

/// Adds the products of a row and its taps.
fn add_products(taps: &[f32], x: &[f32], y: &mut [f32]) {
    for ((y, tap), x) in y.iter_mut().zip(taps).zip(x) {
        *y += tap * x;
    }
}
