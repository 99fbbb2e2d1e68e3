//! Rows with the root mean square of others. The sums are those of `norm`.
//!
//! Bytes: 12 a value; `x` is read again from L1.

use girih_graph::ValueId;

use super::norm::sum_of;
use super::rows::{each, each_row};
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y = x · (√(mean(like²)) / √(max(mean(x²), least)))`.
pub struct MatchRms<'a> {
    pub x: &'a [f32],
    pub like: &'a [f32],
    pub least: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for MatchRms<'_> {
    #[inline(always)]
    fn run(self) {
        let MatchRms { x, like, least, y } = self;
        let mean = |row: &[f32]| sum_of(row, |x| x * x) / row.len() as f32;
        let own = mean(x);
        // A comparison that lets NaN pass.
        let own = if own < least { least } else { own };
        let factor = mean(like).sqrt() / own.sqrt();
        each(x, y, |x| x * factor);
    }
}

/// Matches each run of `width` values.
pub(crate) fn bind(least: f32, [x, like]: [ValueId; 2], y: ValueId, width: usize) -> BoundOp {
    BoundOp::new(move |step| {
        let (y, [x, like]) = step.values.split(y, [x, like]);
        each_row(&mut step.executor, x, width, y, |table, run, x, y| {
            table.run(MatchRms { x, like: &like[run * width..][..width], least, y });
        });
    })
}
