//! The feed-forward parts of experts, written as OpenVINO knows them: every expert with every row, of which its pass
//! `ConvertTiledMoeBlockToGatherMatmuls` makes products of the chosen experts alone. It knows SiLU with a gate, without
//! biases and limits, whose weights multiply the results; other experts are computed for every row.

use girih_graph::{Act, AppliedOp, GateRule, Graph, Node, ValueId, Weighed};
use girih_tensor::Result;

use super::lowering::GraphLowering;
use crate::ir::{Port, Precision, layer};

/// The constants of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertRule {
    pub used: u32,
    pub gate: GateRule,
    pub weighed: Weighed,
}

/// The weights of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertWeights {
    pub up: ValueId,
    pub down: ValueId,
    pub gate: Option<ValueId>,
    /// Of gate, up and down.
    pub biases: [Option<ValueId>; 3],
}

impl GraphLowering<'_> {
    pub(super) fn experts(
        &mut self,
        rule: ExpertRule,
        [x, weights]: [ValueId; 2],
        stacks: ExpertWeights,
        y: ValueId,
    ) -> Result<()> {
        let count = self.inner(weights)[0] as i64;
        let [inputs, outputs] = [x, y].map(|id| self.inner(id)[0] as i64);
        let (x, weights) = (self.rows(x)?, self.rows(weights)?);
        let list = self.shaped(x, &[-1, inputs]);
        let times = self.model.integers(&[count, 1]);
        let copies = self.layer(layer("Tile", 1), "", &[list, times]);
        let mut rows = self.shaped(copies, &[count, -1, inputs]);
        if rule.weighed == Weighed::Inputs {
            let list = self.shaped(weights, &[-1, count]);
            let weights = self.by_expert(list);
            let weights = self.shaped(weights, &[count, -1, 1]);
            rows = self.binary("Multiply", rows, weights);
        }
        let results = self.of_experts(rule.gate, rows, stacks)?;
        let shape = self.expert_shape(x, count, outputs);
        let mut terms = self.reshaped(results, shape);
        if rule.weighed == Weighed::Results {
            let weights = self.chosen_weights(weights, count, rule.used);
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
    fn of_experts(&mut self, rule: GateRule, rows: Port, stacks: ExpertWeights) -> Result<Port> {
        let [gate_bias, up_bias, down_bias] = stacks.biases;
        let gate = stacks.gate.map(|gate| self.expert_product(rows, gate, gate_bias)).transpose()?;
        let up = self.expert_product(rows, stacks.up, up_bias)?;
        let inner = match gate {
            Some(gate) => self.gated(rule, gate, up),
            None => self.activated(rule.act, up),
        };
        self.expert_product(inner, stacks.down, down_bias)
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

/// The bytes that the experts of a layer take beside what other ops do: the rows of all experts, as numbers of
/// single precision, and their matrices, if OpenVINO does not gather them.
pub(crate) fn expert_bytes(graph: &Graph) -> u64 {
    let of = |node: &Node| match graph.applied_op(node) {
        Some(AppliedOp::Experts {
            used: _,
            act,
            limit,
            offset,
            weighed,
            x,
            weights: _,
            up,
            down,
            gate,
            gate_bias,
            up_bias,
            down_bias,
        }) => {
            let rule = GateRule { act, limit, offset };
            let has_biases = [gate_bias, up_bias, down_bias].iter().any(Option::is_some);
            let is_gathered = rule == SILU && weighed == Weighed::Results && gate.is_some() && !has_biases;
            let stacks = [Some(up), Some(down), gate].into_iter().flatten();
            let matrices = stacks.map(|stack| stack.shape.elements()).fold(0, usize::saturating_add);
            let [experts, inner, _] = *up.shape.extents() else { return [0; 2] };
            // The row of the layer, gate, up, their product and the result.
            let row = x.shape.stride() + 3 * inner + down.shape.extents()[1];
            let rows = experts.saturating_mul(graph.key.rows as usize).saturating_mul(row);
            [rows, if is_gathered { 0 } else { matrices }]
        }
        _ => [0; 2],
    };
    // Rows are those of one layer at a time; matrices are kept.
    let all = graph.nodes.iter().map(of);
    let (rows, matrices) = all
        .fold((0, 0_usize), |(most, sum), [rows, matrices]| (rows.max(most), sum.saturating_add(matrices)));
    (rows.saturating_add(matrices) as u64).saturating_mul(size_of::<f32>() as u64)
}

/// The rule of experts that OpenVINO gathers.
const SILU: GateRule = GateRule { act: Act::Silu, limit: None, offset: None };
