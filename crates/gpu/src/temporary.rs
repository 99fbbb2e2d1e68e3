//! The memory that nodes need beside their values.

use girih_graph::{AppliedOp, Graph, Node, Span, ValueId};
use girih_tensor::DType;

use crate::layout::GROUP;
use crate::matrix::MatrixShape;
use crate::precision::{ActPrecision, ROUNDED_BYTES};
use crate::state::HeldLayout;
use crate::step_table::{group_of, most_chunks};
use crate::weight_role::{WeightRole, use_of};

/// The words of the partial results of attention, unless one row needs more.
const PARTIAL_WORDS: u64 = 1 << 23;

/// The bytes that a node needs beside its values, buffer by buffer, in the order in which it uses them.
pub(crate) fn temporary(graph: &Graph, node: &Node, precision: ActPrecision) -> Vec<u64> {
    let Some(call) = node.op.applied_to(&node.inputs) else {
        return Vec::new();
    };
    let rows = |id: ValueId| graph.value(id).shape.extents()[0] as u64;
    match call {
        AppliedOp::Linear { x, weight, .. } | AppliedOp::LinearHeads { x, weight } => {
            let Some(shape) = matrix_shape(graph, weight) else {
                return Vec::new();
            };
            let groups = rows(x) * (shape.count * shape.groups()) as u64;
            let padded = (shape.padded() != shape.columns).then(|| groups * GROUP as u64 * 4);
            let rounded = precision.rounds(shape.layout).then(|| ROUNDED_BYTES.map(|bytes| groups * bytes));
            padded.into_iter().chain(rounded.into_iter().flatten()).collect()
        }
        AppliedOp::Route { scores, groups, .. } => {
            let numbers = 2 * graph.value(scores).shape.columns() as u64
                + groups.map_or(0, |groups| u64::from(groups.count));
            vec![rows(scores) * numbers * 4]
        }
        AppliedOp::Experts { used, x, up, down, .. } => {
            let (Some(up), Some(down)) = (matrix_shape(graph, up), matrix_shape(graph, down)) else {
                return Vec::new();
            };
            let choices = rows(x) * u64::from(used) * 4;
            let [entering, inner, gated, result] =
                [up.padded(), up.rows, down.padded(), down.rows].map(|width| choices * width as u64);
            vec![choices, entering, inner, inner, gated, result]
        }
        AppliedOp::Attend { span, q, keys, values, .. } => {
            let partial = partial_words(graph, q, graph.value(values).shape.columns(), span) * 4;
            let held = |id: ValueId, is_transposed| {
                let layout = HeldLayout::new(DType::F32, graph.value(id), is_transposed);
                let blocks = u64::from(graph.key.rows) / 64 + u64::from(graph.key.sequences) + 1;
                layout.block_bytes() * blocks
            };
            match group_of(graph, keys) {
                Some(_) => vec![partial],
                None => vec![partial, held(keys, true), held(values, false)],
            }
        }
        AppliedOp::AttendLatent { span, values, q, .. } => {
            vec![partial_words(graph, q, values as usize, span) * 4]
        }
        AppliedOp::SelectKeys { q, .. } => vec![rows(q) * u64::from(graph.key.context) * 4],
        _ => Vec::new(),
    }
}

pub(crate) fn matrix_shape(graph: &Graph, id: ValueId) -> Option<MatrixShape> {
    match use_of(graph, id) {
        Ok(WeightRole::Matrix(shape)) => Some(shape),
        Ok(WeightRole::Vector) | Err(_) => None,
    }
}

/// The extents of a row of a value.
pub(crate) fn inner(graph: &Graph, id: ValueId) -> &[usize] {
    &graph.value(id).shape.extents()[1..]
}

/// The words of partial results: those of all rows, or what a budget allows.
pub(crate) fn partial_words(graph: &Graph, q: ValueId, value_size: usize, span: Span) -> u64 {
    let heads = inner(graph, q)[0] as u64;
    let of_row = heads * most_chunks(graph, span) * (value_size as u64 + 2);
    let rows = graph.value(q).shape.extents()[0] as u64;
    (of_row * rows).min(PARTIAL_WORDS.max(of_row))
}
