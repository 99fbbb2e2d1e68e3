//! The interface between the engine and a device: steps, state, weights, memory.

use std::fmt;
use std::time::Duration;

use girih_tensor::{Error, ErrorKind, Shape};

use crate::graph::{Graph, Key, Node};
use crate::memory_plan::MemoryPlan;
use crate::numerics::Numerics;
use crate::ops::AppliedOp;
use crate::output::Output;
use crate::range_fault::RangeFault;
pub use crate::sequence::{BLOCK_POSITIONS, Block, GivenRows, Input, Outputs, Range32, Sequence, step_count};
use crate::value::{GroupId, Role, Value};

/// One call of a program.
pub struct Step<'a> {
    /// The inputs, in the order in which the graph declares them.
    pub inputs: &'a [Input<'a>],
    /// The sequences that the rows belong to, in the order of the rows.
    pub sequences: &'a [Sequence<'a>],
    /// Receives values and times while the step runs.
    pub watch: &'a mut dyn Watch,
}

/// What the caller of a step does while it runs: receives values as they are computed, for `diagnose`, and the time
/// of each node, for `profile`; and computes the nodes that a backend leaves to it.
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
    /// Computes routed experts, which [`Backend::leave_experts`] leaves to the caller: their results, row by row.
    ///
    /// # Errors
    /// When they cannot be computed, which ends the step.
    fn experts(&mut self, call: &ExpertsCall<'_>) -> Result<&[f32], Error> {
        let name = call.name;
        Err(Error::new(format!("nothing computes the experts '{name}' of a step; this is a bug in girih")))
    }
}

/// The operands of a node of routed experts in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsCall<'a> {
    /// The name of the node's result.
    pub name: &'a str,
    /// The number of rows, at least one.
    pub rows: usize,
    /// The rows that experts read.
    pub x: &'a [f32],
    /// The weights of each row's experts.
    pub weights: &'a [f32],
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
    /// Multiplications and additions of `linear`, `attend` and `short_conv`; 0 for other ops,
    /// which are bound by memory.
    pub operations: u64,
    /// Wall-clock time.
    pub time: Duration,
}

/// Which bytes of the weights are read to load memory, counted over all of them, round and round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightTouch {
    /// The first one.
    pub first: u64,
    /// The number of bytes to walk over.
    pub bytes: u64,
    /// The distance of the bytes that are read, at least 1.
    pub stride: u64,
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

/// The rows of a table that stays in its file while programs run.
pub trait RowSource: fmt::Debug + Send + Sync {
    /// Fills `into` with the bytes of row `row` from byte `offset` of the row on, in the format that the graph states for
    /// the table.
    ///
    /// # Errors
    /// When there is no such row, or its file cannot be read.
    fn read(&self, row: usize, offset: usize, into: &mut [u8]) -> Result<(), Error>;

    /// Checks that the file is the one that was opened.
    ///
    /// # Errors
    /// When it was changed meanwhile: then rows that were read may be others.
    fn check_unchanged(&self) -> Result<(), Error>;
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
    /// The weights that are held without blocks of zeros, with the share of their blocks that is held and multiplied.
    fn densities(&self, _weights: &Self::Weights) -> Vec<(String, f64)> {
        Vec::new()
    }
    /// Reads some bytes of the weights, and returns their exclusive or; `None` if they lie where they cannot be read.
    fn touch(&self, _weights: &Self::Weights, _touch: WeightTouch) -> Option<u8> {
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
    /// Whether the backend has code for an op with these operands. It answers with a `match` that has no
    /// default arm, so that neither a new op nor a new operand compiles until it is answered.
    fn knows(&self, call: &AppliedOp<&Value>) -> bool;
    /// The nodes that the backend does not run although it has code for their
    /// ops. It is called only for graphs whose ops it all knows.
    fn objections(&self, graph: &Graph) -> Vec<Refusal>;
    /// The nodes that the backend does not run; empty if it runs the whole graph.
    fn refuses(&self, graph: &Graph) -> Vec<Refusal> {
        let is_known = |node: &Node| graph.applied_op(node).is_some_and(|call| self.knows(&call));
        let unknown = graph.nodes.iter().filter(|node| !is_known(node));
        let unknown: Vec<_> = unknown.map(|node| Refusal::unknown_op(graph, node)).collect();
        if unknown.is_empty() { self.objections(graph) } else { unknown }
    }
    /// Leaves the [routed experts](crate::routed_experts) of all graphs to the caller of a step, [`Watch::experts`]: every other
    /// call concerns the other nodes and their weights only.
    ///
    /// # Errors
    /// When the backend computes them itself.
    fn leave_experts(&mut self) -> Result<(), Error> {
        let sentence = format!("the {} backend computes experts itself: remove cpu-experts", self.name());
        Err(Error::with_kind(ErrorKind::Refused, sentence))
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
    /// Runs the node of a name by itself, on inputs of its program, and hands its result to the step's watch. The output of the
    /// step is undefined.
    ///
    /// # Errors
    /// When the backend runs whole steps only, or the device fails.
    fn run_node(
        &self,
        _: &Self::Program,
        _: &Self::Weights,
        _: &mut Self::State,
        _: &mut Self::Output,
        _: Step<'_>,
        node: &str,
    ) -> Result<(), Error> {
        let name = self.name();
        let sentence = format!("the {name} backend does not run '{node}' by itself; this is a bug in girih");
        Err(Error::new(sentence))
    }
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
    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>, Error>;
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
