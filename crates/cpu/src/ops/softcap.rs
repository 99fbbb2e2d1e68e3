//! Values that approach a cap instead of exceeding it.

use super::rows::each;
use crate::kernels::{CpuKernel, exponential};

/// `y = cap · tanh(x / cap)`.
#[derive(Debug)]
#[allow(missing_docs)] // the formula names them
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
