//! What the kernels for CUDA do not run, by name: so far they run dense decoders with weights in Q4_0 and Q6_K and keys and values in f16.

use girih_graph::backend::Refusal;
use girih_graph::{AppliedOp, Graph, Node, Op, OperandKind, StateKind, Value};
use girih_tensor::DType;

use crate::cuda::kernels::layout_name;
use crate::layout::BandLayout;
use crate::refuse::refused;
use crate::step_table::group_of;

/// The nodes that the kernels for CUDA refuse beside those of all GPUs, and why.
pub(crate) fn cuda_objections(graph: &Graph) -> Vec<Refusal> {
    refused(graph, objection)
}

fn objection(graph: &Graph, node: &Node) -> Result<(), String> {
    for (id, kind) in node.inputs.iter().zip(node.op.spec().operands) {
        let Value { name, dtype, .. } = graph.value(*id);
        let is_matrix = matches!(kind, OperandKind::Matrix | OperandKind::Matrices);
        if is_matrix && BandLayout::of(*dtype).and_then(layout_name).is_none() {
            return Err(format!(
                "its operand '{name}' is {dtype}; gpu:cuda has kernels for weights in q4_0 and q6_k: use --backend gpu"
            ));
        }
        if let Some((_, StateKind::Positions { .. })) = group_of(graph, *id)
            && *dtype != DType::F16
        {
            return Err(format!("gpu:cuda has no KV cache in {dtype}: use --kv f16"));
        }
    }
    match node.op {
        Op::Attend { .. } if group_of(graph, node.inputs[1]).is_none() => {
            Err("gpu:cuda attends to a KV cache only: use --backend gpu".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether there is a kernel for CUDA for an op. Each arm takes all operands apart, as that of all GPUs.
#[allow(clippy::too_many_lines, reason = "each op has its arm, which names all of its operands")]
pub(crate) fn cuda_knows(call: &AppliedOp<&Value>) -> bool {
    match call {
        AppliedOp::Embed { ids: _, table: _ }
        | AppliedOp::Splice { x: _, given: _ }
        | AppliedOp::Norm { epsilon: _, x: _, weight: _ }
        | AppliedOp::Linear { x: _, weight: _, bias: _ }
        | AppliedOp::Concat { a: _, b: _ }
        | AppliedOp::Reshape { x: _ }
        | AppliedOp::Rope { pairing: _, factor: _, x: _, frequencies: _, positions: _ }
        | AppliedOp::Temper { beta: _, every: _, offset: _, x: _ }
        | AppliedOp::Write { x: _ }
        | AppliedOp::Attend { scale: _, span: _, softcap: _, q: _, keys: _, values: _, sinks: _ }
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
        AppliedOp::LayerNorm { epsilon: _, x: _, weight: _, bias: _ }
        | AppliedOp::MatchRms { least: _, x: _, like: _ }
        | AppliedOp::Sparsify { deviations: _, x: _ }
        | AppliedOp::LinearHeads { x: _, weight: _ }
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
        | AppliedOp::Hadamard { size: _, x: _ } => false,
    }
}
