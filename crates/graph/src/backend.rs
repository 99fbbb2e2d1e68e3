//! The interface between the engine and a device: steps, state, weights, memory.

use std::ops::Range;
use std::time::Duration;

use girih_tensor::{Error, Shape};

use crate::constant::Span;
use crate::graph::{Graph, Key, Node};
use crate::memory_plan::MemoryPlan;
use crate::numerics::Numerics;
use crate::op::Op;
use crate::output::Output;
use crate::range_fault::RangeFault;
pub use crate::state_kind::BLOCK_POSITIONS;
use crate::value::{Extent, GroupId, Role};

/// A block of state: what every state value of one group holds for [`BLOCK_POSITIONS`]
/// positions. The engine assigns blocks to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u32);

/// The part of a step that belongs to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The sequence's blocks of each group, in order of position. Entry `i` is
    /// the block of the positions from `i · BLOCK_POSITIONS`, up to the sequence's
    /// last row.
    ///
    /// A block that the sequence's rows write belongs to this sequence alone; a block
    /// that they only read may be shared. An entry whose positions are not used,
    /// because they come before [`StateKind::first`](crate::StateKind::first), may name any block of
    /// the group, even one that another sequence writes in this step: its contents must
    /// not change any result.
    ///
    /// A carried value is read from the block of the position before the first row, and written
    /// to that of each position of the rows. The first row of a sequence reads zeros instead.
    pub blocks: &'a [&'a [Block]],
    /// The position of the first row within the sequence.
    pub position: u32,
    /// The sequence's rows among the rows of the step. The sequences of a step
    /// cover its rows in order, without gaps.
    pub rows: Range32,
    /// Which of its rows are output rows.
    pub outputs: Outputs,
    /// Mutual spans: ranges of this step's positions with bidirectional
    /// attention, such as the tokens of one image. They are in order, not empty,
    /// and do not overlap.
    pub spans: &'a [Range32],
}

/// A half-open range of `u32`, which unlike [`Range`] is `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range32 {
    /// The first index.
    pub start: u32,
    /// One past the last index.
    pub end: u32,
}

impl Range32 {
    /// The range as indexes.
    pub fn indexes(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Which rows of a sequence are output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None: a prefill chunk other than the last one.
    None,
    /// The last row: generation.
    Last,
    /// The last `n` rows: verification of a draft.
    LastN(u32),
    /// Every row: perplexity.
    All,
}

impl Outputs {
    /// The number of output rows among `rows` rows.
    pub fn count(self, rows: u32) -> u32 {
        match self {
            Outputs::None => 0,
            Outputs::Last => rows.min(1),
            Outputs::LastN(n) => rows.min(n),
            Outputs::All => rows,
        }
    }
}

impl Sequence<'_> {
    /// The range of the output rows among the rows of the step.
    pub fn output_rows(&self) -> Range<usize> {
        let rows = self.rows.indexes();
        rows.end - self.outputs.count(rows.len() as u32) as usize..rows.end
    }

    /// The positions that the row at `position` attends to: from the start of
    /// `span` to its own, and all of a mutual span that contains it, even
    /// positions before the start of `span`. With [`Span::All`], those of all rows of
    /// the sequence in this step.
    pub fn sees(&self, span: Span, position: usize) -> Range<usize> {
        if span == Span::All {
            return self.position as usize..self.position as usize + self.rows.indexes().len();
        }
        let first = span.first(position);
        let mutual = self.spans.iter().map(|span| span.indexes()).find(|span| span.contains(&position));
        mutual.map_or(first..position + 1, |mutual| first.min(mutual.start)..mutual.end)
    }
}

/// One input of a step.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// One id per row, such as a token or a token type.
    Ids(&'a [u32]),
    /// One row of values per row, row after row.
    Rows(&'a [f32]),
    /// Values of some rows, for `splice`: in order of their rows, without overlap.
    Given(&'a [GivenRows<'a>]),
}

/// Consecutive rows that a step gives, such as those of an image.
#[derive(Clone, Copy, Debug)]
pub struct GivenRows<'a> {
    /// The index of the first one among the rows of the step.
    pub first_row: u32,
    /// The values, row after row.
    pub values: &'a [f32],
}

/// One call of a program.
pub struct Step<'a> {
    /// The inputs, in the order in which the graph declares them.
    pub inputs: &'a [Input<'a>],
    /// The sequences that the rows belong to, in the order of the rows.
    pub sequences: &'a [Sequence<'a>],
    /// Receives values and times while the step runs.
    pub watch: &'a mut dyn Watch,
}

/// The number of rows that a step of these sequences has of a value of this outermost extent; 0
/// for weights and state.
pub fn step_count(sequences: &[Sequence<'_>], extent: Extent) -> usize {
    match extent {
        Extent::Rows => sequences.last().map_or(0, |sequence| sequence.rows.end as usize),
        Extent::OutputRows => sequences.iter().map(|sequence| sequence.output_rows().len()).sum(),
        Extent::Sequences => sequences.len(),
        Extent::Fixed | Extent::Context => 0,
    }
}

/// Receives values of a step as they are computed, for `diagnose`, and the time
/// of each node, for `profile`.
pub trait Watch {
    /// Whether [`Watch::value`] is to receive the value of this name.
    fn wants(&self, name: &str) -> bool;
    /// Receives a value, at the extents of this step.
    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]);
    /// Whether [`Watch::took`] is to receive times. A backend calls this once
    /// per step, before the first node.
    fn clocks(&self) -> bool {
        false
    }
    /// Receives the time of a node that has run. A backend that does not run
    /// node by node never calls this.
    fn took(&mut self, _: &NodeTime<'_>) {}
}

/// The work and the time of one node of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTime<'a> {
    /// The name of the node's result, or of the operand that is prepared for it.
    pub name: &'a str,
    /// The op, such as `linear`, or the device's name for work between ops.
    pub op: &'static str,
    /// The kernel that ran, as a list of words such as `gemm`, `avx512`, `int8`,
    /// `q4_0`; empty if there is only one.
    pub variant: &'a [&'static str],
    /// Rows of the result.
    pub rows: usize,
    /// Bytes of weights and state that the node reads, as the device stores
    /// them; each byte counts once, even if it is read again.
    pub bytes: u64,
    /// Multiplications and additions of `linear` and `attend`; 0 for other ops,
    /// which are bound by memory.
    pub operations: u64,
    /// Wall-clock time.
    pub time: Duration,
}

/// Receives nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn wants(&self, _: &str) -> bool {
        false
    }

    fn value(&mut self, _: &str, _: &Shape, _: &[f32]) {}
}

/// A source of weights, which need not be in memory.
pub trait WeightSource: Sync {
    /// Fills `into` with the bytes of weight `name` from byte `offset` on, in
    /// the format and shape that the graph states for it.
    ///
    /// # Errors
    /// When there is no such weight, or its file cannot be read.
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error>;

    /// The identity of the weights, if it is known without reading them: two
    /// sources with the same identity have the same bytes under the same names.
    fn identity(&self) -> Option<[u8; 32]> {
        None
    }

    /// Checks that everything read so far is of the source that [`WeightSource::identity`]
    /// identifies. What is kept of the weights is kept only after this check, and loading ends
    /// with it.
    ///
    /// # Errors
    /// When the source was changed meanwhile: then the bytes may be a mixture.
    fn check_unchanged(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// A node that a backend does not run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name of the node's result.
    pub node: String,
    /// One sentence.
    pub reason: String,
}

impl Refusal {
    /// The refusal of a node whose op the backend does not know.
    fn unknown_op(graph: &Graph, node: &Node) -> Refusal {
        let mut reason = format!("it has no code for the op '{}'", node.op.name());
        if node.inputs.len() > node.op.spec().required {
            reason += &format!(" with {} operands", node.inputs.len());
        }
        Refusal { node: graph.value(node.output).name.clone(), reason }
    }
}

/// Nodes of a graph that the host computes for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostWork {
    /// The name that the nodes share, without the number of the layer.
    pub name: String,
    /// The op.
    pub op: &'static str,
    /// The number of nodes.
    pub count: usize,
    /// Why the device does not compute them.
    pub reason: String,
}

/// A device that compiles and runs whole graphs.
pub trait Backend: Send + 'static {
    /// Weights in the device's layout.
    type Weights: Send;
    /// State of all sequences, shared by all programs.
    type State: State;
    /// One compiled graph.
    type Program: Send;
    /// The results of a step, where they lie.
    type Output: Output;

    /// The name in logs and flags.
    fn name(&self) -> &'static str;
    /// The name of the kernels or of the device that computes; `-` if there is only one.
    fn kernels(&self) -> String {
        "-".to_owned()
    }
    /// What loading chose for this machine by measurement, for people; no result depends on it.
    fn tuning(&self, _weights: &Self::Weights) -> Option<String> {
        None
    }
    /// A sentence about the rounding that the machine's model decided by default, if it did; results depend on
    /// it.
    fn machine_default(&self, _: &Graph) -> Option<String> {
        None
    }
    /// A line about how the backend runs this graph: kernels, device, slow paths.
    fn describe(&self, _: &Graph) -> String {
        self.name().to_owned()
    }
    /// How the backend rounds while it runs this graph.
    fn numerics(&self, graph: &Graph) -> Numerics;
    /// The nodes that the host computes for the device, by kind, in the graph's order; empty
    /// if the device computes all of them.
    fn host_work(&self, _: &Graph) -> Vec<HostWork> {
        Vec::new()
    }
    /// The keys to compile, none larger than `largest`, smallest first.
    fn ladder(&self, largest: Key) -> Vec<Key>;
    /// Whether the backend has code for an op with this number of operands. It lists the ops
    /// that it runs, so that a new op, or a new optional operand, is refused until it is listed.
    fn knows(&self, op: Op, operands: usize) -> bool;
    /// The nodes that the backend does not run although it has code for their
    /// ops. It is called only for graphs whose ops it all knows.
    fn objections(&self, graph: &Graph) -> Vec<Refusal>;
    /// The nodes that the backend does not run; empty if it runs the whole graph.
    fn refuses(&self, graph: &Graph) -> Vec<Refusal> {
        let unknown = graph.nodes.iter().filter(|node| !self.knows(node.op, node.inputs.len()));
        let unknown: Vec<_> = unknown.map(|node| Refusal::unknown_op(graph, node)).collect();
        if unknown.is_empty() { self.objections(graph) } else { unknown }
    }
    /// The memory of the graph with `blocks[g]` blocks of state for group `g`.
    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan;
    /// Reads the graph's weights and converts them to the device's layout, once.
    ///
    /// # Errors
    /// When the source fails or memory is short.
    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<Self::Weights, Error>;
    /// Makes zeroed state for all programs, `blocks[g]` blocks for group `g`.
    ///
    /// # Errors
    /// When memory is short.
    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<Self::State, Error>;
    /// Compiles one graph.
    ///
    /// # Errors
    /// When the graph has a node that the backend refuses.
    fn compile(&self, graph: &Graph, weights: &Self::Weights) -> Result<Self::Program, Error>;
    /// Makes room for the results of the largest step of this graph.
    ///
    /// # Errors
    /// When memory is short.
    fn output(&self, graph: &Graph) -> Result<Self::Output, Error>;
    /// Runs one step. A backend may return before the results are there:
    /// [`Output::wait`] waits for them.
    ///
    /// # Errors
    /// When the device fails.
    fn run(
        &self,
        program: &Self::Program,
        weights: &Self::Weights,
        state: &mut Self::State,
        output: &mut Self::Output,
        step: Step<'_>,
    ) -> Result<(), Error>;
}

/// The engine's operations on state, block by block. Each may fail, because state may lie on a
/// device; then the contents of the block that it writes are undefined, and others keep theirs.
pub trait State: Send {
    /// Copies block `from` to block `to`.
    ///
    /// # Errors
    /// When the device fails.
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<(), Error>;
    /// Fills a block with zeros.
    ///
    /// # Errors
    /// When the device fails.
    fn zero(&mut self, group: GroupId, block: Block) -> Result<(), Error>;
    /// The bytes of a block.
    ///
    /// # Errors
    /// When the device fails.
    fn export(&self, group: GroupId, block: Block) -> Result<Vec<u8>, Error>;
    /// Writes the bytes from [`State::export`] to a block.
    ///
    /// # Errors
    /// When the bytes are not those of a block of this model, or the device fails.
    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error>;
    /// Takes the keys and values that steps could not store since the last call, because the type of
    /// the state cannot hold them; those of one row in the order of the graph. What the state holds
    /// in their place is undefined, as are later rows of their sequence; other sequences are not affected.
    fn take_range_faults(&mut self) -> Vec<RangeFault>;
}

/// The bytes of one block of every state value of `group`.
pub fn block_bytes(graph: &Graph, group: GroupId) -> u64 {
    let rows = graph.groups[group.0 as usize].kind.rows_per_block();
    let values = graph.values.iter().filter(|value| value.role == Role::State(group));
    let bytes = values.map(|value| {
        let inner = value.row_len() / value.dtype.tile().1 * value.dtype.block_bytes();
        (inner * rows) as u64
    });
    bytes.sum()
}
