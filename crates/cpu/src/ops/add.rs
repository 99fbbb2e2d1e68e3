//! Sums of two values.

use super::rows::pairwise;
use crate::kernels::CpuKernel;

/// `y = a + b`.
#[derive(Debug)]
#[allow(missing_docs)] // the formula names them
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
