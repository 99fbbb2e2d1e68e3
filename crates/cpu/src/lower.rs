//! Lowers a graph to a flat list of instructions whose operands are locations in memory.

use girih_graph::backend::Refusal;
use girih_graph::{
    Error, Extent, Graph, Node, Numerics, Op, OperandKind, Role, Rounding, ScratchPlan, Span, SunkGather,
    Value, ValueId,
};
use girih_tensor::DType;

use crate::activations::{ActivationKind, ActivationPrecision, PrecisionRule};
use crate::fuse::{Fusion, grouped, joined_name};
use crate::instruction::{
    ActivationSlot, Compute, CpuInstruction, Elementwise, Made, Matmul, Matmuls, OpCall, PackSource,
    RopeParams, RowCount, StateWrite, StateWrites, StepBuffer, ValueLocation,
};
use crate::kernels::Table;
use crate::ops;
use crate::ops::attend::AttentionParams;
use crate::state::{self, KvStore};
use crate::weights::{CpuWeights, WeightForm};

/// Whether the backend has code for an op with this number of operands; [`lower`] refuses all
/// others.
pub(crate) fn knows(op: Op, operands: usize) -> bool {
    match op {
        Op::Reshape
        | Op::Write
        | Op::Activate { .. }
        | Op::Scale { .. }
        | Op::Softcap { .. }
        | Op::Gather
        | Op::Pool { .. } => operands == 1,
        Op::Embed | Op::Splice | Op::Norm { .. } | Op::Rope { .. } | Op::Gate { .. } | Op::Add => {
            operands == 2
        }
        Op::Linear | Op::LayerNorm { .. } => operands == 2 || operands == 3,
        Op::Attend { .. } | Op::ShortConv => operands == 3,
        _ => false,
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
            Ok(Matmul {
                slot: self.fusion.slot(node).expect("there is a slot for each matmul"),
                weight: self.weight(node, 1)?,
                bias: if node.inputs.len() > 2 { Some(self.weight(node, 2)?) } else { None },
                output: self.fusion.location(node.output),
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
            let unrotated = rope.map(|rope| Ok((self.fusion.location(rope.inputs[0]), self.rotation(rope)?)));
            let x = self.fusion.location(node.inputs[0]);
            Ok(StateWrite {
                x,
                unrotated: unrotated.transpose()?,
                state: state::index_of(self.fusion.graph, node.output),
            })
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

    fn rotation(&self, rope: &Node) -> Result<RopeParams, Error> {
        let Op::Rope { pairing } = rope.op else { unreachable!("only ropes rotate heads") };
        let table = rotation_frequencies(self.fusion.graph).iter().position(|id| *id == rope.inputs[1]);
        let table = table.expect("the frequencies of every rope are listed");
        Ok(RopeParams { frequencies: self.weight(rope, 1)?, table, pairing })
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
            name: value.name.clone(),
            op: node.op.name(),
            shape: value.shape,
            made,
        })
    }

    /// The index of the weight that is operand `index` of a node.
    fn weight(&self, node: &Node, index: usize) -> Result<usize, Error> {
        self.weights.index(self.name(node.inputs[index]))
    }

    fn name(&self, id: ValueId) -> &str {
        &self.fusion.graph.value(id).name
    }

    fn call(&self, node: &Node) -> Result<OpCall, Error> {
        let location = |index: usize| self.fusion.location(node.inputs[index]);
        let weight = |index: usize| self.weight(node, index);
        Ok(match node.op {
            Op::Reshape if location(0).buffer == self.fusion.location(node.output).buffer => OpCall::Alias,
            Op::Embed => {
                let ids = input_index(self.fusion.graph, node.inputs[0]);
                OpCall::Embed { ids, table: weight(1)? }
            }
            Op::Norm { epsilon } => OpCall::Norm { x: location(0), weight: weight(1)?, epsilon },
            Op::LayerNorm { epsilon } => {
                let bias = if node.inputs.len() > 2 { Some(weight(2)?) } else { None };
                OpCall::LayerNorm { x: location(0), weight: weight(1)?, bias, epsilon }
            }
            Op::Rope { .. } => OpCall::Rope { x: location(0), rotation: self.rotation(node)? },
            Op::Attend { scale, span, softcap } => {
                let attention = self.attention(node, scale, span, softcap);
                let (store, [keys, values]) = match state::step_indexes(self.fusion.graph, node) {
                    Some(indexes) => (KvStore::Step, indexes),
                    None => {
                        let index = |index: usize| state::index_of(self.fusion.graph, node.inputs[index]);
                        (KvStore::State, [1, 2].map(index))
                    }
                };
                OpCall::Attend { q: location(0), store, keys, values, attention }
            }
            Op::ShortConv => {
                let carried = state::index_of(self.fusion.graph, node.inputs[2]);
                OpCall::ShortConv { x: location(0), taps: weight(1)?, carried }
            }
            Op::Gather => OpCall::Gather { x: location(0) },
            Op::Splice => {
                let given = input_index(self.fusion.graph, node.inputs[1]);
                OpCall::Splice { x: location(0), given }
            }
            Op::Pool { how } => OpCall::Pool { x: location(0), how },
            Op::Reshape => OpCall::Elementwise(Elementwise::Copy { x: location(0) }),
            Op::Gate { act } => {
                OpCall::Elementwise(Elementwise::Gate { gate: location(0), up: location(1), act })
            }
            Op::Activate { act } => OpCall::Elementwise(Elementwise::Activate { x: location(0), act }),
            Op::Add => OpCall::Elementwise(Elementwise::Add { a: location(0), b: location(1) }),
            Op::Scale { factor } => OpCall::Elementwise(Elementwise::Scale { x: location(0), factor }),
            Op::Softcap { cap } => OpCall::Elementwise(Elementwise::Softcap { x: location(0), cap }),
            Op::Write | Op::Linear => unreachable!("these are instructions of their own"),
            op => return Err(Error::new(format!("the cpu backend has no code for the op '{}'", op.name()))),
        })
    }

    fn attention(&self, node: &Node, scale: f32, span: Span, softcap: Option<f32>) -> AttentionParams {
        let [q, keys, values] = [0, 1, 2].map(|index| self.fusion.graph.value(node.inputs[index]).shape);
        let kv_heads = keys.extents()[1];
        let (shared, size, value_size) = (q.extents()[1] / kv_heads, q.columns(), values.columns());
        AttentionParams { kv_heads, shared, size, value_size, scale, span, softcap }
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
    let input = |index: usize| graph.value(node.inputs[index]);
    match node.op {
        Op::Linear => {
            let terms = ActivationKind::of_node(graph, node, rule).terms();
            ops::linear::local_len(input(0).shape.rows() * terms, input(1).shape.columns())
        }
        Op::Attend { .. } => {
            let (heads, kv_heads) = (input(0).shape.extents()[1], input(1).shape.extents()[1]);
            let (size, value_size) = (input(1).shape.columns(), input(2).shape.columns());
            ops::attend::local_len(heads / kv_heads, size, value_size)
        }
        Op::Write => ops::write::local_len(input(0).shape.columns()),
        _ => 0,
    }
}
