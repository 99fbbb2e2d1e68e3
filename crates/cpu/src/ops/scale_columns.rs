//! Products of each column with a number of its own.

use girih_graph::ValueId;

use super::rows::each_row;
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y` = a run of `x`, column by column times the weight; zeros stay zeros. Bytes: 8 a value.
pub struct ScaleColumns<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for ScaleColumns<'_> {
    #[inline(always)]
    fn run(self) {
        for ((y, &x), weight) in self.y.iter_mut().zip(self.x).zip(self.weight) {
            *y = if x == 0.0 { 0.0 } else { x * weight };
        }
    }
}

pub(crate) fn bind(x: ValueId, weight: ValueId, y: ValueId, width: usize) -> BoundOp {
    BoundOp::new(move |step| {
        let weight = step.weights.vector(weight);
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, width, y, |table, _, x, y| table.run(ScaleColumns { x, weight, y }));
    })
}
