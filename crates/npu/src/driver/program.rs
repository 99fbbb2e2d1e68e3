//! A compiled graph: its groups, the schedules of its programs, and the buffer
//! objects of the values that live within a step.

use std::collections::BTreeMap;
use std::sync::Arc;

use girih_graph::{Graph, Op, ValueId};
use girih_tensor::{Error, Result};

use super::{Device, Weights};
use crate::form::groups::{Groups, Step, TensorKind};
use crate::form::schedule::Schedule;
use crate::memory::{Binding, ObjectId};
use crate::pass::partition::root;

/// One compiled graph, bound to memory.
#[derive(Debug)]
pub struct Program {
    pub(super) graph: Graph,
    pub(super) groups: Groups,
    /// The schedule of each program of the groups.
    pub(super) schedules: Vec<Arc<Schedule>>,
    /// Where each tensor lies.
    pub(super) objects: Vec<ObjectId>,
    /// The tensor of each value that has one.
    pub(super) tensors: Vec<Option<u32>>,
    /// The values that each step makes.
    pub(super) made: Vec<Vec<ValueId>>,
}

impl Program {
    /// Binds a compiled graph to memory: weights to theirs, values to objects
    /// that they share with others that do not live at the same time.
    ///
    /// # Errors
    /// When the weights are of another model, or memory is short.
    pub fn new(
        graph: &Graph,
        groups: Groups,
        schedules: Vec<Arc<Schedule>>,
        weights: &Weights,
        device: &mut Device,
    ) -> Result<Program> {
        let tensors = tensors_of(graph, &groups);
        let made = made(graph, &groups, &tensors);
        let mut objects = vec![None; groups.tensors.len()];
        for (slot, tensor) in objects.iter_mut().zip(&groups.tensors) {
            if tensor.kind != TensorKind::Static {
                continue;
            }
            let resident =
                weights.resident.get(&tensor.name).filter(|resident| resident.padded == tensor.padded);
            let resident = resident.ok_or_else(|| {
                Error::new(format!("the weight '{}' was not loaded in the form of this program", tensor.name))
            })?;
            *slot = Some(resident.object);
        }
        let plan = Scratch::of(graph, &groups, &tensors);
        let pool: Vec<ObjectId> =
            plan.sizes.iter().map(|&bytes| device.allocate(bytes)).collect::<Result<_>>()?;
        for (slot, place) in objects.iter_mut().zip(&plan.place) {
            *slot = slot.or(place.map(|index| pool[index]));
        }
        let objects = objects.into_iter().map(|object| {
            object.ok_or_else(|| Error::new("a tensor is used by no step; this is a fault of girih"))
        });
        let objects = objects.collect::<Result<_>>()?;
        Ok(Program { graph: graph.clone(), groups, schedules, objects, tensors, made })
    }

    /// Bytes of buffer objects that a graph's values need beside its weights.
    pub fn plan(graph: &Graph, groups: &Groups) -> u64 {
        Scratch::of(graph, groups, &tensors_of(graph, groups)).sizes.iter().sum()
    }

    /// The bindings of an array step; `wanted` chooses a row where it runs
    /// once for each.
    pub(super) fn bindings(&self, tensors: &[u32], wanted: Option<u64>) -> Vec<Binding> {
        let binding = |&number: &u32| {
            let tensor = &self.groups.tensors[number as usize];
            let row = if tensor.kind == TensorKind::Static { None } else { wanted };
            let offset = row.map_or(0, |row| row * tensor.row_bytes());
            Binding { object: self.objects[number as usize], offset }
        };
        tensors.iter().map(binding).collect()
    }
}

/// The tensor of each value: its own, or that of the value that it shows.
pub(super) fn tensors_of(graph: &Graph, groups: &Groups) -> Vec<Option<u32>> {
    let names: BTreeMap<&str, u32> = groups
        .tensors
        .iter()
        .enumerate()
        .map(|(number, tensor)| (tensor.name.as_str(), number as u32))
        .collect();
    let ids = (0..graph.values.len()).map(|index| root(graph, ValueId(index as u32)));
    let found = |id: ValueId| {
        let number = names.get(graph.value(id).name.as_str()).copied()?;
        (groups.tensors[number as usize].kind != TensorKind::Turns).then_some(number)
    };
    ids.map(found).collect()
}

/// Which tensors a step writes.
fn writes(graph: &Graph, groups: &Groups, tensors: &[Option<u32>], step: &Step) -> Vec<u32> {
    match step {
        Step::Host { node } => {
            let output = graph.nodes[*node as usize].output;
            tensors[root(graph, output).0 as usize].into_iter().collect()
        }
        Step::Array { program, tensors, .. } => {
            let launches = &groups.programs[*program as usize].launches;
            let last = launches.iter().filter_map(|task| task.arguments.last());
            last.map(|&argument| tensors[argument as usize]).collect()
        }
    }
}

/// The values that each step makes, those that only show others included.
fn made(graph: &Graph, groups: &Groups, tensors: &[Option<u32>]) -> Vec<Vec<ValueId>> {
    let computed: Vec<ValueId> =
        graph.nodes.iter().filter(|node| node.op != Op::Write).map(|node| node.output).collect();
    let of_step = |step: &Step| {
        let written = writes(graph, groups, tensors, step);
        let by_host = match step {
            Step::Host { node } => Some(graph.nodes[*node as usize].output),
            Step::Array { .. } => None,
        };
        let makes = |value: &&ValueId| {
            let tensor = tensors[value.0 as usize];
            tensor.is_some_and(|tensor| written.contains(&tensor)) || by_host == Some(root(graph, **value))
        };
        computed.iter().filter(makes).copied().collect()
    };
    groups.steps.iter().map(of_step).collect()
}

/// Objects for values that live within a step.
struct Scratch {
    /// The object of each tensor that is no weight.
    place: Vec<Option<usize>>,
    sizes: Vec<u64>,
}

impl Scratch {
    /// Gives each tensor the smallest object that is free while it lives; it
    /// lives from the first step that touches it to the last, the output and
    /// the turns of rotations always.
    fn of(graph: &Graph, groups: &Groups, tensors: &[Option<u32>]) -> Scratch {
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
            if tensor.kind == TensorKind::Turns || Some(number as u32) == output {
                lives[number] = Some((0, end));
            }
        }
        let mut order: Vec<usize> = (0..lives.len()).filter(|&number| lives[number].is_some()).collect();
        order.retain(|&number| groups.tensors[number].kind != TensorKind::Static);
        order.sort_by_key(|&number| lives[number]);
        let mut scratch = Scratch { place: vec![None; lives.len()], sizes: Vec::new() };
        let mut busy: Vec<usize> = Vec::new(); // until which step each object is taken
        for number in order {
            let Some((from, to)) = lives[number] else { continue };
            let need = groups.tensors[number].bytes();
            let free = (0..busy.len()).filter(|&index| busy[index] < from && scratch.sizes[index] >= need);
            let index = free.min_by_key(|&index| scratch.sizes[index]).unwrap_or_else(|| {
                scratch.sizes.push(need);
                busy.push(0);
                busy.len() - 1
            });
            busy[index] = to;
            scratch.place[number] = Some(index);
        }
        scratch
    }
}

/// The tensors that a step reads or writes.
fn touches(graph: &Graph, tensors: &[Option<u32>], step: &Step) -> Vec<u32> {
    match step {
        Step::Array { tensors, .. } => tensors.clone(),
        Step::Host { node } => {
            let node = &graph.nodes[*node as usize];
            let values = node.inputs.iter().chain([&node.output]);
            values.filter_map(|value| tensors[value.0 as usize]).collect()
        }
    }
}
