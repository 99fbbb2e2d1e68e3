//! The values of a graph in one step, node by node, by the definition of each op in [`crate::ops`].

use std::borrow::Cow;
use std::ops::Range;

use girih_tensor::{Error, Result, Shape};

use super::weights::WeightRows;
use crate::constant::{GateRule, Weighed, Xielu};
use crate::graph::{Graph, Node};
use crate::ops::attend::{HeldRows, ScoreRule};
use crate::ops::rope::RopeRule;
use crate::ops::route::Router;
use crate::ops::temper::Temperature;
use crate::ops::{
    AppliedOp, activate, add, attend, attend_latent, clamp, concat, embed, experts, gate, gate_heads, gather,
    hadamard, layer_norm, linear, linear_heads, match_rms, mix_heads, norm, pool, reshape, rope, route,
    scale, scale_columns, select_keys, shift_columns, softcap, sparsify, splice, temper, xielu,
};
use crate::sequence::{GivenRows, Input, Sequence, step_count};
use crate::state::PositionMajor;
use crate::value::{Extent, Role, Value, ValueId};

/// The values of a graph in one step. [`Values::run`] computes the result of one node from
/// values that are there: those of earlier nodes, or those that the caller has set, such as
/// values that a device has computed.
#[derive(Debug)]
pub struct Values<'a> {
    pub(super) graph: &'a Graph,
    pub(super) sequences: &'a [Sequence<'a>],
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
        let result = match node.op.applied_to(&node.inputs) {
            Some(AppliedOp::ShortConv { x, taps, carried, bias }) => {
                self.short_conv([x, taps, carried], bias, weights, state)?
            }
            Some(AppliedOp::SsmScan { least, most, x, dt, b, c, a, d, bias, carried }) => {
                self.ssm_scan((least, most), [x, dt, b, c], [a, d, bias], carried, weights, state)?
            }
            Some(AppliedOp::DeltaRule { sharing, q, k, v, beta, dt, a, carried }) => {
                self.delta_rule([q, k, v, beta, dt], sharing, [a, carried], weights, state)?
            }
            _ => NodeReads { values: self, node, weights, state }.result()?,
        };
        let Value { name, role, shape, .. } = self.graph.value(node.output);
        if let Role::State(_) = role {
            for sequence in self.sequences {
                let Range { start, end } = sequence.rows.indexes();
                state.write(name, sequence, &result[start * shape.stride()..end * shape.stride()])?;
            }
        } else {
            self.slots[node.output.0 as usize] = Slot::Computed(result);
        }
        Ok(())
    }

    /// As [`Values::get`]; a value that is not there is an error.
    pub(super) fn read(&self, id: ValueId) -> Result<&[f32]> {
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
    fn value(&self, id: ValueId) -> &'r Value {
        self.values.graph.value(id)
    }

    /// Numbers in a row of an operand.
    fn stride(&self, id: ValueId) -> usize {
        self.value(id).shape.stride()
    }

    /// An operand that is a value of the step.
    fn rows(&self, id: ValueId) -> Result<&'r [f32]> {
        self.values.read(id)
    }

    /// All rows of an operand that is a weight.
    fn weight(&self, id: ValueId) -> Result<Cow<'r, [f32]>> {
        let Value { name, shape, .. } = self.value(id);
        self.weights.rows(name, 0..shape.rows())
    }

    /// As [`NodeReads::weight`], if the operand is not absent.
    fn optional(&self, id: Option<ValueId>) -> Result<Option<Cow<'r, [f32]>>> {
        id.map(|id| self.weight(id)).transpose()
    }

    /// An expert's rows of a weight that has some for each.
    fn of_expert(&self, id: ValueId, expert: usize) -> Result<Cow<'r, [f32]>> {
        let Value { name, shape, .. } = self.value(id);
        let each = shape.rows() / shape.extents()[0];
        self.weights.rows(name, expert * each..(expert + 1) * each)
    }

    fn ids(&self, id: ValueId) -> Result<&'a [u32]> {
        match self.values.slots[id.0 as usize] {
            Slot::Brought(Input::Ids(ids)) => Ok(ids),
            _ => Err(self.values.absent(id)),
        }
    }

    fn given(&self, id: ValueId) -> Result<&'a [GivenRows<'a>]> {
        match self.values.slots[id.0 as usize] {
            Slot::Brought(Input::Given(given)) => Ok(given),
            _ => Err(self.values.absent(id)),
        }
    }

    /// The keys or values of a sequence at some positions: those of the state, or those of the step.
    fn held(&self, id: ValueId, sequence: &Sequence<'_>, positions: Range<usize>) -> Result<Cow<'r, [f32]>> {
        if let Role::State(_) = self.value(id).role {
            return Ok(self.state.rows(&self.value(id).name, sequence, positions)?.into());
        }
        let row = |position: usize| sequence.rows.start as usize + position - sequence.position as usize;
        let inner = self.stride(id);
        Ok(self.rows(id)?[row(positions.start) * inner..row(positions.end) * inner].into())
    }

    /// The sums of experts, with the optional weights gate and the biases of gate, up and down.
    fn experts(
        &self,
        rule: (GateRule, Weighed),
        [x, weights]: [ValueId; 2],
        [up, down]: [ValueId; 2],
        optional: [Option<ValueId>; 4],
    ) -> Result<Vec<f32>> {
        let expert = |index: usize| {
            let [gate, gate_bias, up_bias, down_bias] =
                optional.map(|id| id.map(|id| self.of_expert(id, index)).transpose());
            Ok(experts::Expert {
                up: self.of_expert(up, index)?,
                down: self.of_expert(down, index)?,
                gate: gate?,
                biases: [gate_bias?, up_bias?, down_bias?],
            })
        };
        let columns = [weights, x, self.node.output].map(|id| self.value(id).columns());
        experts::define(self.rows(x)?, self.rows(weights)?, columns, rule, expert)
    }

    /// The result of the node; of a write, the rows that are to be stored.
    #[allow(clippy::too_many_lines, reason = "each op has its arm, which names all of its operands")]
    fn result(&self) -> Result<Vec<f32>> {
        let sequences = self.values.sequences;
        let call = self.node.op.applied_to(&self.node.inputs).ok_or_else(|| {
            let name = &self.value(self.node.output).name;
            Error::new(format!("'{name}' has too few or too many operands; this is a bug in girih"))
        })?;
        Ok(match call {
            AppliedOp::Embed { ids, table } => {
                let row = |row| self.weights.rows(&self.value(table).name, row..row + 1);
                embed::define(self.ids(ids)?, row)?
            }
            AppliedOp::Splice { x, given } => {
                splice::define(self.rows(x)?, self.given(given)?, self.stride(x))
            }
            AppliedOp::Norm { epsilon, x, weight } => norm::define(
                self.rows(x)?,
                self.optional(weight)?.as_deref(),
                epsilon,
                self.value(x).columns(),
            ),
            AppliedOp::LayerNorm { epsilon, x, weight, bias } => {
                let vectors = [self.optional(weight)?, self.optional(bias)?];
                let vectors = vectors.each_ref().map(|vector| vector.as_deref());
                layer_norm::define(self.rows(x)?, vectors, epsilon, self.value(x).columns())
            }
            AppliedOp::Linear { x, weight, bias } => {
                let (weight, bias) = (self.weight(weight)?, self.optional(bias)?);
                linear::define(self.rows(x)?, &weight, bias.as_deref(), self.value(x).columns())
            }
            AppliedOp::LinearHeads { x, weight } => {
                let heads = self.value(x).inner()[0];
                linear_heads::define(self.rows(x)?, &self.weight(weight)?, [heads, self.value(x).columns()])
            }
            AppliedOp::Concat { a, b } => {
                concat::define(self.rows(a)?, self.rows(b)?, [a, b].map(|id| self.value(id).columns()))
            }
            AppliedOp::Route { score, used, normalized, groups, factor, near, scores, bias } => {
                let router = Router { score, used, normalized, groups, factor, near };
                let bias = self.optional(bias)?;
                route::define(self.rows(scores)?, bias.as_deref(), self.value(scores).columns(), router)
            }
            AppliedOp::Experts {
                used: _,
                act,
                limit,
                offset,
                weighed,
                x,
                weights,
                up,
                down,
                gate,
                gate_bias,
                up_bias,
                down_bias,
            } => {
                let rule = (GateRule { act, limit, offset }, weighed);
                self.experts(rule, [x, weights], [up, down], [gate, gate_bias, up_bias, down_bias])?
            }
            AppliedOp::Reshape { x } | AppliedOp::Write { x } => reshape::define(self.rows(x)?),
            AppliedOp::Rope { pairing, factor, x, frequencies, positions } => {
                let given = positions.map(|id| Ok::<_, Error>((self.rows(id)?, self.stride(id))));
                let positions = given.transpose()?;
                let rule = RopeRule { frequencies: &self.weight(frequencies)?, pairing, factor, positions };
                let size = self.values.graph.value(x).shape.columns();
                rope::define(self.rows(x)?, rule, sequences, [self.stride(x), size])
            }
            AppliedOp::Attend { scale, span, softcap, q, keys, values, sinks } => {
                let sinks = self.optional(sinks)?;
                let at = |id| move |sequence: &Sequence<'_>, seen| self.held(id, sequence, seen);
                let [keys_at, values_at] = [keys, values].map(at);
                let [keys, values] = [(keys, &keys_at), (values, &values_at)]
                    .map(|(id, at)| HeldRows { inner: self.stride(id), at });
                let rule = ScoreRule { scale, span, softcap, sinks: sinks.as_deref(), selected: None };
                attend::define(self.rows(q)?, self.value(q).inner()[0], keys, values, sequences, rule)?
            }
            AppliedOp::SelectKeys { best, q, weights, keys } => {
                let keys_at = |sequence: &Sequence<'_>, seen| self.held(keys, sequence, seen);
                let held = HeldRows { inner: self.stride(keys), at: &keys_at };
                let sizes = [best as usize, self.stride(self.node.output)];
                select_keys::define(self.rows(q)?, self.rows(weights)?, sizes, held, sequences)?
            }
            AppliedOp::AttendLatent { scale, span, values, q, latents, selected } => {
                let sizes = [self.value(latents).columns(), values as usize];
                let keys_at = |sequence: &Sequence<'_>, seen| self.held(latents, sequence, seen);
                let values_at = |sequence: &Sequence<'_>, seen| {
                    let latents = self.held(latents, sequence, seen)?;
                    Ok(attend_latent::values(&latents, sizes).into())
                };
                let keys = HeldRows { inner: self.stride(latents), at: &keys_at };
                let values = HeldRows { inner: self.stride(latents) / sizes[0] * sizes[1], at: &values_at };
                let selected = match selected {
                    None => None,
                    Some(id) => Some((self.rows(id)?, self.stride(id))),
                };
                let rule = ScoreRule { scale, span, softcap: None, sinks: None, selected };
                attend::define(self.rows(q)?, self.value(q).inner()[0], keys, values, sequences, rule)?
            }
            AppliedOp::ShortConv { .. } | AppliedOp::SsmScan { .. } | AppliedOp::DeltaRule { .. } => {
                unreachable!("it replaces state; `Values::run` computes it")
            }
            AppliedOp::Gate { act, limit, offset, gate, up } => {
                gate::define(self.rows(gate)?, self.rows(up)?, GateRule { act, limit, offset })
            }
            AppliedOp::GateHeads { act, gate, x } => {
                gate_heads::define(self.rows(gate)?, self.rows(x)?, self.value(x).columns(), act)
            }
            AppliedOp::Temper { beta, every, offset, x } => {
                let temperature = Temperature { beta, every, offset };
                temper::define(self.rows(x)?, self.stride(x), temperature, sequences)
            }
            AppliedOp::Activate { act, x } => activate::define(self.rows(x)?, act),
            AppliedOp::Xielu { positive, negative, beta, epsilon, x } => {
                xielu::define(self.rows(x)?, Xielu { positive, negative, beta, epsilon })
            }
            AppliedOp::MatchRms { least, x, like } => {
                match_rms::define(self.rows(x)?, self.rows(like)?, least, self.value(x).columns())
            }
            AppliedOp::Sparsify { deviations, x } => {
                sparsify::define(self.rows(x)?, deviations, self.value(x).columns())
            }
            AppliedOp::MixHeads { weights, x } => {
                let sizes = [self.value(x).inner()[0], self.value(x).columns()];
                mix_heads::define(self.rows(weights)?, self.rows(x)?, sizes)
            }
            AppliedOp::Add { a, b } => add::define(self.rows(a)?, self.rows(b)?),
            AppliedOp::Scale { factor, x } => scale::define(self.rows(x)?, factor),
            AppliedOp::ScaleColumns { x, weight } => {
                scale_columns::define(self.rows(x)?, &self.weight(weight)?)
            }
            AppliedOp::ShiftColumns { x, shift } => {
                shift_columns::define(self.rows(x)?, &self.weight(shift)?)
            }
            AppliedOp::Softcap { cap, x } => softcap::define(self.rows(x)?, cap),
            AppliedOp::Clamp { low, high, x } => clamp::define(self.rows(x)?, low, high),
            AppliedOp::Hadamard { size, x } => hadamard::define(self.rows(x)?, size),
            AppliedOp::Gather { x } => gather::define(self.rows(x)?, self.stride(x), sequences),
            AppliedOp::Pool { how, x } => pool::define(self.rows(x)?, self.stride(x), how, sequences),
        })
    }
}
