//! Experts: each row with the matrices that it chose, all rows of an expert together.
//!
//! ```text
//! slots = pairs of a row and an expert, by expert, then by row
//! for each expert (threads share its bands):      inner[slot] = act(gate · x) · up · x
//! for each band of the result (threads share it):
//!     for each expert, in order:                  y[row] += weight · (down · inner[slot])
//! ```
//! Weights of inputs multiply the products with gate and up instead of the results.
//!
//! A result is a sum over a row's experts in the order of their indexes, and each term is that of a matmul
//! with one row. So it depends neither on the other rows, nor on threads. Bytes moved: the bands of the
//! chosen experts, once for each step of few rows.

use girih_graph::{GateRule, Graph, InputSpec, Op, Role, ValueId, Weighed};
use girih_tensor::DType;

use super::executor::Executor;
use super::linear::{
    Epilogue, MatmulOperands, MatmulPiece, NARROW_PIECE_BANDS, bands_of_columns, bands_of_piece, local_len,
};
use super::product::pack_rows;
use crate::activations::{ActivationKind, PackedActivations, PrecisionRule};
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, NARROW, bands};
use crate::memory::Aligned;
use crate::packed_matrix::PackedMatrix;
use crate::pool::{Grid, ThreadPool};
use crate::step::CpuStep;

/// The maximum number of bands of each expert in a piece of the result.
const DOWN_PIECE_BANDS: usize = 16;

/// The weights of experts; without a gate, `up` is activated.
#[derive(Clone, Copy)]
pub(crate) struct ExpertMatrices {
    pub gate: Option<ValueId>,
    pub up: ValueId,
    pub down: ValueId,
}

/// The node.
struct BoundExperts {
    gate_rule: GateRule,
    weighed: Weighed,
    /// The largest number of experts of a row.
    used: usize,
    x: ValueId,
    weights: ValueId,
    matrices: ExpertMatrices,
    /// Of gate, up and down.
    biases: [Option<ValueId>; 3],
    y: ValueId,
    /// How the rows of `x` and the inner rows are packed.
    kinds: [ActivationKind; 2],
}

/// The parts of the shared memory.
struct Lists<'a> {
    /// The row of each slot.
    rows: &'a [u32],
    /// The weight of each slot.
    weights: &'a [f32],
    /// The chosen experts, and for each the slot behind its last.
    experts: &'a [u32],
    ends: &'a [u32],
    /// For each of them the end of its packed rows, in packed rows with their padding.
    units: &'a [u32],
}

/// The words of packed rows: no more than `slots` rows need in any groups.
fn packed_len(kind: ActivationKind, slots: usize, width: usize) -> usize {
    // Nine columns or more are padded by a third at most, fewer are not.
    kind.size(1, width).saturating_mul(slots + slots / 3 + 1)
}

/// The lengths of the lists of a step: slots, and experts.
fn list_len(slots: usize, experts: usize) -> usize {
    slots + 4 * experts
}

/// Binds a node.
///
/// # Errors
/// If the weights cannot be multiplied, or the rows may choose more experts than the node says.
pub(crate) fn bind(
    graph: &Graph,
    rule: PrecisionRule,
    (used, gate_rule, weighed): (u32, GateRule, Weighed),
    [x, weights]: [ValueId; 2],
    matrices: ExpertMatrices,
    biases: [Option<ValueId>; 3],
    y: ValueId,
) -> Result<BoundOp, String> {
    let ExpertMatrices { gate, up, down } = matrices;
    let used = used as usize;
    let [kind, gate_kind] =
        [up, gate.unwrap_or(up)].map(|weight| ActivationKind::of_weight(graph, weight, rule));
    if kind != gate_kind {
        let [up, gate] = [up, gate.unwrap_or(up)].map(|weight| graph.value(weight).dtype);
        return Err(format!("its gate is stored as {gate} and its up as {up}; one format is needed"));
    }
    if let Some(dtype) = [Some(up), Some(down), gate].into_iter().flatten().find_map(|weight| {
        let dtype: DType = graph.value(weight).dtype;
        (dtype.tile().0 != 1).then_some(dtype)
    }) {
        return Err(format!("experts are stored as {dtype}, whose blocks have several rows"));
    }
    let inner_kind = ActivationKind::of_weight(graph, down, rule);
    let (rows, width) = (graph.value(x).shape.rows(), graph.value(x).shape.columns());
    let &[experts, inner, _] = graph.value(up).shape.extents() else {
        return Err("its matrices have no three dimensions".to_owned());
    };
    if !chooses_at_most(graph, weights, used) {
        return Err(format!("its weights are no choice of {used} experts by 'route'"));
    }
    let slots = rows * used;
    let terms = kind.terms().max(inner_kind.terms());
    let words = list_len(slots, experts)
        + packed_len(kind, if rows == 1 { 1 } else { slots }, width)
        + packed_len(inner_kind, slots, inner);
    let scratch = OpScratch { local: local_len(rows * terms, 0), partials: slots * (1 + inner), words };
    let node =
        BoundExperts { gate_rule, weighed, used, x, weights, matrices, biases, y, kinds: [kind, inner_kind] };
    Ok(BoundOp { scratch, ..BoundOp::new(move |step| node.run(step)) })
}

/// Whether a value is the choice of at most this number of experts, or some rows of one.
fn chooses_at_most(graph: &Graph, mut weights: ValueId, max: usize) -> bool {
    loop {
        let value = graph.value(weights);
        if value.role == Role::Input {
            // A step with a row that chooses more is refused.
            return InputSpec::most_chosen(&value.name).is_some_and(|most| most <= max);
        }
        let node = graph.nodes.iter().find(|node| node.output == weights);
        match node.map(|node| (node.op, &node.inputs)) {
            Some((Op::Route { used, .. }, _)) => return used as usize <= max,
            // All of them keep zeros.
            Some((Op::Gather | Op::Reshape | Op::ScaleColumns, inputs)) => weights = inputs[0],
            _ => return false,
        }
    }
}

impl BoundExperts {
    fn run(&self, step: &mut CpuStep<'_>) {
        let CpuStep { executor, values, weights: loaded, .. } = step;
        let ExpertMatrices { gate, up, down } = self.matrices;
        let [up, down] = [up, down].map(|weight| loaded.experts(weight));
        let gate = gate.map(|gate| loaded.experts(gate));
        let biases = self.biases.map(|bias| bias.map(|bias| loaded.vector(bias)));
        let width = values.stride(self.x);
        let (y, [x, chosen]) = values.split(self.y, [self.x, self.weights]);
        let Executor { table, pool, locals, partials, words, variant } = executor;
        let (table, pool, experts, inner) = (*table, *pool, up.len(), up[0].rows);
        let rows = chosen.len() / experts;
        let slots = rows * self.used;
        let (lists, words) = words.split_at_mut(list_len(slots, experts));
        let (slot_weights, inner_rows) = partials.split_at_mut(slots);
        let lists = list(chosen, experts, lists, slot_weights);
        let inner_rows = &mut inner_rows[..lists.rows.len() * inner];
        let [kind, inner_kind] = self.kinds;
        let of_x = packed_len(kind, if rows == 1 { 1 } else { slots }, width);
        let (of_x, of_inner) = words.split_at_mut(of_x);
        let few = rows * kind.terms().max(inner_kind.terms()) <= NARROW;
        let way = match rows {
            1 => "gemv",
            _ if few => "small",
            _ => "gemm",
        };
        *variant = [way, table.name, kind.name(), up[0].layout.name()];

        if rows == 1 {
            pack_rows(table, kind, 1, |_| x, &mut of_x[..kind.size(1, width)]);
        } else {
            let row = |slot: usize| &x[lists.rows[slot] as usize * width..][..width];
            lists.pack((table, pool, locals), kind, width, of_x, row);
        }
        let all = lists.experts.len() * bands(inner) * if gate.is_some() { 2 } else { 1 };
        let step = bands_of_piece(all, if gate.is_some() { 2 } else { 1 }, true, pool.threads()) * BAND;
        let grid = Grid { width: inner, row_step: 1, column_step: step };
        pool.tiles_of_groups(locals, lists.ends, [(inner_rows, grid)], |_, tile, scratch| {
            let group = lists.group(tile.rows().start);
            let (rows, expert) = (tile.rows().len(), lists.experts[group] as usize);
            let words = if chosen.len() == experts { &*of_x } else { lists.packed(kind, width, of_x, group) };
            let x = PackedActivations { kind, rows, width, words };
            let up = operands(up, biases[1], expert, x);
            let (first, gated, epilogue) = match gate {
                None => (up, None, Epilogue::Activate(self.gate_rule.act)),
                Some(gate) => {
                    let weights = match self.weighed {
                        Weighed::Results => None,
                        Weighed::Inputs => Some(&lists.weights[tile.rows()]),
                    };
                    let epilogue = Epilogue::Gate { rule: self.gate_rule, weights };
                    (operands(gate, biases[0], expert, x), Some(up), epilogue)
                }
            };
            let bands = bands_of_columns(tile.columns());
            MatmulPiece { table, first, gated, epilogue, bands, base: 0, tile }.compute(scratch);
        });

        let row = |slot: usize| &inner_rows[slot * inner..][..inner];
        lists.pack((table, pool, locals), inner_kind, inner, of_inner, row);
        let x = PackedActivations { kind: inner_kind, rows: 0, width: inner, words: of_inner };
        add_up((table, pool, locals), &lists, x, (down, biases[2], self.weighed), y);
    }
}

/// Sets the rows of `y` to the sums of `down · x`, where `x` has the packed inner rows of all slots; weights of
/// results multiply the terms.
fn add_up(
    (table, pool, locals): (&Table, &ThreadPool, &mut [Aligned<f32>]),
    lists: &Lists<'_>,
    x: PackedActivations<'_>,
    (down, bias, weighed): (&[PackedMatrix], Option<&[f32]>, Weighed),
    y: &mut [f32],
) {
    let outputs = down[0].rows;
    // An expert's bands of a piece lie one after another: the more, the less often prefetchers begin anew.
    let step = (bands(outputs) / (2 * pool.threads())).clamp(1, DOWN_PIECE_BANDS) * BAND;
    let grid = Grid { width: outputs, row_step: usize::MAX, column_step: step };
    pool.tiles(locals, y, grid, |tile, scratch| {
        tile.rows().for_each(|row| tile.row(row).fill(0.0));
        for (group, &expert) in lists.experts.iter().enumerate() {
            let slots = lists.slots(group);
            let words = lists.packed(x.kind, x.width, x.words, group);
            let x = PackedActivations { rows: slots.len(), words, ..x };
            let first = operands(down, bias, expert as usize, x);
            let rows = &lists.rows[slots.clone()];
            let weights = match weighed {
                Weighed::Results => Some(&lists.weights[slots]),
                Weighed::Inputs => None,
            };
            let epilogue = Epilogue::AddRows { rows, weights };
            let all = bands_of_columns(tile.columns());
            for start in all.clone().step_by(NARROW_PIECE_BANDS) {
                let bands = start..all.end.min(start + NARROW_PIECE_BANDS);
                let tile = &mut *tile;
                MatmulPiece { table, first, gated: None, epilogue, bands, base: 0, tile }.compute(scratch);
            }
        }
    });
}

/// The operands of a product with an expert's matrix.
fn operands<'a>(
    matrices: &'a [PackedMatrix],
    bias: Option<&'a [f32]>,
    expert: usize,
    x: PackedActivations<'a>,
) -> MatmulOperands<'a> {
    let weight = &matrices[expert];
    let bias = bias.map(|bias| &bias[expert * weight.rows..][..weight.rows]);
    MatmulOperands { x, weight, bias, adapters: None }
}

/// Lists the slots of a step: for each expert that some row chose, the rows that chose it.
fn list<'a>(chosen: &[f32], experts: usize, words: &'a mut [u32], weights: &'a mut [f32]) -> Lists<'a> {
    let (next, words) = words.split_at_mut(experts);
    let (names, words) = words.split_at_mut(experts);
    let (ends, words) = words.split_at_mut(experts);
    let (units, rows) = words.split_at_mut(experts);
    next.fill(0);
    for row in chosen.chunks_exact(experts) {
        row.iter().zip(&mut *next).for_each(|(weight, count)| *count += u32::from(*weight != 0.0));
    }
    let (mut groups, mut end) = (0, 0);
    for (expert, next) in next.iter_mut().enumerate() {
        let count = std::mem::replace(next, end);
        if count > 0 {
            end += count;
            (names[groups], ends[groups], units[groups]) = (expert as u32, end, end + end / 3);
            groups += 1;
        }
    }
    for (index, row) in chosen.chunks_exact(experts).enumerate() {
        for (weight, next) in row.iter().zip(&mut *next).filter(|(weight, _)| **weight != 0.0) {
            (rows[*next as usize], weights[*next as usize]) = (index as u32, *weight);
            *next += 1;
        }
    }
    let slots = end as usize;
    Lists {
        units: &units[..groups],
        rows: &rows[..slots],
        weights: &weights[..slots],
        experts: &names[..groups],
        ends: &ends[..groups],
    }
}

impl Lists<'_> {
    /// The group of a slot.
    fn group(&self, slot: usize) -> usize {
        self.ends.partition_point(|end| *end as usize <= slot)
    }

    /// The slots of a group.
    fn slots(&self, group: usize) -> std::ops::Range<usize> {
        let first = if group == 0 { 0 } else { self.ends[group - 1] };
        first as usize..self.ends[group] as usize
    }

    /// Where the packed rows of a group begin.
    fn start(kind: ActivationKind, width: usize, slot: usize) -> usize {
        kind.size(1, width) * (slot + slot / 3)
    }

    /// The packed rows of a group.
    fn packed<'w>(&self, kind: ActivationKind, width: usize, words: &'w [u32], group: usize) -> &'w [u32] {
        let slots = self.slots(group);
        &words[Lists::start(kind, width, slots.start)..][..kind.size(slots.len(), width)]
    }

    /// Packs the rows of all slots, group by group: `row` returns that of a slot.
    fn pack<'r>(
        &self,
        (table, pool, locals): (&Table, &ThreadPool, &mut [Aligned<f32>]),
        kind: ActivationKind,
        width: usize,
        words: &mut [u32],
        row: impl Fn(usize) -> &'r [f32] + Sync,
    ) {
        // Slots have a third of a slot each for the padding of their group.
        let unit = kind.size(1, width);
        let all = unit * (self.rows.len() + self.rows.len() / 3);
        let units = &mut words[..all];
        let grid = Grid { width: unit, row_step: 1, column_step: unit };
        pool.tiles_of_groups(locals, self.units, [(units, grid)], |_, tile, _| {
            let group = self.units.partition_point(|end| *end as usize <= tile.rows().start);
            let slots = self.slots(group);
            let words = &mut tile.whole()[..kind.size(slots.len(), width)];
            pack_rows(table, kind, slots.len(), |index| row(slots.start + index), words);
        });
    }
}
