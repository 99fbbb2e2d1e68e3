//! Gates of whole heads: an activation function of one number times each of a head.

use girih_graph::{Act, ValueId};

use super::activate::{Activate, exact};
use super::executor::Executor;
use super::rows::by_rows;
use crate::bound::BoundOp;
use crate::kernels::{CpuKernel, Table};

/// `y` = the heads `x` of one row, each times its factor. Bytes: 8 a value.
pub struct GateRow<'a> {
    pub act: Act,
    pub gate: &'a [f32],
    pub x: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for GateRow<'_> {
    #[inline(always)]
    fn run(self) {
        let GateRow { act, gate, x, y } = self;
        let size = x.len() / gate.len().max(1);
        for ((gate, x), y) in gate.iter().zip(x.chunks_exact(size)).zip(y.chunks_exact_mut(size)) {
            let mut factor = [0.0];
            Activate { act, x: &[*gate], y: &mut factor }.run();
            y.iter_mut().zip(x).for_each(|(y, x)| *y = factor[0] * x);
        }
    }

    fn run_portable(self) {
        let GateRow { act, gate, x, y } = self;
        let size = x.len() / gate.len().max(1);
        for ((gate, x), y) in gate.iter().zip(x.chunks_exact(size)).zip(y.chunks_exact_mut(size)) {
            let factor = exact(act, f64::from(*gate));
            y.iter_mut().zip(x).for_each(|(y, x)| *y = (factor * f64::from(*x)) as f32);
        }
    }
}

/// Multiplies each head of `size` values by its gate.
pub(crate) fn bind(act: Act, [gate, x]: [ValueId; 2], y: ValueId, size: usize) -> BoundOp {
    BoundOp::new(move |step| {
        let width = step.values.stride(y);
        let (y, [gate, x]) = step.values.split(y, [gate, x]);
        let Executor { table, pool, locals, .. } = &mut step.executor;
        let (table, heads): (&Table, usize) = (table, width / size);
        pool.tiles(locals, y, by_rows(width), |tile, _| {
            for row in tile.rows() {
                let (gate, x) = (&gate[row * heads..][..heads], &x[row * width..][..width]);
                table.run(GateRow { act, gate, x, y: tile.row(row) });
            }
        });
    })
}
