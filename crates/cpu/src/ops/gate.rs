//! Gates: an activation function of one value times another.

use girih_graph::{Act, ValueId};

use super::activate::exact;
use super::rows::{elementwise, pairwise};
use crate::bound::{BoundOp, PackSource};
use crate::kernels::{CpuKernel, exponential};

/// `y = act(gate) · up`. Bytes: 8 read and 4 written a value, against about 30 vector operations for a vector
/// of them, one of which divides.
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
            Act::Identity => pairwise(gate, up, y, |gate, up| gate * up),
        }
    }

    fn run_portable(self) {
        let Gate { act, gate, up, y } = self;
        pairwise(gate, up, y, |gate, up| (exact(act, f64::from(gate)) * f64::from(up)) as f32);
    }
}

pub(crate) fn bind(act: Act, gate: ValueId, up: ValueId, y: ValueId) -> BoundOp {
    let run = elementwise(y, [gate, up], move |table, [gate, up], y| table.run(Gate { act, gate, up, y }));
    BoundOp { pack_source: Some(PackSource::Gate { gate, up, act }), ..run }
}
