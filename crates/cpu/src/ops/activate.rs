//! Activation functions.

use girih_graph::{Act, ValueId};
use girih_tensor::reference;

use super::rows::{each, elementwise};
use crate::bound::BoundOp;
use crate::kernels::{CpuKernel, exponential};

/// `y = act(x)`. Bytes: 4 read and 4 written a value.
pub struct Activate<'a> {
    pub act: Act,
    pub x: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for Activate<'_> {
    #[inline(always)]
    fn run(self) {
        let Activate { act, x, y } = self;
        match act {
            Act::Silu => each(x, y, exponential::silu),
            Act::GeluTanh => each(x, y, exponential::gelu_tanh),
            Act::Gelu => each(x, y, exponential::gelu),
            Act::QuickGelu => each(x, y, exponential::quick_gelu),
            Act::Sigmoid => each(x, y, exponential::sigmoid),
            Act::Softplus => each(x, y, exponential::softplus),
            Act::Relu => each(x, y, relu),
            Act::Relu2 => each(x, y, |x| relu(x) * relu(x)),
            Act::Identity => y.copy_from_slice(x),
        }
    }

    fn run_portable(self) {
        each(self.x, self.y, |x| exact(self.act, f64::from(x)) as f32);
    }
}

/// `max(x, 0)`; NaN stays NaN.
#[inline(always)] // Kernels consist of it.
pub(super) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `act(x)`, to be rounded once.
pub(super) fn exact(act: Act, x: f64) -> f64 {
    match act {
        Act::Silu => x / (1.0 + (-x).exp()),
        // `x/2 · (1 + tanh(z))` is `x / (1 + e^−2z)`, in which nothing cancels.
        Act::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * inner).exp())
        }
        Act::Gelu => 0.5 * x * (1.0 + reference::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Act::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
        Act::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Act::Softplus => (if x < 0.0 { 0.0 } else { x }) + (-x.abs()).exp().ln_1p(),
        Act::Relu => f64::from(relu(x as f32)),
        Act::Relu2 => f64::from(relu(x as f32)).powi(2),
        Act::Identity => x,
    }
}

pub(crate) fn bind(act: Act, x: ValueId, y: ValueId) -> BoundOp {
    elementwise(y, [x], move |table, [x], y| table.run(Activate { act, x, y }))
}
