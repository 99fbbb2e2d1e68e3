//! What the backend does not run, by name.

use std::collections::HashSet;

use girih_graph::backend::Refusal;
use girih_graph::{AppliedOp, Graph, Node, Op, Role, StateKind, Value, ValueId};
use girih_tensor::DType;

use crate::weights::weight_objection;

/// The formats of weights that were compared through NPUW. Of others, MXFP4 was seen to get other values.
const THROUGH_NPUW: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q4_0];

/// The nodes that read weights in formats that NPUW may compute otherwise.
pub(crate) fn npuw_objections(graph: &Graph) -> Vec<Refusal> {
    let is_untried = |id: &&ValueId| {
        let value = graph.value(**id);
        value.role == Role::Weight && !THROUGH_NPUW.contains(&value.dtype)
    };
    let refusal = |node: &Node| {
        let weight = graph.value(*node.inputs.iter().find(is_untried)?);
        let (name, dtype) = (&weight.name, weight.dtype);
        let reason = format!(
            "its operand '{name}' is {dtype}, which was not compared through NPUW: use q4_0 or floats, or \
             --openvino-npuw off"
        );
        Some(Refusal { node: graph.value(node.output).name.clone(), reason })
    };
    graph.nodes.iter().filter_map(refusal).collect()
}

/// The nodes that the backend refuses, and why.
pub(crate) fn objections(graph: &Graph, is_fixed: bool) -> Vec<Refusal> {
    let mut written = HashSet::new();
    let mut refusals = Vec::new();
    for node in &graph.nodes {
        if let Err(reason) = objection(graph, node, &written) {
            refusals.push(Refusal { node: graph.value(node.output).name.clone(), reason });
        }
        if is_fixed && matches!(node.op, Op::Pool { .. }) {
            let reason = "a step of fixed extents has rows that fill it up, which would be pooled: use openvino:CPU or \
                openvino:GPU, or --openvino-shapes any";
            refusals.push(Refusal { node: graph.value(node.output).name.clone(), reason: reason.to_owned() });
        }
        if node.op == Op::Write {
            written.insert(node.output);
        }
    }
    refusals
}

/// `written` are the state values that earlier nodes write.
fn objection(graph: &Graph, node: &Node, written: &HashSet<ValueId>) -> Result<(), String> {
    for id in &node.inputs {
        let value = graph.value(*id);
        let name = &value.name;
        match value.role {
            Role::Weight => {
                if let Some(clause) = weight_objection(graph, *id) {
                    return Err(format!("its operand '{name}' cannot be used: {clause}"));
                }
            }
            Role::State(_) if !written.contains(id) && node.op != Op::ShortConv => {
                return Err(format!("the state '{name}' is not written before it is read"));
            }
            Role::State(_) | Role::Input | Role::Scratch | Role::Output => {}
        }
    }
    state_objection(graph, node.output)?;
    match node.op {
        Op::Rope { .. } => match node.inputs.get(2).map(|id| graph.value(*id).role) {
            None | Some(Role::Input) => Ok(()),
            Some(_) => Err("positions that a node computes are not on the host".to_owned()),
        },
        Op::Route { near: Some(_), .. } => {
            Err("a softmax over the experts near another one (near) is not written for OpenVINO".to_owned())
        }
        _ => Ok(()),
    }
}

fn state_objection(graph: &Graph, id: ValueId) -> Result<(), String> {
    let value = graph.value(id);
    let dtype = value.dtype;
    match graph.state_kind(value) {
        Some(StateKind::Positions { .. }) if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) => {
            Err(format!("OpenVINO has no KV cache in {dtype} here: use f32, f16 or bf16 (--kv f16)"))
        }
        Some(StateKind::Positions { .. } | StateKind::Carried) | None => Ok(()),
    }
}

/// Whether the backend has code for an op. Each arm takes all operands apart, so that neither a new op nor a new
/// operand compiles until it is answered.
#[allow(clippy::too_many_lines, reason = "each op has its arm, which names all of its operands")]
pub(crate) fn knows(call: &AppliedOp<&Value>) -> bool {
    match call {
        AppliedOp::Embed { ids: _, table: _ }
        | AppliedOp::Splice { x: _, given: _ }
        | AppliedOp::Norm { epsilon: _, x: _, weight: _ }
        | AppliedOp::LayerNorm { epsilon: _, x: _, weight: _, bias: _ }
        | AppliedOp::MatchRms { least: _, x: _, like: _ }
        | AppliedOp::Sparsify { deviations: _, x: _ }
        | AppliedOp::Linear { x: _, weight: _, bias: _ }
        | AppliedOp::LinearHeads { x: _, weight: _ }
        | AppliedOp::Concat { a: _, b: _ }
        | AppliedOp::Reshape { x: _ }
        | AppliedOp::Rope { pairing: _, factor: _, x: _, frequencies: _, positions: _ }
        | AppliedOp::Temper { beta: _, every: _, offset: _, x: _ }
        | AppliedOp::Write { x: _ }
        | AppliedOp::Attend { scale: _, span: _, softcap: _, q: _, keys: _, values: _, sinks: _ }
        | AppliedOp::ShortConv { x: _, taps: _, carried: _, bias: _ }
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
        | AppliedOp::Pool { how: _, x: _ }
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
        } => true,
        AppliedOp::SelectKeys { best: _, q: _, weights: _, keys: _ }
        | AppliedOp::AttendLatent { scale: _, span: _, values: _, q: _, latents: _, selected: _ }
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
        | AppliedOp::Hadamard { size: _, x: _ } => false,
    }
}
