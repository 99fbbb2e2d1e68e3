//! Sums of two values.

use girih_graph::ValueId;

use super::rows::{elementwise, pairwise, pairwise_in_place};
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

/// `y += factor · x`. Bytes: 8 read and 4 written a value.
pub struct AddScaled<'a> {
    pub x: &'a [f32],
    pub factor: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for AddScaled<'_> {
    #[inline(always)]
    fn run(self) {
        let AddScaled { x, factor, y } = self;
        pairwise_in_place(x, y, |x, y| y + factor * x);
    }
}

pub(crate) fn bind(a: ValueId, b: ValueId, y: ValueId) -> BoundOp {
    elementwise(y, [a, b], |table, [a, b], y| table.run(Add { a, b, y }))
}
