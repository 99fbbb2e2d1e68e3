//! Translates a graph into a model of OpenVINO: one file for each group of ops.
//!
//! The model computes `n` sequences with `r` rows each, so rows `[R, …]` become `[n, r, …]`, output rows `[1, o, …]` and pooled
//! rows `[n, 1, …]`. What depends on positions comes from the host: rotations, masks, the indexes of output rows, and
//! windows of keys and values. New keys and values are results, which the host stores; or variables of the model hold them.

mod attend;
mod convolve;
mod curves;
mod elements;
mod experts;
mod heads;
mod hidden;
mod lowering;
mod matmul;
mod norms;
mod rope;
mod route;
mod rows;

use std::collections::HashSet;

use girih_graph::{AppliedOp, GateRule, Graph, Node, Router, Temperature, ValueId, Xielu};
use girih_tensor::{Error, Result};

use self::attend::AttendRule;
pub(crate) use self::experts::expert_bytes;
use self::lowering::GraphLowering;
pub(crate) use self::lowering::{
    HostRotation, LoweredModel, MaskRule, MaskedKeys, ParameterSource, ResultMeaning,
};
use crate::ir::Constants;
use crate::kv_form::KvForm;
use crate::step_shape::StepShape;
use crate::weights::PlaneLayout;

/// Translates a graph without faults whose nodes the backend does not refuse. Values of `watched` become results.
///
/// # Errors
/// When the graph has what the backend refuses.
pub(crate) fn lower(
    graph: &Graph,
    layout: &PlaneLayout,
    form: KvForm,
    constants: &mut Constants,
    watched: &HashSet<ValueId>,
    shape: StepShape,
) -> Result<LoweredModel> {
    let mut lowering = GraphLowering::new(graph, layout, form, constants, shape);
    for node in &graph.nodes {
        lowering.first_layers.push(lowering.model.next_layer());
        lowering.node(node)?;
    }
    lowering.results(watched)?;
    Ok(lowering.finish())
}

impl GraphLowering<'_> {
    fn node(&mut self, node: &Node) -> Result<()> {
        let call = node.op.applied_to(&node.inputs).expect("the checker refuses other numbers of operands");
        let y = node.output;
        match call {
            AppliedOp::Embed { ids, table } => self.embed(ids, table, y),
            AppliedOp::Norm { epsilon, x, weight } => self.norm(epsilon, x, weight, y),
            AppliedOp::LayerNorm { epsilon, x, weight, bias } => {
                self.layer_norm(epsilon, x, [weight, bias], y)
            }
            AppliedOp::Linear { x, weight, bias } => self.linear(x, weight, bias, y),
            AppliedOp::Reshape { x } => self.reshape(x, y),
            AppliedOp::Rope { pairing, factor, x, frequencies, positions } => {
                self.rope(pairing, factor, x, [Some(frequencies), positions], y)
            }
            AppliedOp::Write { x } => self.write(x, y),
            AppliedOp::Attend { scale, span, softcap, q, keys, values, sinks } => {
                self.attend(AttendRule { scale, span, softcap, sinks }, [q, keys, values], y)
            }
            AppliedOp::MatchRms { least, x, like } => self.match_rms(least, x, like, y),
            AppliedOp::Sparsify { deviations, x } => self.sparsify(deviations, x, y),
            AppliedOp::LinearHeads { x, weight } => self.linear_heads(x, weight, y),
            AppliedOp::Concat { a, b } => self.concat(a, b, y),
            AppliedOp::Temper { beta, every, offset, x } => {
                self.temper(Temperature { beta, every, offset }, x, y)
            }
            AppliedOp::GateHeads { act, gate, x } => self.gate_heads(act, gate, x, y),
            AppliedOp::MixHeads { weights, x } => self.mix_heads(weights, x, y),
            AppliedOp::ScaleColumns { x, weight } => self.by_column("Multiply", x, weight, y),
            AppliedOp::ShiftColumns { x, shift } => self.by_column("Subtract", x, shift, y),
            AppliedOp::ShortConv { x, taps, carried, bias } => self.short_conv(x, taps, carried, bias, y),
            AppliedOp::Gate { act, limit, offset, gate, up } => {
                self.gate(GateRule { act, limit, offset }, [gate, up], y)
            }
            AppliedOp::Activate { act, x } => self.activate(act, x, y),
            AppliedOp::Add { a, b } => self.add(a, b, y),
            AppliedOp::Scale { factor, x } => self.scale(factor, x, y),
            AppliedOp::Softcap { cap, x } => self.softcap(cap, x, y),
            AppliedOp::Clamp { low, high, x } => self.clamp(low, high, x, y),
            AppliedOp::Gather { x } => self.gather(x, y),
            AppliedOp::Pool { how, x } => self.pool(how, x, y),
            AppliedOp::Xielu { positive, negative, beta, epsilon, x } => {
                self.xielu(Xielu { positive, negative, beta, epsilon }, x, y)
            }
            AppliedOp::Splice { x, given } => self.splice(x, given, y),
            AppliedOp::Route { score, used, normalized, groups, factor, near, scores, bias } => {
                self.route(Router { score, used, normalized, groups, factor, near }, scores, bias, y)
            }
            AppliedOp::Experts { .. } => self.experts(call, y),
            AppliedOp::SelectKeys { .. }
            | AppliedOp::AttendLatent { .. }
            | AppliedOp::SsmScan { .. }
            | AppliedOp::DeltaRule { .. }
            | AppliedOp::Hadamard { .. } => {
                let name = node.op.name();
                Err(Error::new(format!("the op '{name}' was not refused; this is a bug in girih")))
            }
        }
    }
}
