//! A compiled graph: its groups, the command lists of its programs, and the
//! buffer objects that they are bound to.

use std::sync::Arc;

use girih_graph::{Graph, Op, ValueId};
use girih_tensor::{Error, Result};

use super::device::{Device, ListId};
use super::keys::ResidentKeysId;
use super::ring::KeyRing;
use super::runtime::Runtime;
use super::tensors::{tensors_of, values_of};
use super::traffic::{TensorLocation, Traffic};
use super::weights::NpuWeights;
use crate::form::groups::{ArrayTensor, Groups, StepAction, TensorKind};
use crate::form::schedule::Schedule;
use crate::memory::{Binding, ObjectId};
use crate::pass::partition::root;

/// One compiled graph, bound to memory.
#[derive(Debug)]
pub struct NpuProgram {
    pub(super) graph: Graph,
    pub(super) groups: Groups,
    /// The command list of each program of the groups.
    pub(super) lists: Vec<ListId>,
    /// The transfers between host and array.
    pub(super) traffic: Traffic,
    /// The object of each slot.
    slots: Vec<ObjectId>,
    /// The object of each weight, if it has one.
    weights: Vec<Option<ObjectId>>,
    /// The resident keys and values of each tensor of that kind.
    pub(super) resident_keys: Vec<Option<ResidentKeysId>>,
    /// The ring of each tensor of chunks.
    pub(super) rings: Vec<Option<KeyRing>>,
    /// The tensor of each value, if it has one.
    pub(super) tensors: Vec<Option<u32>>,
    /// The value of each tensor; none for tensors that are not values of the
    /// graph.
    pub(super) values: Vec<Option<ValueId>>,
    /// The values that each step computes.
    pub(super) made: Vec<Vec<ValueId>>,
}

impl NpuProgram {
    /// Binds a compiled graph to memory. Values share objects with others that
    /// do not live at the same time.
    ///
    /// # Errors
    /// When the weights belong to another model, or when memory is short.
    pub fn new(
        graph: &Graph,
        groups: Groups,
        schedules: &[Arc<Schedule>],
        weights: &NpuWeights,
        device: &mut Device,
    ) -> Result<NpuProgram> {
        let tensors = tensors_of(graph, &groups);
        let made = made(graph, &groups, &tensors);
        let object = |tensor: &ArrayTensor| {
            if tensor.kind != TensorKind::Static {
                return Ok(None);
            }
            let resident = weights.resident.get(&tensor.name);
            let resident = resident
                .filter(|resident| (resident.dtype, resident.padded) == (tensor.dtype, tensor.padded));
            let resident = resident.ok_or_else(|| {
                Error::new(format!("the weight '{}' was not loaded in the form of this program", tensor.name))
            })?;
            Ok(resident.object())
        };
        let weights = groups.tensors.iter().map(object).collect::<Result<_>>()?;
        let traffic = Traffic::new(graph, &groups, &tensors, device.runtime());
        let slots = device.arena(&traffic.slots)?;
        let rings = KeyRing::all(graph, &groups);
        let mut resident_keys = vec![None; groups.tensors.len()];
        for location in traffic.parts.iter().flat_map(|part| &part.locations) {
            if let TensorLocation::Resident(tensor) = *location {
                let chunks = &groups.tensors[tensor as usize];
                let slots = rings[tensor as usize].map_or(0, KeyRing::slots);
                let (name, bytes, sets) = (&chunks.name, chunks.block_bytes(), graph.key.sequences as usize);
                resident_keys[tensor as usize] = Some(device.reserve_keys(name, bytes, slots, sets)?);
            }
        }
        let lists = schedules.iter().map(|schedule| device.list(schedule)).collect::<Result<_>>()?;
        let values = values_of(graph, &groups, &tensors);
        Ok(NpuProgram {
            graph: graph.clone(),
            groups,
            lists,
            traffic,
            slots,
            weights,
            resident_keys,
            rings,
            tensors,
            values,
            made,
        })
    }

    /// The bytes of buffer objects that a graph needs besides its weights.
    pub fn plan(graph: &Graph, groups: &Groups, runtime: Runtime) -> u64 {
        Traffic::new(graph, groups, &tensors_of(graph, groups), runtime).bytes(graph, groups)
    }

    /// The object at a location; among resident keys and values, that of a set of slots.
    pub(super) fn object(&self, device: &Device, location: TensorLocation, set: usize) -> Result<ObjectId> {
        let weight = |tensor: u32| {
            let lost = || Error::new("a weight has no buffer object; this is a bug in girih");
            self.weights[tensor as usize].ok_or_else(lost)
        };
        match location {
            TensorLocation::Slot(slot) | TensorLocation::Row(slot, _) => Ok(self.slots[slot as usize]),
            TensorLocation::Weight(tensor) => weight(tensor),
            TensorLocation::Resident(tensor) => Ok(device.slot_sets(self.resident_keys(tensor)?)[set].object),
        }
    }

    /// The resident keys and values of a tensor.
    pub(super) fn resident_keys(&self, tensor: u32) -> Result<ResidentKeysId> {
        let lost = || Error::new("resident keys and values have no buffer object; this is a bug in girih");
        self.resident_keys[tensor as usize].ok_or_else(lost)
    }

    /// The ring of a tensor of chunks.
    pub(super) fn ring(&self, chunks: u32) -> Result<KeyRing> {
        let lost = || Error::new("a tensor has no keys and values; this is a bug in girih");
        self.rings[chunks as usize].ok_or_else(lost)
    }

    /// The bindings of an array step whose arguments are at `locations`, each `offset` bytes after
    /// the location. Resident keys and values are those of `set`.
    pub(super) fn bindings(
        &self,
        device: &Device,
        (tensors, locations): (&[u32], &[TensorLocation]),
        set: usize,
        offset: &dyn Fn(&ArrayTensor, TensorLocation) -> Result<u64>,
    ) -> Result<Vec<Binding>> {
        let binding = |(&number, &location): (&u32, &TensorLocation)| {
            let offset = location.offset() + offset(&self.groups.tensors[number as usize], location)?;
            Ok(Binding { object: self.object(device, location, set)?, offset })
        };
        tensors.iter().zip(locations).map(binding).collect()
    }
}

/// The tensors that a step writes.
fn writes(graph: &Graph, groups: &Groups, tensors: &[Option<u32>], step: &StepAction) -> Vec<u32> {
    match step {
        StepAction::Host { node } => {
            let output = graph.nodes[*node as usize].output;
            tensors[root(graph, output).0 as usize].into_iter().collect()
        }
        StepAction::Array { program, tensors, .. } => {
            let launches = &groups.programs[*program as usize].launches;
            let last = launches.iter().filter_map(|task| task.arguments.last());
            last.map(|&argument| tensors[argument as usize]).collect()
        }
    }
}

/// The values that each step computes, views of them included.
fn made(graph: &Graph, groups: &Groups, tensors: &[Option<u32>]) -> Vec<Vec<ValueId>> {
    let computed: Vec<ValueId> =
        graph.nodes.iter().filter(|node| node.op != Op::Write).map(|node| node.output).collect();
    let of_step = |step: &StepAction| {
        let written = writes(graph, groups, tensors, step);
        let by_host = match step {
            StepAction::Host { node } => Some(graph.nodes[*node as usize].output),
            StepAction::Array { .. } => None,
        };
        let makes = |value: &&ValueId| {
            let tensor = tensors[value.0 as usize];
            tensor.is_some_and(|tensor| written.contains(&tensor)) || by_host == Some(root(graph, **value))
        };
        computed.iter().filter(makes).copied().collect()
    };
    groups.steps.iter().map(of_step).collect()
}
