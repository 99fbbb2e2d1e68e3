//! The instructions of a program, in which the graph's values are locations in memory.

use girih_graph::{Act, Pairing, Pooling};
use girih_tensor::Shape;

use crate::activations::ActivationKind;
use crate::ops::attend::AttentionParams;
use crate::state::KvStore;

/// One instruction of a program. Weights and states are indexes into their lists.
#[derive(Debug)]
pub(crate) enum CpuInstruction {
    /// Writes rows into state.
    Write(StateWrites),
    /// Packs activations for the matmuls that follow; `name` is that of the value.
    Pack { source: PackSource, count: RowCount, width: usize, slot: usize, name: String },
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
    /// The name of the value whose heads are rotated while they are written, unless it is watched.
    pub rotated: Option<String>,
    /// The joined names of all values.
    pub name: String,
}

/// Rows for one state value or tensor of the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateWrite {
    pub x: ValueLocation,
    /// The rows of `x` before rotation, if they are rotated while they are written.
    pub unrotated: Option<(ValueLocation, RopeParams)>,
    /// Its index in its store.
    pub state: usize,
}

/// The constants of [`Op::Rope`](girih_graph::Op::Rope).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeParams {
    pub frequencies: usize,
    /// The index of the step's rotations among the program's, one for each weight of frequencies.
    pub table: usize,
    pub pairing: Pairing,
}

/// Matmuls of the same rows with several matrices, in one task.
#[derive(Debug)]
pub(crate) struct Matmuls {
    pub rows: RowCount,
    /// Values in a row.
    pub width: usize,
    /// At most [`ops::MAX_MATMULS`](crate::ops::MAX_MATMULS); their outputs do not overlap.
    pub parts: Vec<Matmul>,
    /// The operator that is fused to the matmuls, and where its output lies; not applied if one
    /// of `parts` is watched.
    pub epilogue: Option<(MatmulEpilogue, ValueLocation)>,
    /// The joined names of all outputs.
    pub name: String,
}

/// An operator that is applied to sums of matmuls before they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MatmulEpilogue {
    /// Adds the residual to the only output.
    Add { residual: ValueLocation },
    /// Multiplies the second output by the activation function of the first.
    Gate { act: Act },
}

/// A matmul with one matrix.
#[derive(Debug)]
pub(crate) struct Matmul {
    /// The slot of its packed activations.
    pub slot: usize,
    pub weight: usize,
    pub bias: Option<usize>,
    pub output: ValueLocation,
    /// The output's name, for watches.
    pub name: String,
    /// The output's shape at the program's key.
    pub shape: Shape,
}

/// The rows to be packed: a value, or the operands of the operator that computes it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PackSource {
    Rows { x: ValueLocation },
    Norm { x: ValueLocation, weight: usize, epsilon: f32 },
    Gate { gate: ValueLocation, up: ValueLocation, act: Act },
}

/// How a value is computed, and where it lies.
#[derive(Debug)]
pub(crate) struct Compute {
    pub call: OpCall,
    pub output: ValueLocation,
    /// The value's name, for watches.
    pub name: String,
    /// The operator's name, for watches.
    pub op: &'static str,
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

/// An operator with all operands that do not change from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpCall {
    /// No computation: the result shares the operand's location.
    Alias,
    Embed {
        /// The index of the input that brings the ids.
        ids: usize,
        table: usize,
    },
    Norm {
        x: ValueLocation,
        weight: usize,
        epsilon: f32,
    },
    LayerNorm {
        x: ValueLocation,
        weight: usize,
        bias: Option<usize>,
        epsilon: f32,
    },
    Rope {
        x: ValueLocation,
        rotation: RopeParams,
    },
    Attend {
        q: ValueLocation,
        store: KvStore,
        keys: usize,
        values: usize,
        attention: AttentionParams,
    },
    ShortConv {
        x: ValueLocation,
        taps: usize,
        /// Its index among the carried values of the graph.
        carried: usize,
    },
    Gather {
        x: ValueLocation,
    },
    Splice {
        x: ValueLocation,
        /// The index of the input that brings the given rows.
        given: usize,
    },
    Pool {
        x: ValueLocation,
        how: Pooling,
    },
    Elementwise(Elementwise),
}

/// An operator that computes element by element.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elementwise {
    Copy { x: ValueLocation },
    Gate { gate: ValueLocation, up: ValueLocation, act: Act },
    Activate { x: ValueLocation, act: Act },
    Add { a: ValueLocation, b: ValueLocation },
    Scale { x: ValueLocation, factor: f32 },
    Softcap { x: ValueLocation, cap: f32 },
}

/// Where the rows of a value lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueLocation {
    pub buffer: StepBuffer,
    /// Values in a row.
    pub stride: usize,
    pub count: RowCount,
}

/// A buffer that a step reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepBuffer {
    /// The input of this index.
    Input(usize),
    /// The step's output.
    Output,
    /// Scratch memory, from this index on.
    Scratch(usize),
}

/// How many rows a value has in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowCount {
    Rows,
    OutputRows,
    /// One row for each sequence.
    Sequences,
}

/// Memory for packed activations of one kind; each packing overwrites the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationSlot {
    pub kind: ActivationKind,
    /// Words for the largest step and the widest rows.
    pub words: usize,
}
