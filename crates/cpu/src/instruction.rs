//! The instructions of a program.

use girih_graph::{GateRule, ValueId};
use girih_tensor::Shape;

use crate::activations::ActivationKind;
use crate::adapter_node::AdapterNode;
use crate::amount::InstructionWork;
use crate::bound::{BoundOp, PackSource};
use crate::state::KvStore;

/// One instruction of a program.
#[derive(Debug)]
pub(crate) enum CpuInstruction {
    /// Writes rows into state.
    Write(StateWrites),
    /// Packs the rows of the value `x` for the matmuls that follow; `name` is the value's.
    Pack { source: PackSource, x: ValueId, slot: usize, name: String },
    /// Multiplies activations by matrices of weights.
    Matmuls(Matmuls),
    /// Computes a value with any other operator.
    Compute(Compute),
}

/// Writes of keys and values, in one task: to one or two state values of one group, or to two tensors
/// of the step.
#[derive(Debug)]
pub(crate) struct StateWrites {
    pub store: KvStore,
    /// One write for each of these.
    pub parts: Vec<StateWrite>,
    /// The joined names of all values.
    pub name: String,
}

/// Rows for one state value or tensor of the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateWrite {
    pub x: ValueId,
    /// Its index in its store.
    pub state: usize,
}

/// Matmuls of the same rows with several matrices, in one task.
#[derive(Debug)]
pub(crate) struct Matmuls {
    /// The rows that all of them multiply.
    pub x: ValueId,
    /// At most [`ops::MAX_MATMULS`](crate::ops::MAX_MATMULS); their outputs do not overlap.
    pub parts: Vec<Matmul>,
    /// The operator that is fused to the matmuls, and its output; not applied if one of `parts` is
    /// watched.
    pub epilogue: Option<(MatmulEpilogue, ValueId)>,
    /// The joined names of all outputs.
    pub name: String,
}

/// An operator that is applied to sums of matmuls before they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MatmulEpilogue {
    /// Adds the residual to the only output.
    Add { residual: ValueId },
    /// Multiplies the second output by the activation function of the first.
    Gate { rule: GateRule },
}

/// A matmul with one matrix.
#[derive(Debug)]
pub(crate) struct Matmul {
    /// The slot of its packed activations.
    pub slot: usize,
    pub weight: ValueId,
    pub bias: Option<ValueId>,
    pub output: ValueId,
    pub work: Box<InstructionWork>,
    /// The output's name, for watches.
    pub name: String,
    /// The output's shape at the program's key.
    pub shape: Shape,
    /// What adapters add to it; not applied if one of `parts` is watched.
    pub adapters: Option<MatmulAdapters>,
}

/// What adapters add to a matmul.
#[derive(Debug)]
pub(crate) struct MatmulAdapters {
    /// The node that computes it.
    pub node: AdapterNode,
    /// How rows are packed for A and for B.
    pub kinds: [ActivationKind; 2],
    /// The sum of both.
    pub output: ValueId,
    /// The names of what is added and of the sum, for watches.
    pub names: [String; 2],
    pub work: Box<InstructionWork>,
}

/// How a value is computed.
#[derive(Debug)]
pub(crate) struct Compute {
    pub op: BoundOp,
    pub output: ValueId,
    pub work: Box<InstructionWork>,
    /// The value's name, for watches.
    pub name: String,
    /// The operator's name, for watches.
    pub op_name: &'static str,
    /// The value's shape at the program's key.
    pub shape: Shape,
    pub made: Made,
}

/// Which instruction computes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// By its own instruction.
    Here,
    /// Row by row by the instruction that reads it; by its own instruction only if it is watched.
    InPassing,
    /// By the matmuls before it, unless one of these is watched.
    WithMatmuls,
}

/// Memory for packed activations of one kind; each packing overwrites the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationSlot {
    pub kind: ActivationKind,
    /// Words for the largest step and the widest rows.
    pub words: usize,
}
