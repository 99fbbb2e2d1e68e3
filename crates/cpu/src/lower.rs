//! Lowers a graph to a flat list of instructions whose operands are locations in memory.

use girih_graph::backend::Refusal;
use girih_graph::{
    AppliedOp, Error, Extent, Graph, MAX_OPERANDS, Node, Numerics, Op, OperandKind, Pairing, Role, Rounding,
    ScratchPlan, SunkGather, Value, ValueId,
};
use girih_tensor::{DType, Shape};

use crate::activations::{ActivationKind, ActivationPrecision, PrecisionRule};
use crate::amount::{InstructionWork, OperandStore};
use crate::fuse::{Fusion, grouped, joined_name};
use crate::instruction::{
    ActivationSlot, Compute, CpuInstruction, Elementwise, Made, Matmul, Matmuls, OpCall, PackSource,
    RopeParams, StateWrite, StateWrites,
};
use crate::kernels::Table;
use crate::ops;
use crate::ops::attend::AttentionParams;
use crate::state::{self, KvStore};
use crate::step_values::{RowCount, StepBuffer, ValueLocation};
use crate::weights::{CpuWeights, WeightForm};

/// Whether the backend has code for an op; [`Lowering::call`] takes its operands apart.
pub(crate) fn knows<T>(call: &AppliedOp<T>) -> bool {
    match call {
        AppliedOp::Embed { .. }
        | AppliedOp::Splice { .. }
        | AppliedOp::Norm { .. }
        | AppliedOp::LayerNorm { .. }
        | AppliedOp::Linear { .. }
        | AppliedOp::Reshape { .. }
        | AppliedOp::Rope { .. }
        | AppliedOp::Write { .. }
        | AppliedOp::Attend { .. }
        | AppliedOp::Gate { .. }
        | AppliedOp::Activate { .. }
        | AppliedOp::Add { .. }
        | AppliedOp::Scale { .. }
        | AppliedOp::Softcap { .. }
        | AppliedOp::Gather { .. }
        | AppliedOp::Pool { .. } => true,
    }
}

/// How matmuls of `graph` round activations.
pub(crate) fn numerics(graph: &Graph, rule: PrecisionRule, table: &Table) -> Numerics {
    let linear = || graph.nodes.iter().filter(|node| node.op == Op::Linear);
    let kind = |node| ActivationKind::of_node(graph, node, rule);
    let used: Vec<ActivationKind> = linear().map(kind).collect();
    let coarsest_first = ActivationPrecision::ALL.iter().rev();
    let roundings = coarsest_first.filter_map(|precision| {
        let mut of_this = used.iter().filter(|kind| kind.precision() == *precision);
        // If one precision has two kinds, the one with an instruction of its own.
        of_this.clone().find(|kind| **kind == ActivationKind::Bf16Pairs).or_else(|| of_this.next())
    });
    let head = linear().find(|node| yields_output(graph, node.output)).map(kind);
    Numerics {
        stores: DType::F32,
        activations: roundings.map(|kind| kind.rounding(table)).collect(),
        head: head.map_or(Rounding::NONE, |kind| kind.rounding(table)),
    }
}

/// The precisions that activations are rounded to in matmuls of `graph`.
pub(crate) fn activations(graph: &Graph, rule: PrecisionRule) -> Vec<ActivationPrecision> {
    let linear = graph.nodes.iter().filter(|node| node.op == Op::Linear);
    linear.map(|node| ActivationKind::of_node(graph, node, rule).precision()).collect()
}

/// Whether a value is the graph's output, possibly after a scale or a cap.
fn yields_output(graph: &Graph, mut id: ValueId) -> bool {
    loop {
        let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&id));
        match (readers.next(), readers.next()) {
            (None, _) => return graph.value(id).role == Role::Output,
            (Some(Node { op: Op::Scale { .. } | Op::Softcap { .. }, output, .. }), None) => id = *output,
            _ => return false,
        }
    }
}

/// The nodes of `graph` that cannot run by this rule.
pub(crate) fn objections(graph: &Graph, rule: PrecisionRule) -> Vec<Refusal> {
    let refuse =
        |node: &Node, reason: String| Refusal { node: graph.value(node.output).name.clone(), reason };
    let unused = rule.requested().filter(|precision| !activations(graph, rule).contains(precision));
    graph.nodes.iter().filter_map(|node| Some(refuse(node, objection(graph, node, unused)?))).collect()
}

/// Why a node cannot run, if it cannot; `unused` is the requested precision if no
/// weight of the graph can be multiplied by it.
fn objection(graph: &Graph, node: &Node, unused: Option<ActivationPrecision>) -> Option<String> {
    let operands = (0..node.inputs.len()).find_map(|index| operand_objection(graph, node, index));
    operands.or_else(|| matmul_objection(graph, node, unused?)).or_else(|| {
        let (row, table) = (graph.value(node.output).shape.stride(), graph.value(*node.inputs.last()?));
        let width = table.shape.columns();
        (node.op == Op::Embed && row != width)
            .then(|| format!("its rows have {row} values, those of the table {width}"))
    })
}

/// Why a matmul cannot use activations of `unused`.
fn matmul_objection(graph: &Graph, node: &Node, unused: ActivationPrecision) -> Option<String> {
    let (dtype, name) = (graph.value(*node.inputs.get(1)?).dtype, unused.name());
    let message =
        || format!("{dtype} weights cannot be multiplied by {name} activations; choose f32 or bf16");
    (node.op == Op::Linear).then(message)
}

/// What is wrong with one operand of a node, if anything.
fn operand_objection(graph: &Graph, node: &Node, index: usize) -> Option<String> {
    let id = node.inputs[index];
    let name = &graph.value(id).name;
    let need = *node.op.spec().operands.get(index)?;
    if !need.fits(graph.value(id)) {
        return Some(format!("its operand '{name}' is not {need}, which '{}' needs", node.op.name()));
    }
    if need == OperandKind::StateOrRows
        && matches!(graph.value(id).role, Role::State(_))
        && let Some(reason) = state::objection(graph, id)
    {
        return Some(format!("its operand '{name}' cannot be stored: {reason}"));
    }
    let form = WeightForm::of(node.op, index);
    (form.is_some() && WeightForm::in_graph(graph, id) != form)
        .then(|| format!("its operand '{name}' is used as a matrix and as a vector"))
}

/// The number of rows of a value, if it is one of activations.
fn row_count(value: &Value) -> Option<RowCount> {
    let is_activations = OperandKind::Activations.fits(value);
    is_activations.then(|| match value.outermost {
        Extent::Rows => RowCount::Rows,
        Extent::OutputRows => RowCount::OutputRows,
        Extent::Sequences => RowCount::Sequences,
        Extent::Fixed | Extent::Context => unreachable!("activations have rows"),
    })
}

/// A graph as the backend runs it.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub instructions: Vec<CpuInstruction>,
    /// The memory for packed activations.
    pub slots: Vec<ActivationSlot>,
}

/// One slot for each kind of activations in the graph's matmuls.
pub(crate) fn slots(graph: &Graph, rule: PrecisionRule) -> Vec<ActivationSlot> {
    let mut slots: Vec<ActivationSlot> = Vec::new();
    for node in graph.nodes.iter().filter(|node| node.op == Op::Linear) {
        let x = graph.value(node.inputs[0]);
        let kind = ActivationKind::of_node(graph, node, rule);
        let words = kind.size(x.shape.rows(), x.shape.columns());
        match slots.iter_mut().find(|slot| slot.kind == kind) {
            Some(slot) => slot.words = slot.words.max(words),
            None => slots.push(ActivationSlot { kind, words }),
        }
    }
    slots
}

/// Lowers a graph.
///
/// # Errors
/// If a node is refused, or a weight is not in `weights`.
pub(crate) fn lower(graph: &Graph, weights: &CpuWeights, rule: PrecisionRule) -> Result<Lowered, Error> {
    if let Some(Refusal { node, reason }) = objections(graph, rule).first() {
        return Err(Error::new(format!("the cpu backend does not run '{node}': {reason}")));
    }
    let graph = &grouped(graph);
    let plan = ScratchPlan::of(graph);
    let slots = slots(graph, rule);
    let mut packed: Vec<Option<ValueId>> = vec![None; slots.len()];
    let fusion = Fusion { graph, locations: locations(graph, &plan), rule, slots: &slots };
    let lowering = Lowering { weights, fusion: &fusion };
    let mut instructions = Vec::with_capacity(graph.nodes.len());
    let (mut index, mut fused) = (0, None);
    while index < graph.nodes.len() {
        let count = fusion.run_length(index);
        let nodes = &graph.nodes[index..index + count];
        for (slot, node) in nodes.iter().filter_map(|node| Some((fusion.slot(node)?, node))) {
            let x = node.inputs[0];
            if packed[slot] != Some(x) {
                instructions.push(lowering.pack(x, PackSource::Rows { x: fusion.location(x) }, slot));
                packed[slot] = Some(x);
            }
        }
        let packed_into = if fused == Some(index) { None } else { fusion.packed_into(index) };
        match nodes[0].op {
            Op::Linear => {
                fused = fusion.epilogue(index, count).map(|_| index + count);
                instructions.push(CpuInstruction::Matmuls(lowering.matmuls(index, count)?));
            }
            Op::Write => instructions.push(CpuInstruction::Write(lowering.writes(index, count)?)),
            op => {
                if matches!(op, Op::Attend { .. }) {
                    instructions.extend(lowering.step_writes(&nodes[0]).map(CpuInstruction::Write));
                }
                let made = match fused == Some(index) {
                    true => Made::WithMatmuls,
                    false if packed_into.is_some() || fusion.rotated_in_passing(index) => Made::InPassing,
                    false => Made::Here,
                };
                instructions.push(CpuInstruction::Compute(lowering.compute(&nodes[0], made)?));
            }
        }
        if let Some(slot) = packed_into {
            instructions.push(lowering.pack(nodes[0].output, lowering.source(&nodes[0])?, slot));
            packed[slot] = Some(nodes[0].output);
        }
        index += count;
    }
    Ok(Lowered { instructions, slots })
}

/// The length of scratch memory, in `f32` values, that the values of `graph` need,
/// with and without the gather sunk.
pub(crate) fn scratch_len(graph: &Graph, sunk: Option<&SunkGather>) -> usize {
    let size = |graph: &Graph| ScratchPlan::of(&grouped(graph)).bytes / size_of::<f32>();
    size(graph).max(sunk.map_or(0, |sunk| size(&sunk.graph)))
}

/// Where each value lies; `None` for tokens, weights and states.
fn locations(graph: &Graph, plan: &ScratchPlan) -> Vec<Option<ValueLocation>> {
    let mut locations: Vec<Option<ValueLocation>> = Vec::with_capacity(graph.values.len());
    for (index, (value, planned)) in graph.values.iter().zip(&plan.placements).enumerate() {
        let Some(count) = row_count(value) else {
            locations.push(None);
            continue;
        };
        let buffer = match value.role {
            Role::Input => StepBuffer::Input(input_index(graph, ValueId(index as u32))),
            Role::Output => StepBuffer::Output,
            _ => StepBuffer::Scratch(planned.map_or(0, |location| location.offset / size_of::<f32>())),
        };
        locations.push(Some(ValueLocation { buffer, stride: value.shape.stride(), count }));
    }
    // The plan covers scratch only, but a reshaped input needs no memory either.
    for node in graph.nodes.iter().filter(|node| node.op == Op::Reshape) {
        let (from, to) = (node.inputs[0].0 as usize, node.output.0 as usize);
        if let (Some(from), Some(to)) = (locations[from], &mut locations[to])
            && to.buffer != StepBuffer::Output
        {
            to.buffer = from.buffer;
        }
    }
    locations
}

/// The index of an input among those of the graph.
fn input_index(graph: &Graph, id: ValueId) -> usize {
    graph.inputs().position(|(input, _)| input == id).expect("it is an input of the graph")
}

/// Builds instructions; [`Fusion`] decides which nodes each of them contains.
struct Lowering<'a> {
    weights: &'a CpuWeights,
    fusion: &'a Fusion<'a>,
}

impl Lowering<'_> {
    /// The `count` matmuls of one value from node `index` on.
    fn matmuls(&self, index: usize, count: usize) -> Result<Matmuls, Error> {
        let nodes = &self.fusion.graph.nodes[index..index + count];
        let part = |node: &Node| {
            let Some(AppliedOp::Linear { x: _, weight, bias }) = node.op.applied_to(&node.inputs) else {
                unreachable!("only linear ops are matmuls")
            };
            Ok(Matmul {
                slot: self.fusion.slot(node).expect("there is a slot for each matmul"),
                weight: self.weight(weight)?,
                bias: bias.map(|bias| self.weight(bias)).transpose()?,
                output: self.fusion.location(node.output),
                work: self.work(node)?,
                name: self.name(node.output).to_owned(),
                shape: self.fusion.graph.value(node.output).shape,
            })
        };
        let epilogue = self.fusion.epilogue(index, count);
        let last = if epilogue.is_some() { index + count + 1 } else { index + count };
        let names: Vec<&str> =
            self.fusion.graph.nodes[index..last].iter().map(|node| self.name(node.output)).collect();
        Ok(Matmuls {
            rows: self.fusion.location(nodes[0].inputs[0]).count,
            width: self.fusion.graph.value(nodes[0].inputs[1]).shape.columns(),
            parts: nodes.iter().map(part).collect::<Result<_, Error>>()?,
            epilogue: epilogue.map(|epilogue| {
                (epilogue, self.fusion.location(self.fusion.graph.nodes[index + count].output))
            }),
            name: joined_name(&names),
        })
    }

    /// The `count` writes from node `index` on.
    fn writes(&self, index: usize, count: usize) -> Result<StateWrites, Error> {
        let before = index.checked_sub(1).filter(|&before| self.fusion.rotated_in_passing(before));
        let rope = before.map(|before| &self.fusion.graph.nodes[before]);
        let part = |node: &Node| {
            let rope = rope.filter(|rope| rope.output == node.inputs[0]);
            let unrotated = rope.map(|rope| match self.call(rope)? {
                OpCall::Rope { x, rotation } => Ok((x, rotation)),
                _ => unreachable!("only ropes rotate heads"),
            });
            let x = self.fusion.location(node.inputs[0]);
            Ok(StateWrite { x, unrotated: unrotated.transpose()?, state: self.state(node.output) })
        };
        let nodes = &self.fusion.graph.nodes[index..index + count];
        let names: Vec<&str> = rope.into_iter().chain(nodes).map(|node| self.name(node.output)).collect();
        Ok(StateWrites {
            store: KvStore::State,
            parts: nodes.iter().map(part).collect::<Result<_, Error>>()?,
            rotated: rope.map(|rope| self.name(rope.output).to_owned()),
            name: joined_name(&names),
        })
    }

    /// The writes before an attention to rows of the step.
    fn step_writes(&self, node: &Node) -> Option<StateWrites> {
        let indexes = state::step_indexes(self.fusion.graph, node)?;
        let parts = node.inputs[1..].iter().zip(indexes).map(|(id, state)| StateWrite {
            x: self.fusion.location(*id),
            unrotated: None,
            state,
        });
        let names: Vec<&str> = node.inputs[1..].iter().map(|id| self.name(*id)).collect();
        Some(StateWrites {
            store: KvStore::Step,
            parts: parts.collect(),
            rotated: None,
            name: joined_name(&names),
        })
    }

    fn rotation(&self, pairing: Pairing, frequencies: ValueId) -> Result<RopeParams, Error> {
        let table = rotation_frequencies(self.fusion.graph).iter().position(|id| *id == frequencies);
        let table = table.expect("the frequencies of every rope are listed");
        Ok(RopeParams { frequencies: self.weight(frequencies)?, table, pairing })
    }

    /// The operands of a node whose rows are computed while they are packed.
    fn source(&self, node: &Node) -> Result<PackSource, Error> {
        Ok(match self.call(node)? {
            OpCall::Norm { x, weight, epsilon } => PackSource::Norm { x, weight, epsilon },
            OpCall::Elementwise(Elementwise::Gate { gate, up, act }) => PackSource::Gate { gate, up, act },
            _ => unreachable!("only norms and gates are computed while they are packed"),
        })
    }

    fn pack(&self, x: ValueId, source: PackSource, slot: usize) -> CpuInstruction {
        let (ValueLocation { stride, count, .. }, name) =
            (self.fusion.location(x), self.fusion.graph.value(x).name.clone());
        CpuInstruction::Pack { source, count, width: stride, slot, name }
    }

    fn compute(&self, node: &Node, made: Made) -> Result<Compute, Error> {
        let value = self.fusion.graph.value(node.output);
        Ok(Compute {
            call: self.call(node)?,
            output: self.fusion.location(node.output),
            work: self.work(node)?,
            name: value.name.clone(),
            op: node.op.name(),
            shape: value.shape,
            made,
        })
    }

    /// What a node has to do, and where its operands are.
    fn work(&self, node: &Node) -> Result<Box<InstructionWork>, Error> {
        let shapes: Vec<Shape> = node.inputs.iter().map(|id| self.fusion.graph.value(*id).shape).collect();
        let call = node.op.applied_to(&shapes).expect("graphs are checked before they are lowered");
        let mut stored = [OperandStore::Step; MAX_OPERANDS];
        for (stored, &id) in stored.iter_mut().zip(&node.inputs) {
            *stored = match self.fusion.graph.value(id).role {
                Role::Weight => OperandStore::Weights(self.weight(id)?),
                Role::State(_) => OperandStore::State(self.state(id)),
                Role::Input | Role::Scratch | Role::Output => OperandStore::Step,
            };
        }
        Ok(Box::new(InstructionWork { call, stored }))
    }

    /// The index of a weight.
    fn weight(&self, id: ValueId) -> Result<usize, Error> {
        self.weights.index(self.name(id))
    }

    fn name(&self, id: ValueId) -> &str {
        &self.fusion.graph.value(id).name
    }

    fn call(&self, node: &Node) -> Result<OpCall, Error> {
        let location = |id: ValueId| self.fusion.location(id);
        let weight = |id: ValueId| self.weight(id);
        let call = node.op.applied_to(&node.inputs).expect("graphs are checked before they are lowered");
        Ok(match call {
            AppliedOp::Reshape { x } if location(x).buffer == location(node.output).buffer => OpCall::Alias,
            AppliedOp::Reshape { x } => OpCall::Elementwise(Elementwise::Copy { x: location(x) }),
            AppliedOp::Embed { ids, table } => {
                OpCall::Embed { ids: input_index(self.fusion.graph, ids), table: weight(table)? }
            }
            AppliedOp::Splice { x, given } => {
                OpCall::Splice { x: location(x), given: input_index(self.fusion.graph, given) }
            }
            AppliedOp::Norm { epsilon, x, weight: scale } => {
                OpCall::Norm { x: location(x), weight: weight(scale)?, epsilon }
            }
            AppliedOp::LayerNorm { epsilon, x, weight: scale, bias } => {
                let bias = bias.map(weight).transpose()?;
                OpCall::LayerNorm { x: location(x), weight: weight(scale)?, bias, epsilon }
            }
            AppliedOp::Rope { pairing, x, frequencies } => {
                OpCall::Rope { x: location(x), rotation: self.rotation(pairing, frequencies)? }
            }
            AppliedOp::Attend { scale, span, softcap, q, keys, values } => {
                let [queries, held, read] = [q, keys, values].map(|id| self.fusion.graph.value(id).shape);
                let kv_heads = held.extents()[1];
                let (shared, size) = (queries.extents()[1] / kv_heads, queries.columns());
                let value_size = read.columns();
                let attention = AttentionParams { kv_heads, shared, size, value_size, scale, span, softcap };
                let (store, [keys, values]) = match state::step_indexes(self.fusion.graph, node) {
                    Some(indexes) => (KvStore::Step, indexes),
                    None => (KvStore::State, [keys, values].map(|id| self.state(id))),
                };
                OpCall::Attend { q: location(q), store, keys, values, attention }
            }
            AppliedOp::Gather { x } => OpCall::Gather { x: location(x) },
            AppliedOp::Pool { how, x } => OpCall::Pool { x: location(x), how },
            AppliedOp::Gate { act, gate, up } => {
                OpCall::Elementwise(Elementwise::Gate { gate: location(gate), up: location(up), act })
            }
            AppliedOp::Activate { act, x } => {
                OpCall::Elementwise(Elementwise::Activate { x: location(x), act })
            }
            AppliedOp::Add { a, b } => {
                OpCall::Elementwise(Elementwise::Add { a: location(a), b: location(b) })
            }
            AppliedOp::Scale { factor, x } => {
                OpCall::Elementwise(Elementwise::Scale { x: location(x), factor })
            }
            AppliedOp::Softcap { cap, x } => {
                OpCall::Elementwise(Elementwise::Softcap { x: location(x), cap })
            }
            AppliedOp::Write { x: _ } | AppliedOp::Linear { x: _, weight: _, bias: _ } => {
                unreachable!("these are instructions of their own")
            }
        })
    }

    /// The index of a state value among those of the graph.
    fn state(&self, id: ValueId) -> usize {
        let before = &self.fusion.graph.values[..id.0 as usize];
        before.iter().filter(|value| matches!(value.role, Role::State(_))).count()
    }
}

/// The weights that hold a graph's rotary frequencies, each once.
pub(crate) fn rotation_frequencies(graph: &Graph) -> Vec<ValueId> {
    let mut frequencies = Vec::new();
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Rope { .. })) {
        if !frequencies.contains(&node.inputs[1]) {
            frequencies.push(node.inputs[1]);
        }
    }
    frequencies
}

/// The length of each thread's scratch memory, in `f32` values.
pub(crate) fn local_len(graph: &Graph, rule: PrecisionRule) -> usize {
    graph.nodes.iter().map(|node| node_local_len(graph, node, rule)).max().unwrap_or(0)
}

/// The length of memory for the partial sums of attention, in `f32` values.
pub(crate) fn partials_len(graph: &Graph) -> usize {
    let nodes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Attend { .. }));
    nodes.map(|node| ops::attend::partials_len(graph, node)).max().unwrap_or(0)
}

fn node_local_len(graph: &Graph, node: &Node, rule: PrecisionRule) -> usize {
    let call = graph.applied_op(node).expect("graphs are checked before they are lowered");
    match call {
        AppliedOp::Linear { x, weight, bias: _ } => {
            let terms = ActivationKind::of_node(graph, node, rule).terms();
            ops::linear::local_len(x.shape.rows() * terms, weight.shape.columns())
        }
        AppliedOp::Attend { scale: _, span: _, softcap: _, q, keys, values } => {
            let (heads, kv_heads) = (q.shape.extents()[1], keys.shape.extents()[1]);
            ops::attend::local_len(heads / kv_heads, keys.shape.columns(), values.shape.columns())
        }
        AppliedOp::Write { x } => ops::write::local_len(x.shape.columns()),
        AppliedOp::Embed { .. }
        | AppliedOp::Splice { .. }
        | AppliedOp::Norm { .. }
        | AppliedOp::LayerNorm { .. }
        | AppliedOp::Reshape { .. }
        | AppliedOp::Rope { .. }
        | AppliedOp::Gate { .. }
        | AppliedOp::Activate { .. }
        | AppliedOp::Add { .. }
        | AppliedOp::Scale { .. }
        | AppliedOp::Softcap { .. }
        | AppliedOp::Gather { .. }
        | AppliedOp::Pool { .. } => 0,
    }
}
