//! Gates: an activation function of one value times another.

use girih_graph::{Act, GateLimit, GateRule, ValueId};

use super::activate::{exact, relu};
use super::rows::{elementwise, pairwise_in_place};
use crate::bound::{BoundOp, PackSource};
use crate::kernels::{CpuKernel, exponential};

/// `up = act(gate) · up`, or what else the rule says. It works in place, so that a matmul can gate all rows of a band in
/// one call. Bytes: 8 read and 4 written a value, against about 30 vector operations for a vector of values; one is a
/// division.
pub struct Gate<'a> {
    pub rule: GateRule,
    pub gate: &'a [f32],
    pub up: &'a mut [f32],
}

impl CpuKernel for Gate<'_> {
    #[inline(always)]
    fn run(self) {
        match self.rule.act {
            Act::Silu => self.each(|gate, up| exponential::silu(gate) * up),
            Act::GeluTanh => self.each(|gate, up| exponential::gelu_tanh(gate) * up),
            Act::Gelu => self.each(|gate, up| exponential::gelu(gate) * up),
            Act::QuickGelu => self.each(|gate, up| exponential::quick_gelu(gate) * up),
            Act::Sigmoid => self.each(|gate, up| exponential::sigmoid(gate) * up),
            Act::Softplus => self.each(|gate, up| exponential::softplus(gate) * up),
            Act::Relu => self.each(|gate, up| relu(gate) * up),
            // The square alone may overflow.
            Act::Relu2 => self.each(|gate, up| relu(gate) * (relu(gate) * up)),
            Act::Identity => self.each(|gate, up| gate * up),
        }
    }

    fn run_portable(self) {
        let act = self.rule.act;
        self.each(|gate, up| (exact(act, f64::from(gate)) * f64::from(up)) as f32);
    }
}

impl Gate<'_> {
    /// Computes each element by `gated`, from operands that are clamped if the rule says so.
    #[inline(always)] // Kernels consist of it.
    fn each(self, gated: impl Fn(f32, f32) -> f32) {
        let Gate { rule: GateRule { act: _, limit, offset }, gate, up } = self;
        if limit.is_none() && offset.is_none() {
            return pairwise_in_place(gate, up, gated);
        }
        let (bound, offset) = (limit.map_or(f32::INFINITY, GateLimit::bound), offset.unwrap_or(0.0));
        // Comparisons let NaN pass.
        let at_most = |x: f32| if x > bound { bound } else { x };
        let clamped = |up: f32| -at_most(-at_most(up)) + offset;
        if let Some(GateLimit::Activated(_)) = limit {
            return pairwise_in_place(gate, up, |gate, up| at_most(gated(gate, 1.0)) * clamped(up));
        }
        pairwise_in_place(gate, up, |gate, up| gated(at_most(gate), clamped(up)));
    }
}

pub(crate) fn bind(rule: GateRule, gate: ValueId, up: ValueId, y: ValueId) -> BoundOp {
    let run = elementwise(y, [gate, up], move |table, [gate, up], y| {
        y.copy_from_slice(up);
        table.run(Gate { rule, gate, up: y });
    });
    BoundOp { pack_source: Some(PackSource::Gate { gate, up, rule }), ..run }
}
