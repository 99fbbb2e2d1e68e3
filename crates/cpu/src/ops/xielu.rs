//! The activation xIELU.

use girih_graph::{ValueId, Xielu};

use super::rows::{each, elementwise};
use crate::bound::BoundOp;
use crate::kernels::{CpuKernel, exponential};

/// `y = positive · x² + beta · x` for `x > 0`, else
/// `(e^min(x, epsilon) − 1 − x) · negative + beta · x`. Bytes: 4 read and 4 written a value.
pub struct ApplyXielu<'a> {
    pub xielu: Xielu,
    pub x: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for ApplyXielu<'_> {
    #[inline(always)]
    fn run(self) {
        let ApplyXielu { xielu: Xielu { positive, negative, beta, epsilon }, x, y } = self;
        each(x, y, |x| {
            let least = if x < epsilon { x } else { epsilon };
            let below = (exponential::exp_m1_of_negative(least) - x) * negative;
            // NaN takes the second branch, whose last term is NaN.
            (if x > 0.0 { positive * x * x } else { below }) + beta * x
        });
    }

    fn run_portable(self) {
        let ApplyXielu { xielu: Xielu { positive, negative, beta, epsilon }, x, y } = self;
        let [positive, negative, beta, epsilon] = [positive, negative, beta, epsilon].map(f64::from);
        each(x, y, |x| {
            let x = f64::from(x);
            let below = (x.min(epsilon).exp_m1() - x) * negative;
            ((if x > 0.0 { positive * x * x } else { below }) + beta * x) as f32
        });
    }
}

pub(crate) fn bind(xielu: Xielu, x: ValueId, y: ValueId) -> BoundOp {
    elementwise(y, [x], move |table, [x], y| table.run(ApplyXielu { xielu, x, y }))
}
