//! Products with a constant.

use super::rows::each;
use crate::kernels::CpuKernel;

/// `y = factor · x`.
#[derive(Debug)]
#[allow(missing_docs)] // the formula names them
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
