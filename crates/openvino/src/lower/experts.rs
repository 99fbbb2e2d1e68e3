//! The feed-forward parts of experts. Every expert is written with every row; OpenVINO's pass
//! `ConvertTiledMoeBlockToGatherMatmuls` reduces this to products of the chosen experts. The pass knows SiLU with a gate,
//! without biases and limits, and weights that multiply the results. OpenVINO computes other experts for every row.

use girih_graph::{Act, AppliedOp, GateRule, Graph, Node, ValueId, Weighed};
use girih_tensor::Result;

use super::lowering::GraphLowering;
use crate::ir::{Port, Precision, layer};

/// A call of the op with its operands.
struct ExpertCall<T> {
    used: u32,
    rule: GateRule,
    weighed: Weighed,
    x: T,
    weights: T,
    up: T,
    down: T,
    gate: Option<T>,
    /// Of gate, up and down.
    biases: [Option<T>; 3],
}

impl<T> ExpertCall<T> {
    /// The call, if it is one of experts.
    fn of(call: AppliedOp<T>) -> Option<ExpertCall<T>> {
        let AppliedOp::Experts {
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
        } = call
        else {
            return None;
        };
        let rule = GateRule { act, limit, offset };
        let biases = [gate_bias, up_bias, down_bias];
        Some(ExpertCall { used, rule, weighed, x, weights, up, down, gate, biases })
    }

    /// Whether OpenVINO computes the experts of a row alone.
    fn is_gathered(&self) -> bool {
        let has_biases = self.biases.iter().any(Option::is_some);
        self.rule == SILU && self.weighed == Weighed::Results && self.gate.is_some() && !has_biases
    }
}

/// The rule of experts that OpenVINO gathers.
const SILU: GateRule = GateRule { act: Act::Silu, limit: None, offset: None };

impl GraphLowering<'_> {
    pub(super) fn experts(&mut self, call: AppliedOp<ValueId>, y: ValueId) -> Result<()> {
        let call = ExpertCall::of(call).ok_or_else(|| self.misplaced(y))?;
        let count = self.inner(call.weights)[0] as i64;
        let [inputs, outputs] = [call.x, y].map(|id| self.inner(id)[0] as i64);
        let (x, weights) = (self.rows(call.x)?, self.rows(call.weights)?);
        let list = self.shaped(x, &[-1, inputs]);
        let times = self.model.integers(&[count, 1]);
        let copies = self.layer(layer("Tile", 1), "", &[list, times]);
        let mut rows = self.shaped(copies, &[count, -1, inputs]);
        if call.weighed == Weighed::Inputs {
            let list = self.shaped(weights, &[-1, count]);
            let weights = self.by_expert(list);
            let weights = self.shaped(weights, &[count, -1, 1]);
            rows = self.binary("Multiply", rows, weights);
        }
        let results = self.of_experts(rows, &call)?;
        let shape = self.expert_shape(x, count, outputs);
        let mut terms = self.reshaped(results, shape);
        if call.weighed == Weighed::Results {
            let weights = self.chosen_weights(weights, count, call.used);
            let shape = self.expert_shape(x, count, 1);
            let weights = self.reshaped(weights, shape);
            terms = self.binary("Multiply", terms, weights);
        }
        let axis = self.model.integers(&[0]);
        let port = self.layer(layer("ReduceSum", 1), "keep_dims=\"false\"", &[terms, axis]);
        self.set_rows(y, port);
        Ok(())
    }

    /// The results of all experts, `[experts, rows, outputs]`.
    fn of_experts(&mut self, rows: Port, call: &ExpertCall<ValueId>) -> Result<Port> {
        let [gate_bias, up_bias, down_bias] = call.biases;
        let gate = call.gate.map(|gate| self.expert_product(rows, gate, gate_bias)).transpose()?;
        let up = self.expert_product(rows, call.up, up_bias)?;
        let inner = match gate {
            Some(gate) => self.gated(call.rule, gate, up),
            None => self.activated(call.rule.act, up),
        };
        self.expert_product(inner, call.down, down_bias)
    }

    fn expert_product(&mut self, rows: Port, stack: ValueId, bias: Option<ValueId>) -> Result<Port> {
        let matrices = self.matrices(stack)?;
        let attributes = "transpose_a=\"false\" transpose_b=\"true\"";
        let mut port = self.layer(layer("MatMul", 1), attributes, &[rows, matrices]);
        if let Some(bias) = bias {
            let &[experts, outputs] = self.graph.value(bias).shape.extents() else {
                return Err(self.misplaced(bias));
            };
            let bias = self.vector(bias, &[experts, 1, outputs])?;
            port = self.binary("Add", port, bias);
        }
        Ok(port)
    }

    /// The weights of the chosen experts of all rows, 0 for others, `[experts, rows]`.
    fn chosen_weights(&mut self, weights: Port, count: i64, used: u32) -> Port {
        let list = self.shaped(weights, &[-1, count]);
        let sizes = self.layer(layer("Abs", 1), "", &[list]);
        let sizes = self.with_largest_nan(sizes);
        let [_, chosen] = self.largest(sizes, used);
        let weights = self.picked(list, chosen, 1);
        let spread = self.spread(weights, chosen, list, 1);
        self.by_expert(spread)
    }

    fn by_expert(&mut self, list: Port) -> Port {
        let order = self.model.integers(&[1, 0]);
        self.layer(layer("Transpose", 1), "", &[list, order])
    }

    /// The shape `[experts, n, r, size]`, where rows have the shape `[n, r, …]`.
    fn expert_shape(&mut self, rows: Port, count: i64, size: i64) -> Port {
        let shape = self.shape_of(rows);
        let (first, axis) = (self.model.integers(&[0, 1]), self.model.integer(0));
        let inner =
            self.model.layer(layer("Gather", 8), "batch_dims=\"0\"", &[shape, first, axis], Precision::I64);
        let [count, size] = [count, size].map(|extent| self.model.integers(&[extent]));
        self.model.layer(layer("Concat", 1), "axis=\"0\"", &[count, inner, size], Precision::I64)
    }

    fn reshaped(&mut self, x: Port, shape: Port) -> Port {
        self.layer(layer("Reshape", 1), "special_zero=\"false\"", &[x, shape])
    }
}

/// The bytes that experts take beside what other ops do: the rows of all experts of a layer, as numbers of single precision, and
/// all matrices, if OpenVINO does not gather them.
pub(crate) fn expert_bytes(graph: &Graph) -> u64 {
    let of = |node: &Node| {
        let Some(call) = graph.applied_op(node).and_then(ExpertCall::of) else { return [0; 2] };
        let &[experts, inner, inputs] = call.up.shape.extents() else { return [0; 2] };
        // The row of the layer, gate, up, their product and the result.
        let row = inputs + 3 * inner + call.down.shape.extents()[1];
        let rows = experts.saturating_mul(graph.key.rows as usize).saturating_mul(row);
        let stacks = [Some(call.up), Some(call.down), call.gate].into_iter().flatten();
        let matrices = stacks.map(|stack| stack.shape.elements()).fold(0, usize::saturating_add);
        [rows, if call.is_gathered() { 0 } else { matrices }]
    };
    let all = graph.nodes.iter().map(of);
    let (rows, matrices) = all
        .fold((0, 0_usize), |(most, sum), [rows, matrices]| (rows.max(most), sum.saturating_add(matrices)));
    (rows.saturating_add(matrices) as u64).saturating_mul(size_of::<f32>() as u64)
}
