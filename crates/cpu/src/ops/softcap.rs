//! Values that approach a cap instead of exceeding it.

use girih_graph::ValueId;

use super::rows::{each, elementwise};
use crate::bound::BoundOp;
use crate::kernels::{CpuKernel, exponential};

/// `y = cap · tanh(x / cap)`.
pub struct Softcap<'a> {
    pub x: &'a [f32],
    pub cap: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for Softcap<'_> {
    #[inline(always)]
    fn run(self) {
        let Softcap { x, cap, y } = self;
        each(x, y, |x| cap * exponential::tanh(x / cap));
    }

    fn run_portable(self) {
        let cap = f64::from(self.cap);
        each(self.x, self.y, |x| (cap * (f64::from(x) / cap).tanh()) as f32);
    }
}

pub(crate) fn bind(cap: f32, x: ValueId, y: ValueId) -> BoundOp {
    elementwise(y, [x], move |table, [x], y| table.run(Softcap { x, cap, y }))
}
