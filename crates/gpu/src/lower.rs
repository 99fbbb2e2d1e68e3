//! Graphs become launches, node by node.

mod attention;
mod heads;

use girih_graph::routed_experts::has_no_weights;
use girih_graph::{
    AppliedOp, Extent, GateRule, Graph, HeadSharing, Node, Pairing, Pooling, Role, Router, Span, StateKind,
    Temperature, ValueId, Weighed,
};
use girih_tensor::{Error, Result};

use crate::activation_words::{act_number, gate_words};
use crate::driver::BufferPart;
use crate::group::{FusedSum, GroupedMatmul, JoinedNodes, joined_name};
use crate::kernel::GpuKernel;
use crate::launch::{BufferRef, Count, GpuLaunch, Instruction, LaunchGrid};
use crate::matmul::{EnteringRows, MatrixRef, ProductTarget, expert_product, product};
use crate::matrix::MatrixShape;
use crate::slots::Slots;
use crate::state::is_keys;
use crate::step_table::{GpuRotation, TableParts, group_of};
use crate::temporary::{inner, matrix_shape};
use crate::weights::{GpuWeights, GroupedMatrix, MatrixPiece};

/// The ops of `elements.wgsl`, by number.
mod element {
    pub const ADD: u32 = 0;
    pub const SCALE: u32 = 1;
    pub const SOFTCAP: u32 = 2;
    pub const ACTIVATE: u32 = 3;
    pub const GATE: u32 = 4;
    pub const GATE_HEADS: u32 = 5;
    pub const SCALE_COLUMNS: u32 = 6;
    pub const XIELU: u32 = 7;
    pub const SHIFT_COLUMNS: u32 = 8;
    pub const CONCAT: u32 = 9;
    pub const GATHER: u32 = 10;
    pub const TEMPER: u32 = 11;
    pub const MIX_HEADS: u32 = 12;
    pub const POOL: u32 = 13;
    pub const SPLICE: u32 = 14;
    pub const PAD: u32 = 15;
    pub const CLAMP: u32 = 16;
}

/// The launches of a node.
#[derive(Debug)]
pub(crate) struct NodeLaunches {
    /// The number of the node.
    pub node: usize,
    pub instructions: Vec<Instruction>,
    /// What runs instead of these and of other nodes, unless a result between is watched.
    pub fused: Option<FusedLaunches>,
}

/// How a node runs in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeWay {
    Alone,
    /// With others, which do not run.
    Fused,
    /// Another one computes it.
    Skipped,
}

impl NodeLaunches {
    /// What runs.
    pub fn of(&self, way: NodeWay) -> &[Instruction] {
        match (way, &self.fused) {
            (NodeWay::Skipped, _) => &[],
            (NodeWay::Fused, Some(fused)) => &fused.instructions,
            (NodeWay::Alone | NodeWay::Fused, _) => &self.instructions,
        }
    }

    /// The kernels of all launches, used or not.
    pub fn kernels(&self) -> Vec<GpuKernel> {
        let fused = self.fused.iter().flat_map(|fused| &fused.instructions);
        self.instructions.iter().chain(fused).flat_map(Instruction::kernels).collect()
    }

    /// All launches, used or not.
    fn launches_mut(&mut self) -> impl Iterator<Item = &mut GpuLaunch> {
        let fused = self.fused.iter_mut().flat_map(|fused| &mut fused.instructions);
        self.instructions.iter_mut().chain(fused).flat_map(Instruction::launches_mut)
    }
}

/// Launches of several nodes.
#[derive(Debug)]
pub(crate) struct FusedLaunches {
    pub instructions: Vec<Instruction>,
    /// The nodes whose results are not there when these have run as nodes.
    pub absent: Vec<usize>,
    /// The other nodes that do not run.
    pub skipped: Vec<usize>,
}

/// Lowers a graph.
pub(crate) struct Lowering<'a> {
    pub graph: &'a Graph,
    pub weights: &'a GpuWeights,
    pub slots: &'a Slots,
    pub parts: &'a TableParts,
    pub groups: &'a JoinedNodes,
}

impl Lowering<'_> {
    /// The launches of all nodes.
    ///
    /// # Errors
    /// When a weight is not loaded.
    pub fn run(&self) -> Result<Vec<NodeLaunches>> {
        let of_node = |(node, of): (usize, &Node)| {
            let instructions = self.node(node, of)?;
            let sum = self.groups.sum(node).map(|sum| self.fused(node, of, sum));
            let heads = self.groups.heads_at(node).map(|heads| self.fused_heads(heads));
            let fused = sum.or(heads).transpose()?;
            Ok(NodeLaunches { node, instructions, fused })
        };
        let mut nodes: Vec<NodeLaunches> =
            self.graph.nodes.iter().enumerate().map(of_node).collect::<Result<_>>()?;
        let all = nodes.iter_mut().flat_map(NodeLaunches::launches_mut);
        (0..).zip(all).for_each(|(id, launch)| launch.id = id);
        Ok(nodes)
    }

    /// The matmuls of one value.
    fn matmuls(&self, x: ValueId, group: &[GroupedMatmul], slots: &[usize]) -> Result<Vec<Instruction>> {
        let name = joined_name(self.graph, group.iter().map(|matmul| matmul.weight));
        let GroupedMatrix { shape, piece, bias } = self.weights.group(&name)?;
        let result = |matmul: &GroupedMatmul| Ok((self.value(matmul.y)?, matmul.shape.rows as u32));
        let target = ProductTarget::Several(group.iter().map(result).collect::<Result<_>>()?);
        let matrix = self.matrix_of(*shape, std::slice::from_ref(piece));
        self.product(x, matrix, bias.as_ref(), &target, self.count(group[0].y), slots)
    }

    /// The launches of a product, with the padding and the rounding of rows before it.
    fn product(
        &self,
        x: ValueId,
        matrix: MatrixRef<'_>,
        bias: Option<&BufferPart>,
        target: &ProductTarget,
        count: Count,
        slots: &[usize],
    ) -> Result<Vec<Instruction>> {
        let mut list = Vec::new();
        let heads = matrix.shape.count;
        let rows = self.padded(x, heads, matrix.shape, || BufferRef::Slot(slots[0]), &mut list)?;
        let rounded = match (matrix.integers, slots) {
            (Some(_), [.., codes, scales]) => [codes, scales].map(|slot| BufferRef::Slot(*slot)),
            _ => [BufferRef::Unread, BufferRef::Unread],
        };
        list.extend(matrix.round(&rows, &rounded, count));
        list.extend(product(&rows, &rounded, matrix, bias, target, count));
        Ok(list)
    }

    /// A matmul with the addition of its result.
    fn fused(&self, index: usize, node: &Node, sum: &FusedSum) -> Result<FusedLaunches> {
        let slots = self.slots.temporary(index);
        let Some(AppliedOp::Linear { x, weight, bias }) = node.op.applied_to(&node.inputs) else {
            return Err(Error::new("a sum follows another op; this is a bug in girih"));
        };
        let (matrix, bias) = (self.matrix(weight)?, self.vector(bias)?);
        let target = ProductTarget::One { y: self.value(sum.y)?, residual: Some(self.value(sum.residual)?) };
        let instructions = self.product(x, matrix, bias, &target, self.count(sum.y), slots)?;
        Ok(FusedLaunches { instructions, absent: vec![index], skipped: vec![sum.add] })
    }

    /// Where a value lies.
    fn value(&self, id: ValueId) -> Result<BufferRef> {
        let value = self.graph.value(id);
        match value.role {
            Role::Weight => self.weights.vector(value).map(|part| BufferRef::Weight(part.clone())),
            Role::State(_) => {
                let states = self.graph.ids().filter(|(_, value)| matches!(value.role, Role::State(_)));
                let index = states.map(|(id, _)| id).position(|known| known == id);
                Ok(BufferRef::State(index.expect("the value is state of this graph")))
            }
            Role::Input | Role::Scratch | Role::Output => {
                let slot = self.slots.value(id);
                slot.map(BufferRef::Slot).ok_or_else(|| {
                    Error::new(format!("'{}' has no buffer; this is a bug in girih", value.name))
                })
            }
        }
    }

    fn optional(&self, id: Option<ValueId>) -> Result<(u32, BufferRef)> {
        id.map_or(Ok((0, BufferRef::Unread)), |id| Ok((1, self.value(id)?)))
    }

    fn vector(&self, id: Option<ValueId>) -> Result<Option<&BufferPart>> {
        id.map(|id| self.weights.vector(self.graph.value(id))).transpose()
    }

    fn matrix(&self, id: ValueId) -> Result<MatrixRef<'_>> {
        let value = self.graph.value(id);
        let shape = matrix_shape(self.graph, id)
            .ok_or_else(|| Error::new(format!("'{}' is no matrix; this is a bug in girih", value.name)))?;
        Ok(self.matrix_of(shape, self.weights.matrix(value)?))
    }

    fn matrix_of<'a>(&self, shape: MatrixShape, pieces: &'a [MatrixPiece]) -> MatrixRef<'a> {
        let GpuWeights { tuning, precision, .. } = self.weights;
        MatrixRef { shape, pieces, integers: precision.rounds(shape.layout).then_some(*tuning) }
    }

    fn count(&self, id: ValueId) -> Count {
        match self.graph.value(id).outermost {
            Extent::OutputRows => Count::OutputRows,
            Extent::Sequences => Count::Sequences,
            Extent::Rows | Extent::Fixed | Extent::Context => Count::Rows,
        }
    }

    /// Numbers of a row.
    fn stride(&self, id: ValueId) -> usize {
        self.graph.value(id).shape.stride()
    }

    fn columns(&self, id: ValueId) -> usize {
        self.graph.value(id).shape.columns()
    }

    /// A launch of `elements.wgsl` with its words from the second on.
    fn element(
        &self,
        op: u32,
        words: &[u32],
        [a, b]: [BufferRef; 2],
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let words = [&[0, op], words].concat();
        let binds = vec![BufferRef::Step, a, b, self.value(y)?];
        let launch = GpuLaunch::elements(GpuKernel::Elements, binds, words, self.count(y), self.stride(y));
        Ok(vec![Instruction::Launch(launch)])
    }

    /// Rows padded with zeros, into a buffer of their own; the rows themselves if they need none.
    fn padded(
        &self,
        x: ValueId,
        heads: usize,
        shape: MatrixShape,
        into: impl FnOnce() -> BufferRef,
        list: &mut Vec<Instruction>,
    ) -> Result<BufferRef> {
        let from = self.value(x)?;
        if shape.padded() == shape.columns {
            return Ok(from);
        }
        let to = into();
        let words = vec![0, element::PAD, shape.padded() as u32, shape.columns as u32];
        let binds = vec![BufferRef::Step, from, BufferRef::Unread, to.clone()];
        let each = heads * shape.padded();
        list.push(Instruction::Launch(GpuLaunch::elements(
            GpuKernel::Elements,
            binds,
            words,
            self.count(x),
            each,
        )));
        Ok(to)
    }

    #[allow(clippy::too_many_lines, reason = "each op has its arm, which names all of its operands")]
    fn node(&self, index: usize, node: &Node) -> Result<Vec<Instruction>> {
        if has_no_weights(node) {
            return Ok(vec![Instruction::LeftExperts]);
        }
        let y = node.output;
        let call = node.op.applied_to(&node.inputs).ok_or_else(|| {
            Error::new(format!(
                "'{}' has a wrong number of operands; this is a bug in girih",
                self.graph.value(y).name
            ))
        })?;
        let slots = self.slots.temporary(index);
        let none = || BufferRef::Unread;
        match call {
            AppliedOp::Embed { ids, table } => self.embed(ids, table, y),
            AppliedOp::Splice { x, given } => {
                let words = [self.stride(x) as u32, 0, 0, 0, self.parts.given(given)];
                self.element(element::SPLICE, &words, [self.value(x)?, self.value(given)?], y)
            }
            AppliedOp::Norm { epsilon, x, weight } => self.norm(0, epsilon, [x, x], [weight, None], y),
            AppliedOp::LayerNorm { epsilon, x, weight, bias } => {
                self.norm(1, epsilon, [x, x], [weight, bias], y)
            }
            AppliedOp::MatchRms { least, x, like } => self.norm(2, least.sqrt(), [x, like], [None, None], y),
            AppliedOp::Sparsify { deviations, x } => self.norm(3, deviations, [x, x], [None, None], y),
            AppliedOp::Linear { x, weight, bias } => {
                if let Some(group) = self.groups.group(index) {
                    let is_first = group[0].node == index;
                    return if is_first { self.matmuls(x, group, slots) } else { Ok(Vec::new()) };
                }
                let (matrix, bias) = (self.matrix(weight)?, self.vector(bias)?);
                let target = ProductTarget::One { y: self.value(y)?, residual: None };
                self.product(x, matrix, bias, &target, self.count(y), slots)
            }
            AppliedOp::LinearHeads { x, weight } => {
                let matrix = self.matrix(weight)?;
                if matrix.pieces.len() > 1 {
                    let name = &self.graph.value(weight).name;
                    return Err(Error::new(format!(
                        "the weight '{name}' is larger than a binding of the GPU"
                    )));
                }
                let target = ProductTarget::One { y: self.value(y)?, residual: None };
                self.product(x, matrix, None, &target, self.count(y), slots)
            }
            AppliedOp::Concat { a, b } => {
                let words = [self.columns(y) as u32, self.columns(a) as u32];
                self.element(element::CONCAT, &words, [self.value(a)?, self.value(b)?], y)
            }
            AppliedOp::Route { score, used, normalized, groups, factor, near, scores, bias } => {
                let router = Router { score, used, normalized, groups, factor, near };
                self.route(router, scores, bias, slots[0], y)
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
                let rule = GateRule { act, limit, offset };
                let experts = ExpertOperands { used, rule, weighed, x, weights, up, down, gate };
                self.experts(&experts, [gate_bias, up_bias, down_bias], slots, y)
            }
            AppliedOp::Reshape { x: _ } => Ok(Vec::new()),
            AppliedOp::Rope { pairing, factor, x, frequencies, positions } => {
                let rotation = GpuRotation { frequencies, positions };
                let (size, pairs) = (self.columns(x), rotation.pairs(self.graph));
                let heads = self.stride(x) / size;
                let words = vec![
                    0,
                    heads as u32,
                    size as u32,
                    pairs as u32,
                    u32::from(pairing == Pairing::Neighbours),
                    self.parts.rotation(rotation),
                    factor.unwrap_or(1.0).to_bits(),
                ];
                let binds = vec![BufferRef::Step, self.value(x)?, self.value(y)?];
                let each = heads * (size - pairs);
                Ok(vec![Instruction::Launch(GpuLaunch::elements(
                    GpuKernel::Rope,
                    binds,
                    words,
                    Count::Rows,
                    each,
                ))])
            }
            AppliedOp::Write { x } => {
                let group = group_of(self.graph, y).map(|(group, _)| group);
                Ok(vec![self.write(x, self.held(y, is_keys(self.graph, y))?, group)?])
            }
            AppliedOp::Attend { scale, span, softcap, q, keys, values, sinks } => {
                let sizes =
                    GpuAttention { scale, span, softcap, value_size: self.columns(values), is_latent: false };
                self.attend(&sizes, q, [keys, values], sinks, None, slots, y)
            }
            AppliedOp::AttendLatent { scale, span, values, q, latents, selected } => {
                let sizes =
                    GpuAttention { scale, span, softcap: None, value_size: values as usize, is_latent: true };
                self.attend(&sizes, q, [latents, latents], None, selected, slots, y)
            }
            AppliedOp::SelectKeys { best, q, weights, keys } => {
                self.select_keys(best, [q, weights, keys], slots, y)
            }
            AppliedOp::Hadamard { .. } => {
                Err(Error::new("the op 'hadamard' was not refused; this is a bug in girih"))
            }
            AppliedOp::Clamp { low, high, x } => {
                let words = [self.stride(x) as u32, 0, 0, 0, 0, 0, low.to_bits(), high.to_bits()];
                self.element(element::CLAMP, &words, [self.value(x)?, none()], y)
            }
            AppliedOp::ShortConv { x, taps, carried, bias } => self.short_conv([x, taps, carried], bias, y),
            AppliedOp::SsmScan { least, most, x, dt, b, c, a, d, bias, carried } => {
                self.ssm_scan((least, most), [x, dt, b, c, a, d, bias], carried, y)
            }
            AppliedOp::DeltaRule { sharing, q, k, v, beta, dt, a, carried } => {
                self.delta_rule(sharing, [q, k, v, beta, dt, a], carried, y)
            }
            AppliedOp::Gate { act, limit, offset, gate, up } => {
                let (numbers, [bound, offset]) = gate_words(GateRule { act, limit, offset });
                let words = [self.stride(y) as u32, 0, numbers[0], numbers[1], 0, 0, bound, offset];
                self.element(element::GATE, &words, [self.value(gate)?, self.value(up)?], y)
            }
            AppliedOp::GateHeads { act, gate, x } => {
                let words = [self.columns(x) as u32, 0, act_number(act)];
                self.element(element::GATE_HEADS, &words, [self.value(gate)?, self.value(x)?], y)
            }
            AppliedOp::Temper { beta, every, offset, x } => {
                let at = self.parts.temperature(Temperature { beta, every, offset });
                let words = [self.stride(x) as u32, 0, 0, 0, at];
                self.element(element::TEMPER, &words, [self.value(x)?, none()], y)
            }
            AppliedOp::Activate { act, x } => {
                let words = [self.stride(x) as u32, 0, act_number(act)];
                self.element(element::ACTIVATE, &words, [self.value(x)?, none()], y)
            }
            AppliedOp::Xielu { positive, negative, beta, epsilon, x } => {
                let [p0, p1, p2, p3] = [positive, negative, beta, epsilon].map(f32::to_bits);
                let words = [self.stride(x) as u32, 0, 0, 0, 0, 0, p0, p1, p2, p3];
                self.element(element::XIELU, &words, [self.value(x)?, none()], y)
            }
            AppliedOp::MixHeads { weights, x } => {
                let words = [self.columns(x) as u32, self.columns(weights) as u32];
                self.element(element::MIX_HEADS, &words, [self.value(weights)?, self.value(x)?], y)
            }
            AppliedOp::Add { a, b } => {
                self.element(element::ADD, &[self.stride(y) as u32], [self.value(a)?, self.value(b)?], y)
            }
            AppliedOp::Scale { factor, x } => {
                let words = [self.stride(x) as u32, 0, 0, 0, 0, 0, factor.to_bits()];
                self.element(element::SCALE, &words, [self.value(x)?, none()], y)
            }
            AppliedOp::ScaleColumns { x, weight } => {
                let words = [self.columns(x) as u32];
                self.element(element::SCALE_COLUMNS, &words, [self.value(x)?, self.value(weight)?], y)
            }
            AppliedOp::ShiftColumns { x, shift } => {
                let words = [self.columns(x) as u32];
                self.element(element::SHIFT_COLUMNS, &words, [self.value(x)?, self.value(shift)?], y)
            }
            AppliedOp::Softcap { cap, x } => {
                let words = [self.stride(x) as u32, 0, 0, 0, 0, 0, cap.to_bits()];
                self.element(element::SOFTCAP, &words, [self.value(x)?, none()], y)
            }
            AppliedOp::Gather { x } => {
                self.element(element::GATHER, &[self.stride(x) as u32], [self.value(x)?, none()], y)
            }
            AppliedOp::Pool { how, x } => {
                let how = match how {
                    Pooling::First => 0,
                    Pooling::Last => 1,
                    Pooling::Mean => 2,
                };
                self.element(element::POOL, &[self.stride(x) as u32, how], [self.value(x)?, none()], y)
            }
        }
    }

    fn embed(&self, ids: ValueId, table: ValueId, y: ValueId) -> Result<Vec<Instruction>> {
        let MatrixRef { shape, pieces, .. } = self.matrix(table)?;
        let (ids, to, width) = (self.value(ids)?, self.value(y)?, shape.columns);
        let parts = width.div_ceil(8);
        let launch = |piece: &MatrixPiece| {
            let first = piece.first * 32;
            let rows = (shape.rows - first).min(piece.bands * 32);
            let words = [0, shape.groups(), width, first, rows, parts].map(|word| word as u32).to_vec();
            let binds = vec![
                BufferRef::Weight(piece.codes.clone()),
                BufferRef::Weight(piece.scales.clone()),
                ids.clone(),
                to.clone(),
            ];
            let kernel = GpuKernel::Embed(shape.layout);
            Instruction::Launch(GpuLaunch::elements(kernel, binds, words, Count::Rows, parts))
        };
        Ok(pieces.iter().map(launch).collect())
    }

    fn norm(
        &self,
        mode: u32,
        number: f32,
        [x, other]: [ValueId; 2],
        [weight, bias]: [Option<ValueId>; 2],
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let width = self.columns(x);
        let weights = weight.map_or(0, |id| self.graph.value(id).shape.elements() as u32);
        let ((_, weight), (has_bias, bias)) = (self.optional(weight)?, self.optional(bias)?);
        let words = vec![0, mode, width as u32, weights, has_bias, number.to_bits(), 0];
        let binds = vec![self.value(x)?, self.value(other)?, weight, bias, self.value(y)?];
        let grid = LaunchGrid::Runs { each: (self.stride(x) / width) as u32 };
        Ok(vec![Instruction::Launch(GpuLaunch {
            id: 0,
            kernel: GpuKernel::Norm,
            binds,
            words,
            count: self.count(y),
            grid,
        })])
    }

    fn route(
        &self,
        router: Router,
        scores: ValueId,
        bias: Option<ValueId>,
        ranks: usize,
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let (has_bias, bias) = self.optional(bias)?;
        let [groups, groups_used, best] =
            router.groups.map_or([0; 3], |groups| [groups.count, groups.used, groups.best]);
        let words = vec![
            0,
            self.columns(scores) as u32,
            router.used,
            u32::from(router.score == girih_graph::RouterScore::Sigmoid),
            has_bias,
            groups,
            groups_used,
            best,
            u32::from(router.normalized.is_some()),
            u32::from(router.near.is_some()),
            router.normalized.unwrap_or(0.0).to_bits(),
            router.factor.unwrap_or(1.0).to_bits(),
            router.near.unwrap_or(0.0).to_bits(),
        ];
        let binds = vec![self.value(scores)?, bias, BufferRef::Slot(ranks), self.value(y)?];
        let grid = LaunchGrid::Invocations { each: 1, size: 64 };
        Ok(vec![Instruction::Launch(GpuLaunch {
            id: 0,
            kernel: GpuKernel::Route,
            binds,
            words,
            count: self.count(y),
            grid,
        })])
    }

    fn experts(
        &self,
        experts: &ExpertOperands,
        biases: [Option<ValueId>; 3],
        slots: &[usize],
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let ExpertOperands { used, rule, weighed, x, weights, up, down, gate } = *experts;
        let [chosen, entering, inner_up, inner_gate, gated, result] =
            [0, 1, 2, 3, 4, 5].map(|index| BufferRef::Slot(slots[index]));
        let (count, of_all) = (self.count(y), self.columns(weights) as u32);
        let [up, down] = [self.matrix(up)?, self.matrix(down)?];
        let [gate_bias, up_bias, down_bias] = biases;
        let weights = self.value(weights)?;
        let has_gate = u32::from(gate.is_some());
        let (numbers, [bound, offset]) = gate_words(rule);
        let around =
            |mode: u32, width: usize, inner: usize, has_gate: u32, binds: [BufferRef; 4], each: usize| {
                let [a, b, chosen, to] = binds;
                let words = vec![
                    0,
                    mode,
                    used,
                    width as u32,
                    numbers[0],
                    numbers[1],
                    has_gate,
                    of_all,
                    bound,
                    offset,
                    inner as u32,
                ];
                let binds = vec![weights.clone(), a, b, chosen, to];
                Instruction::Launch(GpuLaunch::elements(GpuKernel::Experts, binds, words, count, each))
            };
        let (unread, unwritten) = (BufferRef::Unread, BufferRef::Unwritten(0));
        let mut list =
            vec![around(0, 1, 1, 0, [unread.clone(), unread.clone(), chosen.clone(), unwritten], 1)];
        let of_choices = |width: usize| used as usize * width;
        let from = match weighed {
            Weighed::Results => {
                let buffer = self.padded(x, 1, up.shape, || entering.clone(), &mut list)?;
                EnteringRows { buffer, shared_by: used }
            }
            Weighed::Inputs => {
                let (width, binds) =
                    (up.shape.padded(), [self.value(x)?, unread.clone(), chosen.clone(), entering.clone()]);
                list.push(around(3, width, up.shape.columns, 0, binds, of_choices(width)));
                EnteringRows { buffer: entering, shared_by: 1 }
            }
        };
        let choices = (&chosen, used);
        list.extend(expert_product(&from, up, self.vector(up_bias)?, choices, &inner_up, count));
        if let Some(gate) = gate {
            let gate = self.matrix(gate)?;
            list.extend(expert_product(&from, gate, self.vector(gate_bias)?, choices, &inner_gate, count));
        }
        let binds = [inner_gate, inner_up, chosen.clone(), gated.clone()];
        let width = down.shape.padded();
        list.push(around(1, width, up.shape.rows, has_gate, binds, of_choices(width)));
        let gated = EnteringRows { buffer: gated, shared_by: 1 };
        list.extend(expert_product(&gated, down, self.vector(down_bias)?, choices, &result, count));
        let is_weighed = u32::from(weighed == Weighed::Inputs);
        let binds = [result, unread, chosen, self.value(y)?];
        let width = down.shape.rows;
        list.push(around(2, width, width, is_weighed, binds, width));
        Ok(list)
    }

    fn carried_group(&self, carried: ValueId) -> u32 {
        let group = group_of(self.graph, carried).filter(|(_, kind)| *kind == StateKind::Carried);
        self.parts.group(group.map(|(group, _)| group))
    }

    fn short_conv(
        &self,
        [x, taps, carried]: [ValueId; 3],
        bias: Option<ValueId>,
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let width = self.columns(x) as u32;
        let count = self.graph.value(taps).shape.extents()[0] as u32;
        let table = self.carried_group(carried);
        let (has_bias, bias) = self.optional(bias)?;
        let launch = |mode, of, y| -> Result<Instruction> {
            let words = vec![0, mode, width, count, table, has_bias];
            let binds = vec![
                BufferRef::Step,
                self.value(x)?,
                self.value(taps)?,
                bias.clone(),
                self.value(carried)?,
                y,
            ];
            let grid = LaunchGrid::Invocations { each: width, size: 64 };
            Ok(Instruction::Launch(GpuLaunch {
                id: 0,
                kernel: GpuKernel::Conv,
                binds,
                words,
                count: of,
                grid,
            }))
        };
        Ok(vec![
            launch(0, Count::Rows, self.value(y)?)?,
            launch(1, Count::Sequences, BufferRef::Unwritten(0))?,
        ])
    }

    fn ssm_scan(
        &self,
        (least, most): (f32, Option<f32>),
        operands: [ValueId; 7],
        carried: ValueId,
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let [x, _, b, ..] = operands;
        let (&[heads, size], &[groups, columns]) = (inner(self.graph, x), inner(self.graph, b)) else {
            return Err(Error::new("a scan has other shapes; this is a bug in girih"));
        };
        let words = vec![
            0,
            heads as u32,
            size as u32,
            columns as u32,
            groups as u32,
            self.carried_group(carried),
            u32::from(most.is_some()),
            least.to_bits(),
            most.unwrap_or(0.0).to_bits(),
        ];
        self.scan(GpuKernel::Scan, &operands, carried, words, heads * size, y)
    }

    fn delta_rule(
        &self,
        sharing: HeadSharing,
        operands: [ValueId; 6],
        carried: ValueId,
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let [q, _, v, _, dt, _] = operands;
        let (&[groups, size], &[heads, width]) = (inner(self.graph, q), inner(self.graph, v)) else {
            return Err(Error::new("a delta rule has other shapes; this is a bug in girih"));
        };
        let words = vec![
            0,
            heads as u32,
            size as u32,
            width as u32,
            groups as u32,
            self.carried_group(carried),
            u32::from(sharing == HeadSharing::Turns),
            (self.stride(dt) / heads) as u32,
        ];
        self.scan(GpuKernel::Delta, &operands, carried, words, heads * width, y)
    }

    /// A launch with a row of workgroups for each sequence.
    fn scan(
        &self,
        kernel: GpuKernel,
        operands: &[ValueId],
        carried: ValueId,
        words: Vec<u32>,
        groups: usize,
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let mut binds = vec![BufferRef::Step];
        for id in operands.iter().chain([&carried, &y]) {
            binds.push(self.value(*id)?);
        }
        let grid = LaunchGrid::Beside { x: groups as u32 };
        Ok(vec![Instruction::Launch(GpuLaunch {
            id: 0,
            kernel,
            binds,
            words,
            count: Count::Sequences,
            grid,
        })])
    }
}

/// The constants and the sizes of attention.
struct GpuAttention {
    scale: f32,
    span: Span,
    softcap: Option<f32>,
    value_size: usize,
    is_latent: bool,
}

/// The constants and the operands of experts.
struct ExpertOperands {
    used: u32,
    rule: GateRule,
    weighed: Weighed,
    x: ValueId,
    weights: ValueId,
    up: ValueId,
    down: ValueId,
    gate: Option<ValueId>,
}
