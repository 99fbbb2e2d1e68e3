//! A piece of host work: its operands and its cost.

use girih_graph::backend::{Input, Sequence, step_count};
use girih_graph::{Extent, Graph, Node, Value};
use girih_tensor::{Error, Result};

use super::state::NpuState;

/// One kind of host work.
pub trait HostKernel {
    /// Computes the result for the rows of the step; empty if the op writes
    /// state.
    ///
    /// # Errors
    /// When the operands do not match the op.
    fn compute(&self, job: &HostJob<'_>, state: &mut NpuState) -> Result<Vec<f32>>;

    /// The floating-point operations and the bytes of memory traffic, which
    /// determine the host's time.
    fn work(&self, job: &HostJob<'_>) -> HostCost;
}

/// The cost of host work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCost {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// One node's operands in one step.
pub struct HostJob<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// The operands that are values of the step, rows in use one after another;
    /// empty for weights and state.
    pub operands: &'a [Vec<f32>],
    /// The source of weights.
    pub weights: &'a dyn WeightRows,
    /// The inputs of the step.
    pub inputs: &'a [Input<'a>],
    /// The step's sequences.
    pub sequences: &'a [Sequence<'a>],
}

/// Weights, row by row.
pub trait WeightRows {
    /// Row `row` of the weight of this name.
    ///
    /// # Errors
    /// When the weight or the row does not exist.
    fn row(&self, name: &str, row: usize) -> Result<Vec<f32>>;
}

impl HostJob<'_> {
    pub(super) fn operand(&self, index: usize) -> Result<&[f32]> {
        let found = self.operands.get(index).map(Vec::as_slice);
        found.ok_or_else(|| Error::new(format!("{} has no operand {index}", self.node.op.name())))
    }

    /// The name of an operand.
    pub(super) fn name(&self, index: usize) -> &str {
        &self.graph.value(self.node.inputs[index]).name
    }

    /// The number of elements in a row of an operand.
    pub(super) fn stride(&self, index: usize) -> usize {
        self.graph.value(self.node.inputs[index]).shape.stride()
    }

    /// The number of elements of a value in this step.
    pub fn count(&self, value: &Value) -> usize {
        let rows = match value.outermost {
            Extent::Fixed | Extent::Context => value.shape.extents()[0],
            extent => step_count(self.sequences, extent),
        };
        rows * value.shape.stride()
    }

    /// Work that reads and writes each element of operand 0 once, with `flops`
    /// operations on it.
    pub(super) fn each(&self, flops: u64) -> HostCost {
        let count = self.count(self.graph.value(self.node.inputs[0])) as u64;
        HostCost { flops: flops * count, bytes: 8 * count }
    }
}
