//! Products with a constant.

use girih_graph::ValueId;

use super::rows::{each, elementwise};
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y = factor · x`.
pub struct Scale<'a> {
    pub x: &'a [f32],
    pub factor: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for Scale<'_> {
    #[inline(always)]
    fn run(self) {
        each(self.x, self.y, |x| x * self.factor);
    }
}

pub(crate) fn bind(factor: f32, x: ValueId, y: ValueId) -> BoundOp {
    elementwise(y, [x], move |table, [x], y| table.run(Scale { x, factor, y }))
}
