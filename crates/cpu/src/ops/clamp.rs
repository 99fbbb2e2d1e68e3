//! Values within bounds.

use girih_graph::ValueId;

use super::rows::{each, elementwise};
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y = min(max(x, low), high)`; NaN stays NaN.
pub struct Clamp<'a> {
    pub x: &'a [f32],
    pub low: f32,
    pub high: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for Clamp<'_> {
    #[inline(always)]
    fn run(self) {
        let Clamp { x, low, high, y } = self;
        let above = |x: f32| if x < low { low } else { x };
        each(x, y, |x| if x > high { high } else { above(x) });
    }

    fn run_portable(self) {
        self.run();
    }
}

pub(crate) fn bind([low, high]: [f32; 2], x: ValueId, y: ValueId) -> BoundOp {
    elementwise(y, [x], move |table, [x], y| table.run(Clamp { x, low, high, y }))
}
