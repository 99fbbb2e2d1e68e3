//! The values of a graph in one step, node by node, by the definition of each op.

use std::borrow::Cow;

use girih_tensor::{Error, Result, Shape};

use super::attend::{self, HeldRows, ScoreRule};
use super::rows;
use super::weights::WeightRows;
use crate::backend::{BLOCK_POSITIONS, GivenRows, Input, Sequence, step_count};
use crate::graph::{Graph, Node};
use crate::op::Op;
use crate::state::PositionMajor;
use crate::value::{Extent, Role, ValueId};

/// The values of a graph in one step. [`Values::run`] computes the result of one node from
/// values that are there: those of earlier nodes, or those that the caller has set, such as
/// values that a device has computed.
#[derive(Debug)]
pub struct Values<'a> {
    graph: &'a Graph,
    sequences: &'a [Sequence<'a>],
    /// One for each value of the graph.
    slots: Vec<Slot<'a>>,
}

/// What is there of a value.
#[derive(Clone, Debug)]
enum Slot<'a> {
    Empty,
    Computed(Vec<f32>),
    Brought(Input<'a>),
}

impl<'a> Values<'a> {
    /// Begins a step of these sequences; no value is there.
    pub fn new(graph: &'a Graph, sequences: &'a [Sequence<'a>]) -> Values<'a> {
        Values { graph, sequences, slots: vec![Slot::Empty; graph.values.len()] }
    }

    /// Sets what the step brings for an input.
    pub fn bring(&mut self, id: ValueId, input: Input<'a>) {
        self.slots[id.0 as usize] = Slot::Brought(input);
    }

    /// Sets a value: its rows in this step, one after another.
    ///
    /// # Panics
    /// When it has another number of values in this step.
    pub fn set(&mut self, id: ValueId, values: Vec<f32>) {
        assert_eq!(values.len(), self.shape(id).elements(), "'{}' in this step", self.graph.value(id).name);
        self.slots[id.0 as usize] = Slot::Computed(values);
    }

    /// Returns the rows of a value in this step, if they are there. Ids, given rows, weights and
    /// state never are.
    pub fn get(&self, id: ValueId) -> Option<&[f32]> {
        match &self.slots[id.0 as usize] {
            Slot::Computed(values) => Some(values),
            Slot::Brought(Input::Rows(values)) => Some(values),
            Slot::Brought(Input::Ids(_) | Input::Given(_)) | Slot::Empty => None,
        }
    }

    /// As [`Values::get`], and removes the value.
    pub fn take(&mut self, id: ValueId) -> Option<Vec<f32>> {
        match std::mem::replace(&mut self.slots[id.0 as usize], Slot::Empty) {
            Slot::Computed(values) => Some(values),
            Slot::Brought(Input::Rows(values)) => Some(values.to_vec()),
            Slot::Brought(Input::Ids(_) | Input::Given(_)) | Slot::Empty => None,
        }
    }

    /// The extents of a value in this step.
    pub fn shape(&self, id: ValueId) -> Shape {
        let value = self.graph.value(id);
        match value.outermost {
            Extent::Fixed | Extent::Context => value.shape,
            extent => value.shape.with_outermost(step_count(self.sequences, extent)),
        }
    }

    /// Computes the result of a node and keeps it, or writes it to the state.
    ///
    /// # Errors
    /// When a value that the node reads is not there, a weight cannot be read, or the state
    /// belongs to another graph.
    ///
    /// # Panics
    /// When the graph has no such node.
    pub fn run(&mut self, node: usize, weights: &dyn WeightRows, state: &mut PositionMajor) -> Result<()> {
        let node = &self.graph.nodes[node];
        match node.op {
            Op::Write => return self.write(node, state),
            Op::ShortConv => {
                let result = self.short_conv(node, weights, state)?;
                self.slots[node.output.0 as usize] = Slot::Computed(result);
                return Ok(());
            }
            _ => {}
        }
        let result = NodeReads { values: self, node, weights, state }.result()?;
        self.slots[node.output.0 as usize] = Slot::Computed(result);
        Ok(())
    }

    /// Stores every row at its position in its sequence's state.
    fn write(&self, node: &Node, state: &mut PositionMajor) -> Result<()> {
        let (rows, inner) = (self.read(node.inputs[0])?, self.graph.value(node.inputs[0]).shape.stride());
        let name = &self.graph.value(node.output).name;
        for sequence in self.sequences {
            let own = sequence.rows.indexes();
            state.write(name, sequence, &rows[own.start * inner..own.end * inner])?;
        }
        Ok(())
    }

    /// Runs each sequence row by row, from the value that it carries to the one that it leaves.
    fn short_conv(
        &self,
        node: &Node,
        weights: &dyn WeightRows,
        state: &mut PositionMajor,
    ) -> Result<Vec<f32>> {
        let [x, taps, carried] = [0, 1, 2].map(|index| self.graph.value(node.inputs[index]));
        let (rows, width) = (self.read(node.inputs[0])?, x.shape.columns());
        let taps = weights.rows(&taps.name, 0..taps.shape.rows())?;
        let mut result = Vec::with_capacity(rows.len());
        for sequence in self.sequences {
            // The rows that the next one sees before its own.
            let mut before = state.carried(&carried.name, sequence)?;
            for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
                let mut seen = before;
                seen.extend_from_slice(&rows[row * width..(row + 1) * width]);
                result.extend(rows::convolved(&seen, &taps, width));
                before = seen.split_off(width);
                if (position + 1).is_multiple_of(BLOCK_POSITIONS) || row + 1 == sequence.rows.end as usize {
                    state.carry(&carried.name, sequence, position, &before)?;
                }
            }
        }
        Ok(result)
    }

    /// As [`Values::get`]; a value that is not there is an error.
    fn read(&self, id: ValueId) -> Result<&[f32]> {
        self.get(id).ok_or_else(|| self.absent(id))
    }

    fn absent(&self, id: ValueId) -> Error {
        let name = &self.graph.value(id).name;
        Error::new(format!("'{name}' is read before it is there; this is a bug in girih"))
    }
}

/// A node with access to what it reads.
struct NodeReads<'r, 'a> {
    values: &'r Values<'a>,
    node: &'r Node,
    weights: &'r dyn WeightRows,
    state: &'r PositionMajor,
}

impl<'r, 'a> NodeReads<'r, 'a> {
    /// The extents of an operand at the graph's key.
    fn shape(&self, index: usize) -> Shape {
        self.values.graph.value(self.node.inputs[index]).shape
    }

    /// An operand that is a value of the step.
    fn rows(&self, index: usize) -> Result<&'r [f32]> {
        self.values.read(self.node.inputs[index])
    }

    /// All rows of an operand that is a weight.
    fn weight(&self, index: usize) -> Result<Cow<'r, [f32]>> {
        self.weights.rows(self.name(index), 0..self.shape(index).rows())
    }

    /// As [`NodeReads::weight`], if the operand is not absent.
    fn optional(&self, index: usize) -> Result<Option<Cow<'r, [f32]>>> {
        self.node.inputs.get(index).map(|_| self.weight(index)).transpose()
    }

    fn name(&self, index: usize) -> &'r str {
        &self.values.graph.value(self.node.inputs[index]).name
    }

    fn ids(&self, index: usize) -> Result<&'a [u32]> {
        match self.values.slots[self.node.inputs[index].0 as usize] {
            Slot::Brought(Input::Ids(ids)) => Ok(ids),
            _ => Err(self.values.absent(self.node.inputs[index])),
        }
    }

    fn given(&self, index: usize) -> Result<&'a [GivenRows<'a>]> {
        match self.values.slots[self.node.inputs[index].0 as usize] {
            Slot::Brought(Input::Given(given)) => Ok(given),
            _ => Err(self.values.absent(self.node.inputs[index])),
        }
    }

    /// What attention reads as keys or values.
    fn held(&self, index: usize) -> Result<HeldRows<'r>> {
        let value = self.values.graph.value(self.node.inputs[index]);
        let inner = value.shape.stride();
        Ok(match value.role {
            Role::State(_) => HeldRows::State { state: self.state, name: &value.name, inner },
            _ => HeldRows::Step { rows: self.rows(index)?, inner },
        })
    }

    /// The result of the node, which writes no state.
    fn result(&self) -> Result<Vec<f32>> {
        let (inner, sequences) = (self.shape(0), self.values.sequences);
        let x = || self.rows(0);
        Ok(match self.node.op {
            Op::Embed => rows::embed(self.ids(0)?, self.name(1), self.weights)?,
            Op::Splice => rows::splice(x()?, self.given(1)?, inner.stride()),
            Op::Norm { epsilon } => rows::norm(x()?, &self.weight(1)?, epsilon),
            Op::LayerNorm { epsilon } => {
                rows::layer_norm(x()?, &self.weight(1)?, self.optional(2)?.as_deref(), epsilon)
            }
            Op::Linear => rows::linear(x()?, &self.weight(1)?, self.optional(2)?.as_deref(), inner.columns()),
            Op::Reshape => x()?.to_vec(),
            Op::Rope { pairing } => rows::rope(x()?, &self.weight(1)?, pairing, sequences, inner.stride()),
            Op::Write | Op::ShortConv => unreachable!("it writes state"),
            Op::Attend { scale, span, softcap } => {
                let rule = ScoreRule { scale, span, softcap };
                attend::attend(x()?, inner.extents()[1], self.held(1)?, self.held(2)?, sequences, rule)?
            }
            Op::Gate { act } => rows::pairwise(x()?, self.rows(1)?, |gate, up| rows::act(act, gate) * up),
            Op::Activate { act } => rows::each(x()?, |x| rows::act(act, x)),
            Op::Add => rows::pairwise(x()?, self.rows(1)?, |a, b| a + b),
            Op::Scale { factor } => rows::each(x()?, |x| x * f64::from(factor)),
            Op::Softcap { cap } => rows::each(x()?, |x| f64::from(cap) * (x / f64::from(cap)).tanh()),
            Op::Gather => rows::gather(x()?, inner.stride(), sequences),
            Op::Pool { how } => rows::pool(x()?, inner.stride(), how, sequences),
        })
    }
}
