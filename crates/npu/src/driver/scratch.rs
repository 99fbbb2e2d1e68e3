//! Objects for values that live within a step: those that do not live at the
//! same time share one.

use std::collections::BTreeMap;

use girih_graph::Graph;

use super::runtime::KeyUse;
use crate::form::groups::{Groups, StepAction, TensorKind};

/// Objects for values that live within a step.
pub(super) struct Scratch {
    /// The object of each tensor that is no weight, and does not stay.
    pub place: Vec<Option<usize>>,
    /// Bytes of each object.
    pub sizes: Vec<u64>,
}

impl Scratch {
    /// No objects: no tensor has one that all programs share.
    pub fn none(groups: &Groups) -> Scratch {
        Scratch { place: vec![None; groups.tensors.len()], sizes: Vec::new() }
    }

    /// Gives each tensor an object that is free while it lives: that which was
    /// last bound where it is bound, so that the command lists of equal layers
    /// have little to patch, else the smallest. It lives from the first step
    /// that touches it to the last, the output and the turns of rotations
    /// always.
    pub fn of(graph: &Graph, groups: &Groups, tensors: &[Option<u32>], keys: KeyUse) -> Scratch {
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; groups.tensors.len()];
        for (at, step) in groups.steps.iter().enumerate() {
            for tensor in touches(graph, tensors, step) {
                let life = lives[tensor as usize].get_or_insert((at, at));
                life.1 = at;
            }
        }
        let end = groups.steps.len();
        let output = graph.output().and_then(|output| tensors[output.0 as usize]);
        for (number, tensor) in groups.tensors.iter().enumerate() {
            if tensor.kind == TensorKind::CosSin || Some(number as u32) == output {
                lives[number] = Some((0, end));
            }
        }
        let mut order: Vec<usize> = (0..lives.len()).filter(|&number| lives[number].is_some()).collect();
        order.retain(|&number| match groups.tensors[number].kind {
            TensorKind::Static => false,
            TensorKind::Chunks => keys == KeyUse::Gathered,
            TensorKind::Scratch | TensorKind::CosSin => true,
        });
        order.sort_by_key(|&number| lives[number]);
        let bound = first_bound(groups);
        let mut usual: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        let mut scratch = Scratch { place: vec![None; lives.len()], sizes: Vec::new() };
        let mut busy: Vec<usize> = Vec::new(); // until which step each object is taken
        for number in order {
            let Some((from, to)) = lives[number] else { continue };
            let need = groups.tensors[number].bytes();
            let free = |&index: &usize| busy[index] < from && scratch.sizes[index] >= need;
            let again = bound[number].and_then(|place| usual.get(&place)).copied().filter(free);
            let smallest = (0..busy.len()).filter(free).min_by_key(|&index| scratch.sizes[index]);
            let index = again.or(smallest).unwrap_or_else(|| {
                scratch.sizes.push(need);
                busy.push(0);
                busy.len() - 1
            });
            busy[index] = to;
            scratch.place[number] = Some(index);
            usual.extend(bound[number].map(|place| (place, index)));
        }
        scratch
    }
}

/// The program and argument to which each tensor is bound first.
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

/// The tensors that a step reads or writes.
pub(super) fn touches(graph: &Graph, tensors: &[Option<u32>], step: &StepAction) -> Vec<u32> {
    match step {
        StepAction::Array { tensors, .. } => tensors.clone(),
        StepAction::Host { node } => {
            let node = &graph.nodes[*node as usize];
            let values = node.inputs.iter().chain([&node.output]);
            values.filter_map(|value| tensors[value.0 as usize]).collect()
        }
    }
}
