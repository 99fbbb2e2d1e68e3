//! What the backend does not run, by name.

use girih_graph::backend::Refusal;
use girih_graph::routed_experts::has_no_weights;
use girih_graph::{AppliedOp, Graph, Node, Op, OperandKind, Role, StateKind, Value, ValueId};
use girih_tensor::DType;

use crate::state::{Q8_0_GROUP, is_keys};
use crate::step_table::group_of;
use crate::weight_role::{WeightRole, use_of};

/// The largest head of a query that `attend` has room for.
const MOST_HEAD: usize = 1024;

/// Experts of all rows of a step: workgroups in one direction, the limit of WebGPU.
const MOST_CHOSEN: usize = 65_535;

/// The most taps of a convolution that `conv` has room for.
const MOST_TAPS: usize = 16;

/// The most numbers of a row of a carried matrix that `scan` and `delta` have room for.
const MOST_CARRIED: usize = 512;

/// The nodes that the backend refuses, and why.
pub(crate) fn objections(graph: &Graph) -> Vec<Refusal> {
    refused(graph, objection)
}

/// The nodes to which there is an objection.
pub(crate) fn refused(graph: &Graph, objection: fn(&Graph, &Node) -> Result<(), String>) -> Vec<Refusal> {
    let refusal = |node: &Node| {
        let reason = objection(graph, node).err()?;
        Some(Refusal { node: graph.value(node.output).name.clone(), reason })
    };
    graph.nodes.iter().filter_map(refusal).collect()
}

fn objection(graph: &Graph, node: &Node) -> Result<(), String> {
    for (id, kind) in node.inputs.iter().zip(node.op.spec().operands) {
        let name = &graph.value(*id).name;
        if graph.value(*id).role == Role::Weight {
            let used = use_of(graph, *id)
                .map_err(|clause| format!("its operand '{name}' cannot be used: {clause}"))?;
            if *kind == OperandKind::Matrix
                && let WeightRole::Matrix(shape) = used
                && shape.count > 1
            {
                return Err(format!("its operand '{name}' is used as one matrix and as several"));
            }
        }
    }
    state_objection(graph, node.output)?;
    node.inputs.iter().try_for_each(|id| state_objection(graph, *id))?;
    size_objection(graph, node)
}

fn state_objection(graph: &Graph, id: ValueId) -> Result<(), String> {
    let Some((_, kind)) = group_of(graph, id) else {
        return Ok(());
    };
    let (name, dtype) = (&graph.value(id).name, graph.value(id).dtype);
    match kind {
        StateKind::Carried if dtype != DType::F32 => {
            return Err(format!("the carried value '{name}' is {dtype}; the GPU carries f32"));
        }
        StateKind::Positions { .. }
            if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0) =>
        {
            return Err(format!("the GPU has no KV cache in {dtype}: use f32, f16, bf16 or q8_0 (--kv f16)"));
        }
        StateKind::Positions { .. }
            if dtype == DType::Q8_0
                && !graph.value(id).shape.columns().is_multiple_of(Q8_0_GROUP as usize) =>
        {
            let size = graph.value(id).shape.columns();
            return Err(format!("q8_0 needs a head size divisible by {Q8_0_GROUP}; this one is {size}"));
        }
        StateKind::Carried | StateKind::Positions { .. } => {}
    }
    let is_values = graph.nodes.iter().any(|node| match node.op {
        Op::Attend { .. } => node.inputs.get(2) == Some(&id),
        _ => false,
    });
    if is_values && is_keys(graph, id) {
        return Err(format!("the state '{name}' is read as keys and as values"));
    }
    Ok(())
}

/// What kernels have no room for.
fn size_objection(graph: &Graph, node: &Node) -> Result<(), String> {
    let columns = |index: usize| graph.value(node.inputs[index]).shape.columns();
    let limit = |what: &str, have: usize, most: usize| match have > most {
        true => Err(format!("{what} of {have} exceed the {most} that the GPU's kernel has room for")),
        false => Ok(()),
    };
    match node.op {
        Op::Rope { .. } => match node.inputs.get(2).map(|id| graph.value(*id).role) {
            None | Some(Role::Input) => Ok(()),
            Some(_) => Err("positions that a node computes are not on the host".to_owned()),
        },
        Op::Attend { .. } => {
            let [keys, values] = [1, 2].map(|index| graph.value(node.inputs[index]).dtype);
            if keys != values {
                return Err(format!("keys are {keys} and values {values}; the GPU needs one type"));
            }
            limit("heads", columns(0), MOST_HEAD)
        }
        Op::AttendLatent { .. } | Op::SelectKeys { .. } => limit("heads", columns(0), MOST_HEAD),
        Op::ShortConv => limit("taps", graph.value(node.inputs[1]).shape.extents()[0], MOST_TAPS),
        Op::SsmScan { .. } => limit("columns of a state", columns(2), MOST_CARRIED),
        Op::DeltaRule { .. } => limit("rows of a state", columns(0), MOST_CARRIED),
        Op::Experts { .. } if has_no_weights(node) => Ok(()),
        Op::Experts { used, .. } => {
            let chosen = graph.key.rows as usize * used as usize;
            limit("experts of the rows of a step (choose a smaller --chunk)", chosen, MOST_CHOSEN)
        }
        _ => Ok(()),
    }
}

/// Whether the backend has code for an op. Each arm takes all operands apart, so that neither a new op nor a new
/// operand compiles until it is answered.
#[allow(clippy::too_many_lines, reason = "each op has its arm, which names all of its operands")]
pub(crate) fn knows(call: &AppliedOp<&Value>) -> bool {
    match call {
        AppliedOp::Hadamard { size: _, x: _ } => false,
        AppliedOp::Embed { ids: _, table: _ }
        | AppliedOp::Splice { x: _, given: _ }
        | AppliedOp::Norm { epsilon: _, x: _, weight: _ }
        | AppliedOp::LayerNorm { epsilon: _, x: _, weight: _, bias: _ }
        | AppliedOp::MatchRms { least: _, x: _, like: _ }
        | AppliedOp::Sparsify { deviations: _, x: _ }
        | AppliedOp::Linear { x: _, weight: _, bias: _ }
        | AppliedOp::LinearHeads { x: _, weight: _ }
        | AppliedOp::Concat { a: _, b: _ }
        | AppliedOp::Route {
            score: _,
            used: _,
            normalized: _,
            groups: _,
            factor: _,
            near: _,
            scores: _,
            bias: _,
        }
        | AppliedOp::Experts {
            used: _,
            act: _,
            limit: _,
            offset: _,
            weighed: _,
            x: _,
            weights: _,
            up: _,
            down: _,
            gate: _,
            gate_bias: _,
            up_bias: _,
            down_bias: _,
        }
        | AppliedOp::Reshape { x: _ }
        | AppliedOp::Rope { pairing: _, factor: _, x: _, frequencies: _, positions: _ }
        | AppliedOp::Temper { beta: _, every: _, offset: _, x: _ }
        | AppliedOp::Write { x: _ }
        | AppliedOp::Attend { scale: _, span: _, softcap: _, q: _, keys: _, values: _, sinks: _ }
        | AppliedOp::SelectKeys { best: _, q: _, weights: _, keys: _ }
        | AppliedOp::AttendLatent { scale: _, span: _, values: _, q: _, latents: _, selected: _ }
        | AppliedOp::ShortConv { x: _, taps: _, carried: _, bias: _ }
        | AppliedOp::SsmScan {
            least: _,
            most: _,
            x: _,
            dt: _,
            b: _,
            c: _,
            a: _,
            d: _,
            bias: _,
            carried: _,
        }
        | AppliedOp::DeltaRule { sharing: _, q: _, k: _, v: _, beta: _, dt: _, a: _, carried: _ }
        | AppliedOp::Gate { act: _, limit: _, offset: _, gate: _, up: _ }
        | AppliedOp::GateHeads { act: _, gate: _, x: _ }
        | AppliedOp::MixHeads { weights: _, x: _ }
        | AppliedOp::Activate { act: _, x: _ }
        | AppliedOp::Xielu { positive: _, negative: _, beta: _, epsilon: _, x: _ }
        | AppliedOp::Add { a: _, b: _ }
        | AppliedOp::Scale { factor: _, x: _ }
        | AppliedOp::ScaleColumns { x: _, weight: _ }
        | AppliedOp::ShiftColumns { x: _, shift: _ }
        | AppliedOp::Clamp { low: _, high: _, x: _ }
        | AppliedOp::Softcap { cap: _, x: _ }
        | AppliedOp::Gather { x: _ }
        | AppliedOp::Pool { how: _, x: _ } => true,
    }
}
