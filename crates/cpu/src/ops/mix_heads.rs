//! Weighted sums of the heads of a row, in the order of heads.

use girih_graph::ValueId;

use super::executor::Executor;
use super::rows::by_rows;
use crate::bound::BoundOp;
use crate::kernels::{CpuKernel, Table};

/// `y` = the heads `x` of one row, each times its weight, added up. Bytes: 12 a value.
pub struct MixRow<'a> {
    pub weights: &'a [f32],
    pub x: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for MixRow<'_> {
    #[inline(always)]
    fn run(self) {
        let MixRow { weights, x, y } = self;
        y.fill(0.0);
        for (weight, head) in weights.iter().zip(x.chunks_exact(y.len().max(1))) {
            y.iter_mut().zip(head).for_each(|(y, x)| *y += weight * x);
        }
    }
}

/// Mixes `heads` heads.
pub(crate) fn bind([weights, x]: [ValueId; 2], y: ValueId, heads: usize) -> BoundOp {
    BoundOp::new(move |step| {
        let width = step.values.stride(y);
        let (y, [weights, x]) = step.values.split(y, [weights, x]);
        let Executor { table, pool, locals, .. } = &mut step.executor;
        let table: &Table = table;
        pool.tiles(locals, y, by_rows(width), |tile, _| {
            for row in tile.rows() {
                let weights = &weights[row * heads..][..heads];
                let x = &x[row * heads * width..][..heads * width];
                table.run(MixRow { weights, x, y: tile.row(row) });
            }
        });
    })
}
