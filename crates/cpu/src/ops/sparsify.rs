//! What of each number of a row lies above a cutoff. The sums are those of `norm`, the variance that of `layer_norm`.
//!
//! Bytes: 8 a value; `x` is read again from L1.

use girih_graph::ValueId;

use super::norm::sum_of;
use super::rows::{each, each_row};
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y = max(x − (mean(x) + deviations · √variance(x)), 0)`.
pub struct Sparsify<'a> {
    pub x: &'a [f32],
    pub deviations: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for Sparsify<'_> {
    #[inline(always)]
    fn run(self) {
        let Sparsify { x, deviations, y } = self;
        let count = x.len() as f32;
        let mean = sum_of(x, |x| x) / count;
        let variance = sum_of(x, |x| (x - mean) * (x - mean)) / count;
        let cutoff = mean + deviations * variance.sqrt();
        // A comparison that lets NaN pass.
        each(x, y, |x| if x - cutoff < 0.0 { 0.0 } else { x - cutoff });
    }
}

/// Cuts each run of `width` values.
pub(crate) fn bind(deviations: f32, x: ValueId, y: ValueId, width: usize) -> BoundOp {
    BoundOp::new(move |step| {
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, width, y, |table, _, x, y| table.run(Sparsify { x, deviations, y }));
    })
}
