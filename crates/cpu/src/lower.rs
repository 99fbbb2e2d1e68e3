//! Lowers a graph to a flat list of instructions, and says where its values lie.

use std::iter;
use std::ops::RangeFrom;

use girih_graph::backend::Refusal;
use girih_graph::{
    Error, Extent, Graph, Node, Numerics, Op, Placement, Role, Rounding, ScratchPlan, StateKind, SunkGather,
    Value, ValueId, head_matmul,
};
use girih_tensor::{DType, Shape};

use crate::activations::{ActivationKind, ActivationPrecision, PrecisionRule};
use crate::amount::InstructionWork;
use crate::bind::{Binder, Bound};
use crate::bound::{BoundOp, PackSource};
use crate::fuse::{AdaptedMatmul, Fusion, grouped, joined_name};
use crate::instruction::{
    ActivationSlot, Compute, CpuInstruction, Made, Matmul, MatmulAdapters, Matmuls, StateWrite, StateWrites,
};
use crate::kernels::Table;
use crate::ops::linear::BoundMatmul;
use crate::state::{self, KvStore};
use crate::step_values::{RowCount, StepBuffer, ValueLocation, ValueStore};
use crate::weights::CpuWeights;

/// How matmuls of `graph` round activations.
pub(crate) fn numerics(graph: &Graph, rule: PrecisionRule, table: &Table) -> Numerics {
    let used: Vec<ActivationKind> = ActivationKind::of_graph(graph, rule).collect();
    let coarsest_first = ActivationPrecision::ALL.iter().rev();
    let roundings = coarsest_first.filter_map(|precision| {
        let mut of_this = used.iter().filter(|kind| kind.precision() == *precision);
        // If one precision has two kinds, the one with an instruction of its own.
        of_this.clone().find(|kind| kind.has_own_product()).or_else(|| of_this.next())
    });
    let head = head_matmul(graph).map(|node| ActivationKind::of_node(graph, node, rule));
    Numerics {
        stores: DType::F32,
        activations: roundings.map(|kind| kind.rounding(table)).collect(),
        head: head.map_or(Rounding::NONE, |kind| kind.rounding(table)),
    }
}

/// The nodes of `graph` that cannot run by this rule.
pub(crate) fn objections(graph: &Graph, rule: PrecisionRule) -> Vec<Refusal> {
    let binder = Binder::new(graph, rule);
    let refusal = |node: &Node| {
        let reason = binder.bind(node).err()?;
        Some(Refusal { node: graph.value(node.output).name.clone(), reason })
    };
    graph.nodes.iter().filter_map(refusal).collect()
}

/// The number of rows of a value of the step.
fn row_count(value: &Value) -> RowCount {
    match value.outermost {
        Extent::Rows => RowCount::Rows,
        Extent::OutputRows => RowCount::OutputRows,
        Extent::Sequences => RowCount::Sequences,
        Extent::Fixed | Extent::Context => unreachable!("values of a step have rows"),
    }
}

/// A graph as the backend runs it.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub instructions: Vec<CpuInstruction>,
    /// Where each value lies.
    pub stores: Vec<ValueStore>,
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
    let graph = &grouped(graph);
    let binder = Binder::new(graph, rule);
    let bind = |node: &Node| {
        let name = &graph.value(node.output).name;
        let refused = |reason| Error::new(format!("the cpu backend does not run '{name}': {reason}"));
        binder.bind(node).map_err(refused)
    };
    let bound: Vec<Bound> = graph.nodes.iter().map(bind).collect::<Result<_, _>>()?;
    let mut bound = bound.into_iter();
    let slots = slots(graph, rule);
    let mut packed: Vec<Option<ValueId>> = vec![None; slots.len()];
    let fusion = Fusion { graph, stores: stores(graph, weights)?, rule, slots: &slots };
    let mut instructions = Vec::with_capacity(graph.nodes.len());
    // The nodes that the last matmuls compute as well.
    let (mut index, mut fused) = (0, 0..0);
    while let Some(first) = bound.next() {
        let count = fusion.run_length(index);
        let nodes = &graph.nodes[index..index + count];
        for (slot, node) in nodes.iter().filter_map(|node| Some((fusion.slot(node)?, node))) {
            let x = node.inputs[0];
            if packed[slot] != Some(x) {
                instructions.push(pack(graph, x, PackSource::Rows { x }, slot));
                packed[slot] = Some(x);
            }
        }
        match first {
            Bound::Matmul(first) => {
                let others = bound.by_ref().take(count - 1).map(|other| match other {
                    Bound::Matmul(other) => other,
                    Bound::Op(_) | Bound::Write => unreachable!("only matmuls are joined to a matmul"),
                });
                let bound = iter::once(first).chain(others).collect();
                let (matmuls, end) = matmuls(&fusion, index, bound);
                fused = index + count..end;
                instructions.push(CpuInstruction::Matmuls(matmuls));
            }
            Bound::Write => {
                bound.by_ref().take(count - 1).for_each(drop);
                instructions.push(CpuInstruction::Write(writes(&fusion, index, count)));
            }
            Bound::Op(op) => {
                let node = &nodes[0];
                instructions.extend(step_writes(graph, node).map(CpuInstruction::Write));
                let is_fused = fused.contains(&index);
                let packed_into = if is_fused { None } else { fusion.packed_into(index) };
                let made = match is_fused {
                    true => Made::WithMatmuls,
                    false if packed_into.is_some() => Made::InPassing,
                    false => Made::Here,
                };
                let source = op.pack_source;
                instructions.push(CpuInstruction::Compute(compute(graph, node, op, made)));
                if let Some(slot) = packed_into {
                    let source = source.expect("only rows that can be packed in passing are");
                    instructions.push(pack(graph, node.output, source, slot));
                    packed[slot] = Some(node.output);
                }
            }
        }
        index += count;
    }
    Ok(Lowered { instructions, stores: fusion.stores, slots })
}

/// The length of scratch memory, in `f32` values, that the values of `graph` need,
/// with and without the gather sunk.
pub(crate) fn scratch_len(graph: &Graph, sunk: Option<&SunkGather>) -> usize {
    let size = |graph: &Graph| ScratchPlan::of(&grouped(graph)).bytes / size_of::<f32>();
    size(graph).max(sunk.map_or(0, |sunk| size(&sunk.graph)))
}

/// Where each value lies.
fn stores(graph: &Graph, weights: &CpuWeights) -> Result<Vec<ValueStore>, Error> {
    let plan = ScratchPlan::of(graph);
    let (mut inputs, mut states, mut carried) = (0.., 0.., 0..);
    let next = |indexes: &mut RangeFrom<usize>| indexes.next().expect("a graph has fewer values");
    let store = |(value, planned): (&Value, &Option<Placement>)| {
        let buffer = match value.role {
            Role::Weight => return Ok(ValueStore::Weight(weights.index(&value.name)?)),
            Role::State(_) => {
                let is_carried = graph.state_kind(value) == Some(StateKind::Carried);
                return Ok(ValueStore::State(next(if is_carried { &mut carried } else { &mut states })));
            }
            Role::Input => StepBuffer::Input(next(&mut inputs)),
            Role::Output => StepBuffer::Output,
            Role::Scratch => StepBuffer::Scratch(planned.map_or(0, |at| at.offset / size_of::<f32>())),
        };
        Ok(ValueStore::Step(ValueLocation { buffer, stride: value.shape.stride(), count: row_count(value) }))
    };
    let values = graph.values.iter().zip(&plan.placements);
    let mut stores: Vec<ValueStore> = values.map(store).collect::<Result<_, Error>>()?;
    // The plan covers scratch only, but a reshaped input needs no memory either.
    for node in graph.nodes.iter().filter(|node| node.op == Op::Reshape) {
        let (from, to) = (stores[node.inputs[0].0 as usize], &mut stores[node.output.0 as usize]);
        if let (ValueStore::Step(from), ValueStore::Step(to)) = (from, to)
            && to.buffer != StepBuffer::Output
        {
            to.buffer = from.buffer;
        }
    }
    Ok(stores)
}

/// The matmuls of one value from node `index` on, and the index of the node behind those that they compute; [`Fusion`]
/// decides which these are.
fn matmuls(fusion: &Fusion<'_>, index: usize, bound: Vec<BoundMatmul>) -> (Matmuls, usize) {
    let (graph, count) = (fusion.graph, bound.len());
    let nodes = &graph.nodes[index..index + count];
    let adapters = fusion.adapters(index, count);
    let (epilogue, end) = match fusion.epilogue(index, count) {
        Some((epilogue, at)) => (Some((epilogue, graph.nodes[at].output)), at + 1),
        None => (None, index + count + 2 * adapters.iter().flatten().count()),
    };
    let mut named = names(graph, nodes);
    named.extend(epilogue.map(|(_, output)| &*graph.value(output).name));
    let name = joined_name(&named);
    let part = |((node, bound), adapted): ((&Node, BoundMatmul), Option<AdaptedMatmul<'_>>)| {
        let BoundMatmul { weight, bias, kind, local: _ } = bound;
        let (output, value) = (node.output, graph.value(node.output));
        let slot = fusion.slots.iter().position(|slot| slot.kind == kind);
        Matmul {
            slot: slot.expect("there is a slot for each matmul"),
            weight,
            bias,
            output,
            work: work(graph, node),
            name: value.name.clone(),
            shape: value.shape,
            adapters: adapted.map(|adapted| matmul_adapters(fusion, adapted)),
        }
    };
    let parts = nodes.iter().zip(bound).zip(adapters).map(part).collect();
    (Matmuls { x: nodes[0].inputs[0], parts, epilogue, name }, end)
}

/// What adapters add to a matmul.
fn matmul_adapters(fusion: &Fusion<'_>, adapted: AdaptedMatmul<'_>) -> MatmulAdapters {
    let AdaptedMatmul { operands, change, sum } = adapted;
    let kind = |weight| ActivationKind::of_weight(fusion.graph, weight, fusion.rule);
    MatmulAdapters {
        node: operands,
        kinds: [operands.a, operands.b].map(kind),
        output: sum.output,
        names: [change, sum].map(|node| fusion.graph.value(node.output).name.clone()),
        work: work(fusion.graph, change),
    }
}

/// The `count` writes from node `index` on.
fn writes(fusion: &Fusion<'_>, index: usize, count: usize) -> StateWrites {
    let (graph, nodes) = (fusion.graph, &fusion.graph.nodes[index..index + count]);
    let part = |node: &Node| {
        let ValueStore::State(state) = fusion.stores[node.output.0 as usize] else {
            unreachable!("checked: a write's result is state")
        };
        StateWrite { x: node.inputs[0], state }
    };
    StateWrites {
        store: KvStore::State,
        parts: nodes.iter().map(part).collect(),
        name: joined_name(&names(graph, nodes)),
    }
}

/// The writes before a node that attends to rows of the step.
fn step_writes(graph: &Graph, node: &Node) -> Option<StateWrites> {
    let indexes = matches!(node.op, Op::Attend { .. }).then(|| state::step_indexes(graph, node))??;
    let parts = node.inputs[1..3].iter().zip(indexes).map(|(&x, state)| StateWrite { x, state });
    let names: Vec<&str> = node.inputs[1..3].iter().map(|id| &*graph.value(*id).name).collect();
    Some(StateWrites { store: KvStore::Step, parts: parts.collect(), name: joined_name(&names) })
}

/// The names of the nodes' results.
fn names<'a>(graph: &'a Graph, nodes: &[Node]) -> Vec<&'a str> {
    nodes.iter().map(|node| &*graph.value(node.output).name).collect()
}

fn pack(graph: &Graph, x: ValueId, source: PackSource, slot: usize) -> CpuInstruction {
    CpuInstruction::Pack { source, x, slot, name: graph.value(x).name.clone() }
}

fn compute(graph: &Graph, node: &Node, op: BoundOp, made: Made) -> Compute {
    let (output, value) = (node.output, graph.value(node.output));
    let (name, shape) = (value.name.clone(), value.shape);
    Compute { op, output, work: work(graph, node), name, op_name: node.op.name(), shape, made }
}

/// What a node has to do, and its operands.
fn work(graph: &Graph, node: &Node) -> Box<InstructionWork> {
    let shapes: Vec<Shape> = node.inputs.iter().map(|id| graph.value(*id).shape).collect();
    let call = node.op.applied_to(&shapes).expect("the node is bound to its operands");
    Box::new(InstructionWork { call, operands: node.inputs.clone() })
}
