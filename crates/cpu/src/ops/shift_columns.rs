//! Differences of each column and a number of its own.

use girih_graph::ValueId;

use super::rows::each_row;
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y` = a run of `x`, column by column less the shift. Bytes: 8 a value.
pub struct ShiftColumns<'a> {
    pub x: &'a [f32],
    pub shift: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for ShiftColumns<'_> {
    #[inline(always)]
    fn run(self) {
        for ((y, x), shift) in self.y.iter_mut().zip(self.x).zip(self.shift) {
            *y = x - shift;
        }
    }
}

pub(crate) fn bind(x: ValueId, shift: ValueId, y: ValueId, width: usize) -> BoundOp {
    BoundOp::new(move |step| {
        let shift = step.weights.vector(shift);
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, width, y, |table, _, x, y| table.run(ShiftColumns { x, shift, y }));
    })
}
