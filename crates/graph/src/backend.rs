//! What a device must provide, and what a step brings to it.

use std::ops::Range;
use std::time::Duration;

use girih_tensor::Shape;

use crate::{Error, Graph, GroupId, Key, Role};

/// A block of state: [`BLOCK_POSITIONS`](crate::BLOCK_POSITIONS) positions of
/// every state value of one group. Whose it is, the engine decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u32);

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The sequence's blocks of each group, in order of position. Entry `i` is
    /// the block of the positions from `i · BLOCK_POSITIONS`, up to the sequence's
    /// last row.
    ///
    /// Blocks that the sequence's rows write belong to no other sequence of the step;
    /// blocks that they only see may be shared. An entry of which no row of the
    /// sequence sees or writes a position (it lies behind the group's window) may
    /// name any block of the group, also one that another sequence now writes:
    /// what stands there must not change any result.
    pub blocks: &'a [&'a [Block]],
    /// Where the sequence's first row stands in its sequence.
    pub position: u32,
    /// The sequence's rows among the rows of the step; sequences follow each other.
    pub rows: Range32,
    /// Which of its rows leave the program.
    pub outputs: Outputs,
    /// Stretches of positions of the sequence's rows whose rows see each other
    /// both ways (the tokens of one image); in order, none empty, none
    /// overlapping another.
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

/// Which rows of a sequence leave the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None: a chunk of a prefill that is not the last.
    None,
    /// The last row: generation.
    Last,
    /// The last so many rows: checking a draft.
    LastN(u32),
    /// Every row: perplexity.
    All,
}

impl Outputs {
    /// How many of `rows` rows are wanted.
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
    /// The indexes of the output rows among the rows of the step.
    pub fn output_rows(&self) -> Range<usize> {
        let rows = self.rows.indexes();
        rows.end - self.outputs.count(rows.len() as u32) as usize..rows.end
    }

    /// The positions that the row at `position` sees: from where `span`
    /// begins up to its own, and all of a mutual span that it lies in, also
    /// what of it lies further back than `span` begins.
    pub fn sees(&self, span: crate::Span, position: usize) -> Range<usize> {
        let first = span.first(position);
        let mutual = self.spans.iter().map(|span| span.indexes()).find(|span| span.contains(&position));
        mutual.map_or(first..position + 1, |mutual| first.min(mutual.start)..mutual.end)
    }
}

/// What goes into a step, one entry per row.
#[derive(Clone, Copy, Debug)]
pub enum Inputs<'a> {
    /// Token ids.
    Tokens(&'a [u32]),
    /// Embeddings, row after row.
    Embeddings(&'a [f32]),
}

/// One call of a program.
pub struct Step<'a> {
    /// What goes in.
    pub inputs: Inputs<'a>,
    /// Whose rows they are.
    pub sequences: &'a [Sequence<'a>],
    /// Receives the output rows of all sequences, in order, row after row.
    pub output: &'a mut [f32],
    /// Sees values as they are made.
    pub watch: &'a mut dyn Watch,
}

/// Sees a step from within: its values as they are made, for `diagnose`, and
/// the time that each node took, for `profile`.
pub trait Watch {
    /// Whether the value of this name is wanted.
    fn wants(&self, name: &str) -> bool;
    /// A value that was wanted, at the extents of this step.
    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]);
    /// Whether times are wanted: asked once a step, before its first node.
    fn clocks(&self) -> bool {
        false
    }
    /// A node that has run, where times are wanted. A backend that does not
    /// run node by node tells of none.
    fn took(&mut self, _: &NodeTime<'_>) {}
}

/// What one node of a step did, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTime<'a> {
    /// The name of the node's result, or of what is prepared for a node.
    pub name: &'a str,
    /// The operator, `linear`, or what the device does between operators.
    pub op: &'static str,
    /// Which of the device's ways to compute it ran, in words: `gemm`,
    /// `avx512`, `int8`, `q4_0`. Without words it has but one.
    pub variant: &'a [&'static str],
    /// Rows of the result.
    pub rows: usize,
    /// Bytes of weights and of state that had to be read, as the device holds
    /// them; each is counted once, however often it was read.
    pub bytes: u64,
    /// Multiplications and additions of products and of attention; none are
    /// counted of other operators, which are bound by memory.
    pub operations: u64,
    /// Wall-clock time.
    pub time: Duration,
}

/// Wants nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn wants(&self, _: &str) -> bool {
        false
    }

    fn value(&mut self, _: &str, _: &Shape, _: &[f32]) {}
}

/// Where weights come from. Nothing obliges a source to hold them in memory.
pub trait WeightSource: Sync {
    /// Fills `into` with the bytes of weight `name` from byte `offset` on, in
    /// the format and shape that the graph states for it.
    ///
    /// # Errors
    /// When there is no such weight, or its file cannot be read.
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error>;

    /// Names what is read, where that can be told without reading it all: two
    /// sources of one identity have the same bytes under the same names.
    fn identity(&self) -> Option<[u8; 32]> {
        None
    }
}

/// Bytes that a loaded program takes, known before anything is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as the device holds them.
    pub weights: u64,
    /// State: all blocks of all groups.
    pub state: u64,
    /// Scratch of the largest step.
    pub scratch: u64,
}

impl MemoryPlan {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.state).saturating_add(self.scratch)
    }
}

/// A node that a backend will not run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name of the node's result.
    pub node: String,
    /// One sentence.
    pub reason: String,
}

/// A device: compiles whole graphs and runs them. Its types are its own.
pub trait Backend: 'static {
    /// Weights in the layout the device wants.
    type Weights;
    /// State of all sequences; outlives any one program.
    type State: State;
    /// One compiled graph.
    type Program;

    /// The name in logs and flags.
    fn name(&self) -> &'static str;
    /// The keys it wants compiled, none larger than `most`, smallest first.
    fn ladder(&self, most: Key) -> Vec<Key>;
    /// The nodes it will not run; empty means that it takes the whole graph.
    fn refuses(&self, graph: &Graph) -> Vec<Refusal>;
    /// What the graph with so many blocks of state per group will take.
    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan;
    /// Reads the graph's weights and lays them out, once.
    ///
    /// # Errors
    /// When the source fails or memory is short.
    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<Self::Weights, Error>;
    /// Makes zeroed state of so many blocks per group, for every program.
    ///
    /// # Errors
    /// When memory is short.
    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<Self::State, Error>;
    /// Compiles one graph.
    ///
    /// # Errors
    /// When the graph has a node that the backend refuses.
    fn compile(&self, graph: &Graph, weights: &Self::Weights) -> Result<Self::Program, Error>;
    /// Runs one step.
    ///
    /// # Errors
    /// When the device fails.
    fn run(
        &self,
        program: &Self::Program,
        weights: &Self::Weights,
        state: &mut Self::State,
        step: Step<'_>,
    ) -> Result<(), Error>;
}

/// What the engine may do to state, block by block.
pub trait State {
    /// Makes `to` equal to `from`.
    fn copy(&mut self, group: GroupId, from: Block, to: Block);
    /// Forgets what a block held.
    fn zero(&mut self, group: GroupId, block: Block);
    /// The bytes of a block.
    fn export(&self, group: GroupId, block: Block) -> Vec<u8>;
    /// Puts back what [`State::export`] gave.
    ///
    /// # Errors
    /// When the bytes are not of this model's blocks.
    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error>;
}

/// The bytes that one block of each state value of `group` takes.
pub fn block_bytes(graph: &Graph, group: GroupId) -> u64 {
    let values = graph.values.iter().filter(|value| value.role == Role::State(group));
    let bytes = values.map(|value| {
        let inner = value.shape.stride() / value.dtype.tile().1 * value.dtype.block_bytes();
        (inner * crate::BLOCK_POSITIONS) as u64
    });
    bytes.sum()
}
