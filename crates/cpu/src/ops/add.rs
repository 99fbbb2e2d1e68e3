//! Sums of two values.

use girih_graph::ValueId;

use super::rows::{elementwise, pairwise};
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y = a + b`.
pub struct Add<'a> {
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for Add<'_> {
    #[inline(always)]
    fn run(self) {
        pairwise(self.a, self.b, self.y, |a, b| a + b);
    }
}

pub(crate) fn bind(a: ValueId, b: ValueId, y: ValueId) -> BoundOp {
    elementwise(y, [a, b], |table, [a, b], y| table.run(Add { a, b, y }))
}
