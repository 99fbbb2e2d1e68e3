//! Gates: an activation function of one value times another.

use girih_graph::Act;

use super::activate::exact;
use super::rows::pairwise;
use crate::kernels::{CpuKernel, exponential};

/// `y = act(gate) · up`. Bytes: 8 read and 4 written a value, against about 30 vector operations for a vector
/// of them, one of which divides.
#[derive(Debug)]
#[allow(missing_docs)] // the formula names them
pub struct Gate<'a> {
    pub act: Act,
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for Gate<'_> {
    #[inline(always)]
    fn run(self) {
        let Gate { act, gate, up, y } = self;
        match act {
            Act::Silu => pairwise(gate, up, y, |gate, up| exponential::silu(gate) * up),
            Act::GeluTanh => pairwise(gate, up, y, |gate, up| exponential::gelu_tanh(gate) * up),
            Act::Gelu => pairwise(gate, up, y, |gate, up| exponential::gelu(gate) * up),
        }
    }

    fn run_portable(self) {
        let Gate { act, gate, up, y } = self;
        pairwise(gate, up, y, |gate, up| (exact(act, f64::from(gate)) * f64::from(up)) as f32);
    }
}
