//! A compiled graph: its groups, the command lists of its programs, and the
//! buffer objects that each of them is bound to.

use std::collections::BTreeMap;
use std::sync::Arc;

use girih_graph::{Graph, Op, ValueId};
use girih_tensor::{Error, Result};

use super::device::ListId;
use super::keys::KeptId;
use super::runtime::Runtime;
use super::traffic::{Place, Traffic};
use super::{Device, Weights};
use crate::form::groups::{Groups, Step, Tensor, TensorKind};
use crate::form::schedule::Schedule;
use crate::memory::{Binding, ObjectId};
use crate::pass::partition::root;

/// One compiled graph, bound to memory.
#[derive(Debug)]
pub struct Program {
    pub(super) graph: Graph,
    pub(super) groups: Groups,
    /// The command list of each program of the groups.
    pub(super) lists: Vec<ListId>,
    /// What passes between host and array.
    pub(super) traffic: Traffic,
    /// The object of each slot.
    slots: Vec<ObjectId>,
    /// The object of each weight that has one.
    weights: Vec<Option<ObjectId>>,
    /// The keys and values that stay, of each tensor that is such.
    pub(super) kept: Vec<Option<KeptId>>,
    /// The tensor of each value that has one.
    pub(super) tensors: Vec<Option<u32>>,
    /// The value that each tensor holds, but for those that hold another thing.
    pub(super) values: Vec<Option<ValueId>>,
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
        schedules: &[Arc<Schedule>],
        weights: &Weights,
        device: &mut Device,
    ) -> Result<Program> {
        let tensors = tensors_of(graph, &groups);
        let made = made(graph, &groups, &tensors);
        let object = |tensor: &Tensor| {
            if tensor.kind != TensorKind::Static {
                return Ok(None);
            }
            let resident =
                weights.resident.get(&tensor.name).filter(|resident| resident.padded == tensor.padded);
            let resident = resident.ok_or_else(|| {
                Error::new(format!("the weight '{}' was not loaded in the form of this program", tensor.name))
            })?;
            Ok(resident.object())
        };
        let weights = groups.tensors.iter().map(object).collect::<Result<_>>()?;
        let traffic = Traffic::new(graph, &groups, &tensors, device.runtime());
        let slots = device.arena(&traffic.slots)?;
        let mut kept = vec![None; groups.tensors.len()];
        for place in traffic.parts.iter().flat_map(|part| &part.places) {
            if let Place::Kept(tensor) = *place {
                let Tensor { name, extent: [heads, _], padded: [rows, _], .. } =
                    &groups.tensors[tensor as usize];
                let bytes = groups.tensors[tensor as usize].bytes();
                kept[tensor as usize] = Some(device.keep(name, bytes, (rows / heads) as usize)?);
            }
        }
        let lists = schedules.iter().map(|schedule| device.list(schedule)).collect::<Result<_>>()?;
        let values = values_of(graph, &groups, &tensors);
        Ok(Program {
            graph: graph.clone(),
            groups,
            lists,
            traffic,
            slots,
            weights,
            kept,
            tensors,
            values,
            made,
        })
    }

    /// Bytes of buffer objects that a graph's values need beside its weights.
    pub fn plan(graph: &Graph, groups: &Groups, runtime: Runtime) -> u64 {
        Traffic::new(graph, groups, &tensors_of(graph, groups), runtime).bytes(groups)
    }

    /// The object at a place.
    pub(super) fn object(&self, device: &Device, place: Place) -> Result<ObjectId> {
        let weight = |tensor: u32| {
            let lost =
                || Error::new("a weight has no object and comes with no call; this is a fault of girih");
            self.weights[tensor as usize].ok_or_else(lost)
        };
        match place {
            Place::Slot(slot) => Ok(self.slots[slot as usize]),
            Place::Weight(tensor) => weight(tensor),
            Place::Kept(tensor) => Ok(device.kept(self.kept(tensor)?).object),
        }
    }

    /// The keys and values that stay, which a tensor is.
    pub(super) fn kept(&self, tensor: u32) -> Result<KeptId> {
        let lost = || Error::new("keys and values stay nowhere; this is a fault of girih");
        self.kept[tensor as usize].ok_or_else(lost)
    }

    /// The bindings of an array step whose arguments lie at `places`; `wanted`
    /// chooses a row where it runs once for each.
    pub(super) fn bindings(
        &self,
        device: &Device,
        tensors: &[u32],
        places: &[Place],
        output_rows: Option<u64>,
    ) -> Result<Vec<Binding>> {
        let binding = |(&number, &place): (&u32, &Place)| {
            let tensor = &self.groups.tensors[number as usize];
            let row = if tensor.kind == TensorKind::Static { None } else { output_rows };
            let offset = row.map_or(0, |row| row * tensor.row_bytes());
            Ok(Binding { object: self.object(device, place)?, offset })
        };
        tensors.iter().zip(places).map(binding).collect()
    }
}

/// The value that each tensor holds.
pub(super) fn values_of(graph: &Graph, groups: &Groups, tensors: &[Option<u32>]) -> Vec<Option<ValueId>> {
    let mut values = vec![None; groups.tensors.len()];
    for (index, tensor) in tensors.iter().enumerate() {
        if let Some(tensor) = tensor {
            values[*tensor as usize].get_or_insert(root(graph, ValueId(index as u32)));
        }
    }
    values
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
