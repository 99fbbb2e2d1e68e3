//! A node bound to its operands: made from the graph alone, and run in every step.

use std::fmt;

use girih_graph::{GateRule, ValueId};

use crate::step::CpuStep;

/// A node as the backend runs it.
pub(crate) struct BoundOp {
    /// Computes its result in a step.
    pub run: Box<dyn Fn(&mut CpuStep<'_>) + Send>,
    /// The memory that it needs beside its values.
    pub scratch: OpScratch,
    /// Its operands, if its rows can be computed while they are packed for matmuls.
    pub pack_source: Option<PackSource>,
}

impl BoundOp {
    pub fn new(run: impl Fn(&mut CpuStep<'_>) + Send + 'static) -> BoundOp {
        BoundOp { run: Box::new(run), scratch: OpScratch::default(), pack_source: None }
    }
}

impl fmt::Debug for BoundOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BoundOp { run: _, scratch, pack_source } = self;
        f.debug_struct("BoundOp").field("scratch", scratch).field("pack_source", pack_source).finish()
    }
}

/// Memory that ops share, in values of four bytes: it suffices for the op that needs most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpScratch {
    /// Scratch memory of each thread.
    pub local: usize,
    /// Memory that threads share: partial sums of attention, or the inner rows of experts.
    pub partials: usize,
    /// Words that threads share: packed activations of experts, and which rows they belong to.
    pub words: usize,
}

impl OpScratch {
    pub fn max(self, other: OpScratch) -> OpScratch {
        OpScratch {
            local: self.local.max(other.local),
            partials: self.partials.max(other.partials),
            words: self.words.max(other.words),
        }
    }
}

/// The rows to be packed: a value, or the operands of the op that computes it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PackSource {
    Rows { x: ValueId },
    Norm { x: ValueId, weight: Option<ValueId>, epsilon: f32 },
    Gate { gate: ValueId, up: ValueId, rule: GateRule },
}
