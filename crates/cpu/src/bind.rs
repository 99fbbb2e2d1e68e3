//! The backend's answer to every op: refusing a node, planning its memory and running it are one call.

use girih_graph::{AppliedOp, GateRule, Graph, Node, OperandKind, Role, Router, Temperature, ValueId, Xielu};

use crate::activations::{ActivationKind, ActivationPrecision, PrecisionRule};
use crate::adapter_node::AdapterNode;
use crate::bound::{BoundOp, OpScratch};
use crate::ops::linear::BoundMatmul;
use crate::ops::{
    RopeParams, RotationTable, activate, adapters, add, attend, clamp, concat, delta_rule, embed, experts,
    gate, gate_heads, gather, hadamard, layer_norm, linear, linear_heads, match_rms, mix_heads, norm, pool,
    reshape, rope, route, scale, scale_columns, select_keys, shift_columns, short_conv, softcap, sparsify,
    splice, ssm_scan, temper, xielu,
};
use crate::state;
use crate::weights::WeightForm;

/// A node with its operands. Matmuls and writes are data, because lowering groups them.
#[derive(Debug)]
pub(crate) enum Bound {
    Op(BoundOp),
    Matmul(BoundMatmul),
    /// Writes rows to state.
    Write,
}

impl Bound {
    /// The memory that the node needs beside its values.
    pub fn scratch(&self) -> OpScratch {
        match self {
            Bound::Op(op) => op.scratch,
            Bound::Matmul(BoundMatmul { local, .. }) => OpScratch { local: *local, ..OpScratch::default() },
            Bound::Write => OpScratch::default(),
        }
    }
}

/// Binds the nodes of a graph.
pub(crate) struct Binder<'a> {
    graph: &'a Graph,
    rule: PrecisionRule,
    /// The requested precision, if no weight of the graph can be multiplied by it.
    unused: Option<ActivationPrecision>,
}

impl<'a> Binder<'a> {
    pub fn new(graph: &'a Graph, rule: PrecisionRule) -> Binder<'a> {
        let used = ActivationKind::of_graph(graph, rule).map(|kind| kind.precision());
        let unused = rule.requested().filter(|precision| used.clone().all(|other| other != *precision));
        Binder { graph, rule, unused }
    }

    /// Returns an error if no weight, including this one, can be multiplied by activations of the requested precision.
    fn check_precision(&self, weight: ValueId) -> Result<(), String> {
        let Some(unused) = self.unused.map(ActivationPrecision::name) else { return Ok(()) };
        let dtype = self.graph.value(weight).dtype;
        Err(format!("{dtype} weights cannot be multiplied by {unused} activations; choose f32 or bf16"))
    }

    /// The node, or why it cannot run. There is no default arm, and each arm takes all operands apart, so
    /// neither a new op nor a new operand compiles until it is answered.
    #[allow(clippy::too_many_lines, reason = "each op has its arm, which names all of its operands")]
    pub fn bind(&self, node: &Node) -> Result<Bound, String> {
        let (graph, y) = (self.graph, node.output);
        (0..node.inputs.len()).try_for_each(|index| self.check_operand(node, index))?;
        let op = node.op.applied_to(&node.inputs).ok_or("it has too many or too few operands")?;
        let width = |x| graph.value(x).shape.columns();
        Ok(Bound::Op(match op {
            AppliedOp::Embed { ids, table } => embed::bind(graph, ids, table, y)?,
            AppliedOp::Splice { x, given } => splice::bind(x, given, y),
            AppliedOp::Norm { epsilon, x, weight } => norm::bind(epsilon, x, weight, y, width(x)),
            AppliedOp::LayerNorm { epsilon, x, weight, bias } => {
                layer_norm::bind(epsilon, x, [weight, bias], y, width(x))
            }
            AppliedOp::Linear { x, weight, bias } => {
                self.check_precision(weight)?;
                let kind = ActivationKind::of_node(graph, node, self.rule);
                return Ok(Bound::Matmul(linear::bind(graph, kind, x, weight, bias)));
            }
            AppliedOp::LinearHeads { x, weight } => {
                self.check_precision(weight)?;
                linear_heads::bind(graph, ActivationKind::of_node(graph, node, self.rule), [x, weight], y)?
            }
            AppliedOp::Concat { a, b } => concat::bind([a, b], y, [a, b].map(width)),
            AppliedOp::Route { score, used, normalized, groups, factor, near, scores, bias } => {
                let router = Router { score, used, normalized, groups, factor, near };
                route::bind(graph, router, scores, bias, y)
            }
            AppliedOp::Experts {
                used,
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
                self.check_precision(up)?;
                if let Some(adapters) = AdapterNode::of(graph, node) {
                    return Ok(Bound::Op(adapters::bind(graph, self.rule, adapters, y)));
                }
                let matrices = experts::ExpertMatrices { gate, up, down };
                let biases = [gate_bias, up_bias, down_bias];
                let rule = GateRule { act, limit, offset };
                experts::bind(graph, self.rule, (used, rule, weighed), [x, weights], matrices, biases, y)?
            }
            AppliedOp::Reshape { x } => reshape::bind(x, y),
            AppliedOp::Rope { pairing, factor, x, frequencies, positions } => {
                let size = graph.value(x).shape.columns();
                let table = RotationTable { frequencies, factor, positions };
                rope::bind(RopeParams::new(graph, pairing, table), size, x, y)
            }
            AppliedOp::Write { x: _ } => return Ok(Bound::Write),
            AppliedOp::Attend { scale, span, softcap, q, keys, values, sinks } => {
                attend::bind(graph, node, (scale, span, softcap), [q, keys, values], sinks)
            }
            AppliedOp::SelectKeys { best, q, weights, keys } => {
                select_keys::bind(graph, best as usize, [q, weights, keys], y)
            }
            AppliedOp::AttendLatent { scale, span, values, q, latents, selected } => {
                attend::bind_latent(graph, (scale, span, values as usize), [q, latents], selected, y)
            }
            AppliedOp::ShortConv { x, taps, carried, bias } => short_conv::bind([x, taps, carried], bias, y),
            AppliedOp::SsmScan { least, most, x, dt, b, c, a, d, bias, carried } => {
                ssm_scan::bind(graph, (least, most), [x, dt, b, c], [a, d, bias], carried, y)
            }
            AppliedOp::DeltaRule { sharing, q, k, v, beta, dt, a, carried } => {
                delta_rule::bind(graph, sharing, [q, k, v, beta, dt], [a, carried], y)
            }
            AppliedOp::Gate { act, limit, offset, gate, up } => {
                gate::bind(GateRule { act, limit, offset }, gate, up, y)
            }
            AppliedOp::GateHeads { act, gate, x } => gate_heads::bind(act, [gate, x], y, width(x)),
            AppliedOp::Temper { beta, every, offset, x } => {
                temper::bind(Temperature { beta, every, offset }, x, y)
            }
            AppliedOp::Activate { act, x } => activate::bind(act, x, y),
            AppliedOp::Xielu { positive, negative, beta, epsilon, x } => {
                xielu::bind(Xielu { positive, negative, beta, epsilon }, x, y)
            }
            AppliedOp::MatchRms { least, x, like } => match_rms::bind(least, [x, like], y, width(x)),
            AppliedOp::Sparsify { deviations, x } => sparsify::bind(deviations, x, y, width(x)),
            AppliedOp::MixHeads { weights, x } => mix_heads::bind([weights, x], y, width(weights)),
            AppliedOp::Add { a, b } => add::bind(a, b, y),
            AppliedOp::Scale { factor, x } => scale::bind(factor, x, y),
            AppliedOp::ScaleColumns { x, weight } => scale_columns::bind(x, weight, y, width(x)),
            AppliedOp::ShiftColumns { x, shift } => shift_columns::bind(x, shift, y, width(x)),
            AppliedOp::Softcap { cap, x } => softcap::bind(cap, x, y),
            AppliedOp::Clamp { low, high, x } => clamp::bind([low, high], x, y),
            AppliedOp::Hadamard { size, x } => hadamard::bind(size as usize, x, y),
            AppliedOp::Gather { x } => gather::bind(x, y),
            AppliedOp::Pool { how, x } => pool::bind(how, x, y),
        }))
    }

    /// Checks what is asked of an operand whatever the op: its kind, how it is stored, and how others use it.
    fn check_operand(&self, node: &Node, index: usize) -> Result<(), String> {
        let (graph, id) = (self.graph, node.inputs[index]);
        let name = &graph.value(id).name;
        let Some(&need) = node.op.spec().operands.get(index) else { return Ok(()) };
        if !need.fits(graph.value(id)) {
            return Err(format!("its operand '{name}' is not {need}, which '{}' needs", node.op.name()));
        }
        if need == OperandKind::StateOrRows
            && matches!(graph.value(id).role, Role::State(_))
            && let Some(reason) = state::objection(graph, id)
        {
            return Err(format!("its operand '{name}' cannot be stored: {reason}"));
        }
        let form = WeightForm::of(node.op, index);
        if form.is_some() && WeightForm::in_graph(graph, id) != form {
            return Err(format!("its operand '{name}' is used as a matrix and as a vector"));
        }
        Ok(())
    }
}

/// The memory that the nodes of a graph need beside their values; refused ones need none.
pub(crate) fn scratch(graph: &Graph, rule: PrecisionRule) -> OpScratch {
    let binder = Binder::new(graph, rule);
    let bound = graph.nodes.iter().filter_map(|node| binder.bind(node).ok());
    bound.map(|bound| bound.scratch()).fold(OpScratch::default(), OpScratch::max)
}
