//! Objects for values that live within a step; values that do not live at the
//! same time share one.

use std::collections::BTreeMap;

use girih_graph::Graph;

use super::runtime::KeyUse;
use super::tensors::laid_from;
use crate::form::groups::{ArrayTensor, Groups, Kernel, ProgramRuns, StepAction, TensorKind};

/// The assignment of tensors to scratch objects.
pub(super) struct ScratchLayout {
    /// The object of each tensor; none for weights and resident keys and
    /// values.
    pub object_of: Vec<Option<usize>>,
    /// The byte offset of each [appended row](appended_rows) in the object that all of them share, so that one
    /// sync makes them visible to the host; none for others.
    pub offset_of: Vec<Option<u64>>,
    /// Bytes of each object.
    pub sizes: Vec<u64>,
}

impl ScratchLayout {
    /// Creates an assignment without shared objects.
    pub fn none(groups: &Groups) -> ScratchLayout {
        let count = groups.tensors.len();
        ScratchLayout { object_of: vec![None; count], offset_of: vec![None; count], sizes: Vec::new() }
    }

    /// Assigns each tensor an object that is free during its life: the object
    /// last bound to the same argument, so that the command lists of equal
    /// layers need few patches, or else the smallest free object. A tensor
    /// lives from the first step that uses it to the last; the output, the rotation
    /// tables and the positions of attention live throughout.
    pub fn of(graph: &Graph, groups: &Groups, tensors: &[Option<u32>], keys: KeyUse) -> ScratchLayout {
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; groups.tensors.len()];
        for (at, step) in groups.steps.iter().enumerate() {
            for tensor in touches(graph, groups, tensors, step) {
                let life = lives[tensor as usize].get_or_insert((at, at));
                life.1 = at;
            }
        }
        let end = groups.steps.len();
        let output = graph.output().and_then(|output| tensors[output.0 as usize]);
        for (number, tensor) in groups.tensors.iter().enumerate() {
            if matches!(tensor.kind, TensorKind::CosSin | TensorKind::Start) || Some(number as u32) == output
            {
                lives[number] = Some((0, end));
            }
        }
        let mut order: Vec<usize> = (0..lives.len()).filter(|&number| lives[number].is_some()).collect();
        order.retain(|&number| match groups.tensors[number].kind {
            TensorKind::Static | TensorKind::Appended => false,
            TensorKind::Chunks => keys == KeyUse::Gathered,
            TensorKind::Scratch | TensorKind::CosSin | TensorKind::Start | TensorKind::RowChunks => true,
        });
        order.sort_by_key(|&number| lives[number]);
        let bound = first_bound(groups);
        let mut last_bound: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        let mut scratch = ScratchLayout::none(groups);
        let mut busy: Vec<usize> = Vec::new(); // the last step that uses each object
        let rows = appended_rows(groups);
        let needs = object_bytes(graph, groups);
        let mut bytes = 0;
        for &row in &rows {
            (scratch.object_of[row], scratch.offset_of[row]) = (Some(0), Some(bytes));
            bytes += groups.tensors[row].bytes();
        }
        if !rows.is_empty() {
            scratch.sizes.push(bytes);
            busy.push(end);
        }
        order.retain(|number| !rows.contains(number));
        for number in order {
            let Some((from, to)) = lives[number] else { continue };
            let need = needs[number];
            let free = |&index: &usize| busy[index] < from && scratch.sizes[index] >= need;
            let again = bound[number].and_then(|argument| last_bound.get(&argument)).copied().filter(free);
            let smallest = (0..busy.len()).filter(free).min_by_key(|&index| scratch.sizes[index]);
            let index = again.or(smallest).unwrap_or_else(|| {
                scratch.sizes.push(need);
                busy.push(0);
                busy.len() - 1
            });
            busy[index] = to;
            scratch.object_of[number] = Some(index);
            last_bound.extend(bound[number].map(|argument| (argument, index)));
        }
        scratch
    }
}

/// The bytes of an object of each tensor: of its rows, and of those behind them that a run for a sequence may
/// read and write. Keys and values that are not resident lie there for each sequence.
pub(super) fn object_bytes(graph: &Graph, groups: &Groups) -> Vec<u64> {
    let mut bytes: Vec<u64> = groups.tensors.iter().map(ArrayTensor::bytes).collect();
    for step in &groups.steps {
        let StepAction::Array { program, tensors, runs: ProgramRuns::EachSequence { .. }, .. } = step else {
            continue;
        };
        for (argument, &number) in groups.programs[*program as usize].arguments.iter().zip(tensors) {
            let tensor = &groups.tensors[number as usize];
            let all = match tensor.kind {
                TensorKind::Chunks => tensor.bytes().saturating_mul(graph.key.sequences.into()),
                TensorKind::Scratch => tensor.bytes().saturating_add(argument.bytes),
                _ => tensor.bytes(),
            };
            bytes[number as usize] = bytes[number as usize].max(all);
        }
    }
    bytes
}

/// The tensors that programs append to resident keys and values, in order.
fn appended_rows(groups: &Groups) -> Vec<usize> {
    let mut rows = Vec::new();
    for step in &groups.steps {
        let StepAction::Array { program, tensors, .. } = step else { continue };
        for launch in &groups.programs[*program as usize].launches {
            if let (Kernel::Append { .. }, [row, _]) = (launch.kernel, &launch.arguments[..]) {
                rows.push(tensors[*row as usize] as usize);
            }
        }
    }
    rows
}

/// The program and argument that each tensor is bound to first.
fn first_bound(groups: &Groups) -> Vec<Option<(u32, usize)>> {
    let mut bound = vec![None; groups.tensors.len()];
    for step in &groups.steps {
        let StepAction::Array { program, tensors, .. } = step else { continue };
        for (argument, &tensor) in tensors.iter().enumerate() {
            bound[tensor as usize].get_or_insert((*program, argument));
        }
    }
    bound
}

/// The tensors that a step reads or writes, those included that the host reads before a program.
pub(super) fn touches(
    graph: &Graph,
    groups: &Groups,
    tensors: &[Option<u32>],
    step: &StepAction,
) -> Vec<u32> {
    match step {
        StepAction::Array { tensors: bound, .. } => {
            let laid = bound.iter().flat_map(|tensor| laid_from(graph, &groups.tensors[*tensor as usize]));
            bound.iter().copied().chain(laid.filter_map(|value| tensors[value.0 as usize])).collect()
        }
        StepAction::Host { node } => {
            let node = &graph.nodes[*node as usize];
            let values = node.inputs.iter().chain([&node.output]);
            values.filter_map(|value| tensors[value.0 as usize]).collect()
        }
    }
}
