//! The transfers between host and array in a step, planned once per program,
//! before any value is known. A run executes them and an estimate counts them,
//! so that both agree.

use girih_graph::backend::{Sequence, step_count};
use girih_graph::{Extent, Graph, Op, Role, ValueId};

use super::ring::KeyRing;
use super::runtime::{KeyUse, Runtime, ValueUse, WeightUse};
use super::scratch::{ScratchLayout, object_bytes, touches};
use super::tensors::laid_from;
use crate::form::groups::{ArrayTensor, Groups, StepAction, TensorKind};
use crate::form::schedule::ArgumentRole;

/// The location of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorLocation {
    /// In a scratch object of the step.
    Slot(u32),
    /// In the scratch object of the rows that programs append, at a byte offset.
    Row(u32, u64),
    /// In the object of a weight.
    Weight(u32),
    /// Among the resident keys and values.
    Resident(u32),
}

impl TensorLocation {
    /// The byte offset in its object.
    pub fn offset(self) -> u64 {
        match self {
            TensorLocation::Row(_, offset) => offset,
            TensorLocation::Slot(_) | TensorLocation::Weight(_) | TensorLocation::Resident(_) => 0,
        }
    }
}

/// A transfer of a tensor to or from a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorTransfer {
    pub tensor: u32,
    pub location: TensorLocation,
}

/// All transfers of a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    /// Bytes of each slot.
    pub slots: Vec<u64>,
    /// To the array, before the first part.
    pub begin: Vec<TensorTransfer>,
    /// Of each part of the step.
    pub parts: Vec<PartTransfers>,
    /// From the array, after the last part.
    pub end: Option<TensorTransfer>,
}

/// The transfers of one part of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PartTransfers {
    /// From the array, first.
    pub down: Vec<TensorTransfer>,
    /// To the array, before it runs.
    pub up: Vec<TensorTransfer>,
    /// To the array, after the host has computed it.
    pub made: Option<TensorTransfer>,
    /// The location of each argument of a program.
    pub locations: Vec<TensorLocation>,
    /// What the program follows.
    pub follows: Follows,
}

/// What a program follows in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Follows {
    /// The host, or nothing.
    #[default]
    Host,
    /// Another program, directly.
    Program,
    /// Another program, directly, and the launches of both stay configured.
    Resident,
}

impl Traffic {
    /// Plans the transfers for these choices of the runtime.
    pub fn new(graph: &Graph, groups: &Groups, tensors: &[Option<u32>], runtime: Runtime) -> Traffic {
        let mut planner = TrafficPlanner::new(graph, groups, tensors, runtime);
        let begin = planner.begin();
        let mut parts: Vec<PartTransfers> = Vec::new();
        for (at, step) in groups.steps.iter().enumerate() {
            parts.push(match step {
                StepAction::Host { node } => planner.host(*node as usize),
                StepAction::Array { program, tensors, .. } => {
                    let transfers = planner.array(at, *program, tensors);
                    let is_direct = transfers.down.is_empty() && transfers.up.is_empty();
                    let before = at.checked_sub(1).map(|before| &groups.steps[before]).filter(|_| is_direct);
                    let is_resident = |program: u32| groups.programs[program as usize].is_resident();
                    let follows = match before {
                        Some(StepAction::Array { program: before, .. })
                            if is_resident(*before) && is_resident(*program) =>
                        {
                            Follows::Resident
                        }
                        Some(StepAction::Array { .. }) => Follows::Program,
                        Some(StepAction::Host { .. }) | None => Follows::Host,
                    };
                    PartTransfers { follows, ..transfers }
                }
            });
        }
        let end = graph.output().and_then(|output| planner.fetch(output));
        Traffic { slots: planner.slots, begin, parts, end }
    }

    /// The bytes of all slots and of the resident keys and values.
    pub fn bytes(&self, graph: &Graph, groups: &Groups) -> u64 {
        let rings = KeyRing::all(graph, groups);
        let locations = self.parts.iter().flat_map(|part| &part.locations);
        let kept = locations.filter_map(|location| match location {
            TensorLocation::Resident(tensor) => {
                let slots = rings[*tensor as usize].map_or(0, KeyRing::slots) as u64;
                let set = groups.tensors[*tensor as usize].block_bytes() * slots;
                Some(set.saturating_mul(graph.key.sequences.into()))
            }
            _ => None,
        });
        self.slots.iter().copied().chain(kept).fold(0, u64::saturating_add)
    }
}

/// The number of elements of a value that are used in a step.
pub(super) fn elements(graph: &Graph, value: ValueId, sequences: &[Sequence<'_>]) -> usize {
    let value = graph.value(value);
    let outermost = match value.outermost {
        extent @ (Extent::Rows | Extent::OutputRows | Extent::Sequences) => step_count(sequences, extent),
        Extent::Fixed | Extent::Context => value.shape.extents()[0],
    };
    outermost * value.shape.stride()
}

/// Returns the tensor of the place where a program appends to these chunks, if one does.
pub(super) fn appended_to(groups: &Groups, chunks: u32) -> Option<u32> {
    let ArrayTensor { name, kind, .. } = &groups.tensors[chunks as usize];
    let is_place = |tensor: &ArrayTensor| tensor.kind == TensorKind::Appended && tensor.name == *name;
    let place = groups.tensors.iter().position(is_place).filter(|_| *kind == TensorKind::Chunks);
    place.map(|place| place as u32)
}

/// Whether the host copies the tensor from its own memory; otherwise it writes
/// the tensor directly to where the array reads it.
pub(super) fn copies(tensor: &ArrayTensor, runtime: Runtime) -> bool {
    match tensor.kind {
        TensorKind::Static => true,
        TensorKind::Chunks if runtime.keys == KeyUse::Kept => false,
        _ => runtime.values == ValueUse::Brokered,
    }
}

/// Plans the transfers by tracking the location of each tensor.
struct TrafficPlanner<'a> {
    graph: &'a Graph,
    groups: &'a Groups,
    /// The tensor of each value.
    tensors: &'a [Option<u32>],
    runtime: Runtime,
    scratch: ScratchLayout,
    /// The slot of each argument of each program, if it has its own.
    own: Vec<Vec<Option<u32>>>,
    slots: Vec<u64>,
    /// Whether the host has each tensor.
    on_host: Vec<bool>,
    /// The location of each tensor on the array.
    on_array: Vec<Option<TensorLocation>>,
    /// The tensor in each slot.
    content: Vec<Option<u32>>,
    /// The last part of the step that uses each tensor.
    last: Vec<usize>,
}

impl<'a> TrafficPlanner<'a> {
    fn new(
        graph: &'a Graph,
        groups: &'a Groups,
        tensors: &'a [Option<u32>],
        runtime: Runtime,
    ) -> TrafficPlanner<'a> {
        let scratch = match runtime.values {
            ValueUse::Aliased => ScratchLayout::of(graph, groups, tensors, runtime.keys),
            ValueUse::Brokered => ScratchLayout::none(groups),
        };
        let count = groups.tensors.len();
        let mut last = vec![0; count];
        for (at, step) in groups.steps.iter().enumerate() {
            touches(graph, groups, tensors, step).into_iter().for_each(|tensor| last[tensor as usize] = at);
        }
        if let Some(output) = graph.output().and_then(|output| tensors[output.0 as usize]) {
            last[output as usize] = groups.steps.len();
        }
        let own = groups.programs.iter().map(|program| vec![None; program.arguments.len()]).collect();
        let mut planner = TrafficPlanner {
            graph,
            groups,
            tensors,
            runtime,
            slots: scratch.sizes.clone(),
            scratch,
            own,
            on_host: vec![false; count],
            on_array: vec![None; count],
            content: Vec::new(),
            last,
        };
        planner.give_own();
        planner.content = vec![None; planner.slots.len()];
        planner
    }

    /// Adds a slot for each argument that needs its own.
    fn give_own(&mut self) {
        let bytes = object_bytes(self.graph, self.groups);
        for step in &self.groups.steps {
            let StepAction::Array { program, tensors, .. } = step else { continue };
            for (argument, &number) in tensors.iter().enumerate() {
                let tensor = &self.groups.tensors[number as usize];
                let needs = match tensor.kind {
                    TensorKind::Static => self.runtime.weights == WeightUse::EachCall,
                    TensorKind::Chunks if self.runtime.keys == KeyUse::Kept => false,
                    _ => self.runtime.values == ValueUse::Brokered,
                };
                if !needs {
                    continue;
                }
                let slots = &mut self.slots;
                let slot = *self.own[*program as usize][argument].get_or_insert_with(|| {
                    slots.push(0);
                    slots.len() as u32 - 1
                });
                let size = &mut self.slots[slot as usize];
                *size = bytes[number as usize].max(*size);
            }
        }
    }

    /// The location of a program's argument.
    fn location(&self, program: u32, argument: usize, tensor: u32) -> TensorLocation {
        match self.own[program as usize][argument] {
            Some(slot) => TensorLocation::Slot(slot),
            None => self.shared(tensor),
        }
    }

    /// The location of a tensor that is the same for all programs.
    fn shared(&self, tensor: u32) -> TensorLocation {
        match self.scratch.object_of[tensor as usize] {
            Some(slot) => match self.scratch.offset_of[tensor as usize] {
                Some(offset) => TensorLocation::Row(slot as u32, offset),
                None => TensorLocation::Slot(slot as u32),
            },
            None if self.groups.tensors[tensor as usize].kind == TensorKind::Chunks => {
                TensorLocation::Resident(tensor)
            }
            None => TensorLocation::Weight(tensor),
        }
    }

    /// Transfers the step's inputs, rotation tables and positions to their shared
    /// location, if they have one.
    fn begin(&mut self) -> Vec<TensorTransfer> {
        let inputs: Vec<u32> =
            self.graph.inputs().filter_map(|(input, _)| self.tensors[input.0 as usize]).collect();
        let mut moves = Vec::new();
        for (number, tensor) in self.groups.tensors.iter().enumerate() {
            let each_step = matches!(tensor.kind, TensorKind::CosSin | TensorKind::Start);
            if each_step || inputs.contains(&(number as u32)) {
                self.on_host[number] = true;
                moves.extend(self.made(number as u32));
            }
        }
        // What a program appends to is complete before the step.
        let chunks =
            (0..self.groups.tensors.len() as u32).filter(|tensor| self.is_kept_and_appended(*tensor));
        moves.extend(chunks.map(|tensor| TensorTransfer { tensor, location: self.shared(tensor) }));
        moves
    }

    /// Whether chunks stay on the array, and a program appends to them.
    fn is_kept_and_appended(&self, tensor: u32) -> bool {
        self.runtime.keys == KeyUse::Kept && appended_to(self.groups, tensor).is_some()
    }

    /// The location of an argument: where a program appends, that of the chunks.
    fn argument_location(&self, program: u32, index: usize, tensors: &[u32]) -> TensorLocation {
        let is_chunks = |tensor: &u32| appended_to(self.groups, *tensor) == Some(tensors[index]);
        let index = tensors.iter().position(is_chunks).unwrap_or(index);
        self.location(program, index, tensors[index])
    }

    /// Transfers what the host has computed to the location where its readers
    /// expect it, if all programs share one.
    fn made(&mut self, tensor: u32) -> Option<TensorTransfer> {
        self.on_host[tensor as usize] = true;
        if self.runtime.values == ValueUse::Brokered {
            return None;
        }
        let location = self.shared(tensor);
        self.on_array[tensor as usize] = Some(location);
        Some(TensorTransfer { tensor, location })
    }

    /// Transfers a value to the host, if it is not there.
    fn fetch(&mut self, value: ValueId) -> Option<TensorTransfer> {
        let tensor = self.tensors[value.0 as usize]?;
        self.fetch_tensor(tensor)
    }

    fn fetch_tensor(&mut self, tensor: u32) -> Option<TensorTransfer> {
        let location = self.on_array[tensor as usize]?;
        let known = std::mem::replace(&mut self.on_host[tensor as usize], true);
        (!known).then_some(TensorTransfer { tensor, location })
    }

    fn host(&mut self, node: usize) -> PartTransfers {
        let node = &self.graph.nodes[node];
        let inputs = node
            .inputs
            .iter()
            .filter(|input| matches!(self.graph.value(**input).role, Role::Scratch | Role::Input));
        let inputs: Vec<ValueId> = inputs.copied().collect();
        let down = inputs.into_iter().filter_map(|input| self.fetch(input)).collect();
        let output = self.tensors[node.output.0 as usize].filter(|_| node.op != Op::Write);
        PartTransfers { down, made: output.and_then(|tensor| self.made(tensor)), ..PartTransfers::default() }
    }

    fn array(&mut self, at: usize, program: u32, tensors: &[u32]) -> PartTransfers {
        let mut transfers = PartTransfers::default();
        let arguments = &self.groups.programs[program as usize].arguments;
        for (index, (argument, &tensor)) in arguments.iter().zip(tensors).enumerate() {
            let location = self.argument_location(program, index, tensors);
            let held = self.held(location);
            transfers.locations.push(location);
            let goes_up = match (self.groups.tensors[tensor as usize].kind, argument.role) {
                // The state has changed since the last step.
                (TensorKind::Chunks, _) => !self.is_kept_and_appended(tensor),
                (TensorKind::RowChunks, _) => true,
                (TensorKind::Static, _) => held.is_some_and(|held| held != Some(tensor)),
                (_, ArgumentRole::Input) => {
                    self.runtime.values == ValueUse::Brokered && held != Some(Some(tensor))
                }
                _ => {
                    transfers.down.extend(self.rescue(at, location, tensor));
                    self.on_array[tensor as usize] = Some(location);
                    self.on_host[tensor as usize] = false;
                    false
                }
            };
            if goes_up {
                let laid = laid_from(self.graph, &self.groups.tensors[tensor as usize]);
                transfers.down.extend(laid.into_iter().filter_map(|value| self.fetch(value)));
                transfers.down.extend(self.fetch_tensor(tensor));
                transfers.up.push(TensorTransfer { tensor, location });
            }
            if let TensorLocation::Slot(slot) = location {
                self.content[slot as usize] = Some(tensor);
            }
        }
        transfers
    }

    /// The tensor in a slot; `None` if the location is not a slot.
    fn held(&self, location: TensorLocation) -> Option<Option<u32>> {
        match location {
            TensorLocation::Slot(slot) => Some(self.content[slot as usize]),
            TensorLocation::Row(..) | TensorLocation::Weight(_) | TensorLocation::Resident(_) => None,
        }
    }

    /// Saves a tensor that a program is about to overwrite, if it is still
    /// needed and the host does not have it.
    fn rescue(&mut self, at: usize, location: TensorLocation, tensor: u32) -> Option<TensorTransfer> {
        let old = self.held(location)??;
        let lost = old != tensor
            && self.runtime.values == ValueUse::Brokered
            && self.last[old as usize] > at
            && self.on_array[old as usize] == Some(location);
        if lost { self.fetch_tensor(old) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tensors::tensors_of;

    fn groups(text: &str) -> Groups {
        text.parse().unwrap()
    }

    /// Two runs of one program, `b = f(a)` and `c = f(b)`, on a graph that is
    /// only a chain of norms.
    fn chain(runtime: Runtime) -> Traffic {
        use girih_graph::{Builder, Key, OutputKind};
        use girih_tensor::{DType, Shape};
        let key = Key { rows: 8, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };
        let mut graph = Builder::new(key);
        let a = graph.input("a", &[64], DType::F32);
        let weight = graph.weight("w", Shape::new(&[64]).unwrap(), DType::BF16);
        let b = graph.same("b", Op::Norm { epsilon: 0.0 }, &[a, weight]);
        let c = graph.same("c", Op::Norm { epsilon: 0.0 }, &[b, weight]);
        let graph = graph.finish(c);
        let groups = groups(
            "groups mlir-air\n\
             tensor 0 a scratch 8x64 in 8x64\n\
             tensor 1 w static 1x64 in 1x64\n\
             tensor 2 b scratch 8x64 in 8x64\n\
             tensor 3 c scratch 8x64 in 8x64\n\
             program f\n\
             argument 0 in.0 input 1024\n\
             argument 1 w static 128\n\
             argument 2 b output 1024\n\
             launch norm rms_norm rows=8 n=64 width=64 epsilon=0.0f : 0 1 2\n\
             array 0 : 0 1 2\n\
             array 0 : 2 1 3\n",
        );
        let tensors = tensors_of(&graph, &groups);
        Traffic::new(&graph, &groups, &tensors, runtime)
    }

    #[test]
    fn aliased_values_do_not_leave_the_array() {
        let traffic = chain(Runtime::default());
        assert_eq!(traffic.begin.len(), 1);
        assert!(traffic.parts.iter().all(|part| part.up.is_empty() && part.down.is_empty()));
        assert_eq!(traffic.parts[0].locations[2], traffic.parts[1].locations[0], "one object");
        assert_eq!([traffic.parts[0].follows, traffic.parts[1].follows], [Follows::Host, Follows::Program]);
        assert_eq!(traffic.end.map(|end| end.tensor), Some(3));
    }

    #[test]
    fn brokered_values_go_through_the_host() {
        let traffic = chain(Runtime { values: ValueUse::Brokered, ..Runtime::default() });
        assert!(traffic.begin.is_empty());
        assert_eq!(traffic.parts[0].locations, traffic.parts[1].locations, "objects belong to the program");
        let moved = |moves: &[TensorTransfer]| moves.iter().map(|step| step.tensor).collect::<Vec<_>>();
        assert_eq!(moved(&traffic.parts[0].up), [0]);
        assert_eq!((moved(&traffic.parts[1].down), moved(&traffic.parts[1].up)), (vec![2], vec![2]));
        assert_eq!(traffic.parts[1].follows, Follows::Host);
    }

    #[test]
    fn weights_can_be_sent_with_each_call() {
        let traffic = chain(Runtime { weights: WeightUse::EachCall, ..Runtime::default() });
        let up: Vec<_> = traffic.parts.iter().map(|part| part.up.len()).collect();
        assert_eq!(up, [1, 0], "the second run finds the same weight in its slot");
        assert!(traffic.parts.iter().all(|part| matches!(part.locations[1], TensorLocation::Slot(_))));
    }
}
