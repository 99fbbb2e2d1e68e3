//! Heads of two parts: a copy.

use girih_graph::ValueId;

use super::rows::by_rows;
use crate::bound::BoundOp;

/// Joins heads of these sizes. Bytes: 8 a value.
pub(crate) fn bind([a, b]: [ValueId; 2], y: ValueId, [first, second]: [usize; 2]) -> BoundOp {
    BoundOp::new(move |step| {
        let width = step.values.stride(y);
        let (y, [a, b]) = step.values.split(y, [a, b]);
        let heads = width / (first + second);
        step.executor.pool.tiles(step.executor.locals, y, by_rows(width), |tile, _| {
            for row in tile.rows() {
                let (a, b) = (&a[row * heads * first..], &b[row * heads * second..]);
                let parts = a.chunks_exact(first).zip(b.chunks_exact(second));
                for (y, (a, b)) in tile.row(row).chunks_exact_mut(first + second).zip(parts) {
                    let (to_a, to_b) = y.split_at_mut(first);
                    to_a.copy_from_slice(a);
                    to_b.copy_from_slice(b);
                }
            }
        });
    })
}
