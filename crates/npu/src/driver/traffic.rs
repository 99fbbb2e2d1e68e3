//! What passes between host and array in a step: decided once for a program,
//! before any value is known. Running a step carries it out, and estimating
//! one counts it, so that both say the same.

use girih_graph::{Extent, Graph, Op, Role, Span, ValueId};

use super::runtime::{KeyUse, Runtime, ValueUse, WeightUse};
use super::scratch::{Scratch, touches};
use crate::form::groups::{Groups, Step, Tensor, TensorKind};
use crate::form::schedule::ArgumentRole;

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In one of the objects that last for a step.
    Slot(u32),
    /// In the object of a weight.
    Weight(u32),
    /// Among the keys and values that stay with the array.
    Kept(u32),
}

/// A tensor that passes to a place, or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub tensor: u32,
    pub place: Place,
}

/// All that passes in a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    /// Bytes of each slot.
    pub slots: Vec<u64>,
    /// To the array, before the first part.
    pub begin: Vec<Move>,
    /// With each part of the step.
    pub parts: Vec<Passing>,
    /// From the array, after the last part.
    pub end: Option<Move>,
}

/// What passes with one part of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passing {
    /// From the array, first.
    pub down: Vec<Move>,
    /// To the array, before it runs.
    pub up: Vec<Move>,
    /// To the array: what the host has made.
    pub made: Option<Move>,
    /// Of a program, where each of its arguments lies.
    pub places: Vec<Place>,
    /// Whether nothing lies between this program and the one before.
    pub follows: bool,
}

impl Traffic {
    /// What passes if `runtime` is how it is done.
    pub fn new(graph: &Graph, groups: &Groups, tensors: &[Option<u32>], runtime: Runtime) -> Traffic {
        let mut planner = Planner::new(graph, groups, tensors, runtime);
        let begin = planner.begin();
        let mut parts: Vec<Passing> = Vec::new();
        for (at, step) in groups.steps.iter().enumerate() {
            let after_array = at > 0 && matches!(groups.steps[at - 1], Step::Array { .. });
            parts.push(match step {
                Step::Host { node } => planner.host(*node as usize),
                Step::Array { program, tensors, .. } => {
                    let passing = planner.array(at, *program, tensors);
                    Passing {
                        follows: after_array && passing.down.is_empty() && passing.up.is_empty(),
                        ..passing
                    }
                }
            });
        }
        let end = graph.output().and_then(|output| planner.fetch(output));
        Traffic { slots: planner.slots, begin, parts, end }
    }

    /// Bytes of all slots, and of the keys and values that stay.
    pub fn bytes(&self, groups: &Groups) -> u64 {
        let places = self.parts.iter().flat_map(|part| &part.places);
        let kept = places.filter_map(|place| match place {
            Place::Kept(tensor) => Some(groups.tensors[*tensor as usize].bytes()),
            _ => None,
        });
        self.slots.iter().copied().chain(kept).fold(0, u64::saturating_add)
    }
}

/// How many numbers of a value count in a step.
pub(super) fn elements(graph: &Graph, value: ValueId, rows: usize, output_rows: usize) -> usize {
    let value = graph.value(value);
    let outermost = match value.outermost {
        Extent::Rows => rows,
        Extent::OutputRows => output_rows,
        Extent::Fixed | Extent::Context => value.shape.extents()[0],
    };
    outermost * value.shape.stride()
}

/// Whether rows see all keys and values before them, of which a tensor of
/// chunks has the name.
pub(super) fn sees_all(graph: &Graph, name: &str) -> bool {
    let keys = name.split_once('|').map_or(name, |(keys, _)| keys);
    let role = graph.find(keys).map(|keys| graph.value(keys).role);
    matches!(role, Some(Role::State(group)) if graph.groups[group.0 as usize].span == Span::Full)
}

/// Whether the host copies what it sends, because it has it in memory of its
/// own; else it makes it where the array reads it.
pub(super) fn copies(tensor: &Tensor, runtime: Runtime) -> bool {
    match tensor.kind {
        TensorKind::Static => true,
        TensorKind::Chunks if runtime.keys == KeyUse::Kept => false,
        _ => runtime.values == ValueUse::Brokered,
    }
}

/// Traffic being planned: where each tensor is so far.
struct Planner<'a> {
    graph: &'a Graph,
    groups: &'a Groups,
    /// The tensor of each value.
    tensors: &'a [Option<u32>],
    runtime: Runtime,
    scratch: Scratch,
    /// The slot of each argument of each program, where it has one of its own.
    own: Vec<Vec<Option<u32>>>,
    slots: Vec<u64>,
    /// Of each tensor, whether the host has it.
    on_host: Vec<bool>,
    /// Of each tensor, where the array has it.
    on_array: Vec<Option<Place>>,
    /// The tensor in each slot.
    content: Vec<Option<u32>>,
    /// The last part of the step that touches each tensor.
    last: Vec<usize>,
}

impl<'a> Planner<'a> {
    fn new(
        graph: &'a Graph,
        groups: &'a Groups,
        tensors: &'a [Option<u32>],
        runtime: Runtime,
    ) -> Planner<'a> {
        let scratch = match runtime.values {
            ValueUse::Aliased => Scratch::of(graph, groups, tensors, runtime.keys),
            ValueUse::Brokered => Scratch::none(groups),
        };
        let count = groups.tensors.len();
        let mut last = vec![0; count];
        for (at, step) in groups.steps.iter().enumerate() {
            touches(graph, tensors, step).into_iter().for_each(|tensor| last[tensor as usize] = at);
        }
        if let Some(output) = graph.output().and_then(|output| tensors[output.0 as usize]) {
            last[output as usize] = groups.steps.len();
        }
        let own = groups.programs.iter().map(|program| vec![None; program.arguments.len()]).collect();
        let mut planner = Planner {
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

    /// Gives a slot to each argument that needs one of its own.
    fn give_own(&mut self) {
        for step in &self.groups.steps {
            let Step::Array { program, tensors, .. } = step else { continue };
            for (argument, &tensor) in tensors.iter().enumerate() {
                let tensor = &self.groups.tensors[tensor as usize];
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
                *size = tensor.bytes().max(*size);
            }
        }
    }

    /// The place of a program's argument.
    fn place(&self, program: u32, argument: usize, tensor: u32) -> Place {
        match self.own[program as usize][argument] {
            Some(slot) => Place::Slot(slot),
            None => self.shared(tensor),
        }
    }

    /// The place of a tensor that all programs find where it is.
    fn shared(&self, tensor: u32) -> Place {
        match self.scratch.place[tensor as usize] {
            Some(slot) => Place::Slot(slot as u32),
            None if self.groups.tensors[tensor as usize].kind == TensorKind::Chunks => Place::Kept(tensor),
            None => Place::Weight(tensor),
        }
    }

    /// What the host has before the first part goes to where it stays, if
    /// there is such a place.
    fn begin(&mut self) -> Vec<Move> {
        let input = self.graph.input().and_then(|input| self.tensors[input.0 as usize]);
        let mut moves = Vec::new();
        for (number, tensor) in self.groups.tensors.iter().enumerate() {
            if tensor.kind == TensorKind::Turns || Some(number as u32) == input {
                self.on_host[number] = true;
                moves.extend(self.made(number as u32));
            }
        }
        moves
    }

    /// What the host has made goes to where its readers look, if they look at
    /// one place.
    fn made(&mut self, tensor: u32) -> Option<Move> {
        self.on_host[tensor as usize] = true;
        if self.runtime.values == ValueUse::Brokered {
            return None;
        }
        let place = self.shared(tensor);
        self.on_array[tensor as usize] = Some(place);
        Some(Move { tensor, place })
    }

    /// A value comes to the host, if it is not there.
    fn fetch(&mut self, value: ValueId) -> Option<Move> {
        let tensor = self.tensors[value.0 as usize]?;
        self.fetch_tensor(tensor)
    }

    fn fetch_tensor(&mut self, tensor: u32) -> Option<Move> {
        let place = self.on_array[tensor as usize]?;
        let known = std::mem::replace(&mut self.on_host[tensor as usize], true);
        (!known).then_some(Move { tensor, place })
    }

    fn host(&mut self, node: usize) -> Passing {
        let node = &self.graph.nodes[node];
        let inputs = node
            .inputs
            .iter()
            .filter(|input| matches!(self.graph.value(**input).role, Role::Scratch | Role::Input));
        let inputs: Vec<ValueId> = inputs.copied().collect();
        let down = inputs.into_iter().filter_map(|input| self.fetch(input)).collect();
        let output = self.tensors[node.output.0 as usize].filter(|_| node.op != Op::Write);
        Passing { down, made: output.and_then(|tensor| self.made(tensor)), ..Passing::default() }
    }

    fn array(&mut self, at: usize, program: u32, tensors: &[u32]) -> Passing {
        let mut passing = Passing::default();
        let arguments = &self.groups.programs[program as usize].arguments;
        for (index, (argument, &tensor)) in arguments.iter().zip(tensors).enumerate() {
            let place = self.place(program, index, tensor);
            let held = self.held(place);
            passing.places.push(place);
            let goes_up = match (self.groups.tensors[tensor as usize].kind, argument.role) {
                // The state has changed since the last step.
                (TensorKind::Chunks, _) => true,
                (TensorKind::Static, _) => held.is_some_and(|held| held != Some(tensor)),
                (_, ArgumentRole::Input) => {
                    self.runtime.values == ValueUse::Brokered && held != Some(Some(tensor))
                }
                _ => {
                    passing.down.extend(self.rescue(at, place, tensor));
                    self.on_array[tensor as usize] = Some(place);
                    self.on_host[tensor as usize] = false;
                    false
                }
            };
            if goes_up {
                passing.down.extend(self.fetch_tensor(tensor));
                passing.up.push(Move { tensor, place });
            }
            if let Place::Slot(slot) = place {
                self.content[slot as usize] = Some(tensor);
            }
        }
        passing
    }

    /// The tensor in a slot; `None` for a place that is none.
    fn held(&self, place: Place) -> Option<Option<u32>> {
        match place {
            Place::Slot(slot) => Some(self.content[slot as usize]),
            Place::Weight(_) | Place::Kept(_) => None,
        }
    }

    /// What a program is about to overwrite, if somebody needs it yet and the
    /// host has it not.
    fn rescue(&mut self, at: usize, place: Place, tensor: u32) -> Option<Move> {
        let old = self.held(place)??;
        let lost = old != tensor
            && self.runtime.values == ValueUse::Brokered
            && self.last[old as usize] > at
            && self.on_array[old as usize] == Some(place);
        if lost { self.fetch_tensor(old) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(text: &str) -> Groups {
        text.parse().unwrap()
    }

    /// Two runs of one program, `b = f(a)` and `c = f(b)`, on a graph that has
    /// no more than a chain of norms.
    fn chain(runtime: Runtime) -> Traffic {
        use girih_graph::{Builder, Key, Variant};
        use girih_tensor::{DType, Shape};
        let key = Key { rows: 8, sequences: 1, context: 64, output_rows: 1, variant: Variant::GENERATE };
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
        let tensors = super::super::program::tensors_of(&graph, &groups);
        Traffic::new(&graph, &groups, &tensors, runtime)
    }

    #[test]
    fn aliased_values_stay_with_the_array() {
        let traffic = chain(Runtime::default());
        assert_eq!(traffic.begin.len(), 1);
        assert!(traffic.parts.iter().all(|part| part.up.is_empty() && part.down.is_empty()));
        assert_eq!(traffic.parts[0].places[2], traffic.parts[1].places[0], "one object");
        assert_eq!([traffic.parts[0].follows, traffic.parts[1].follows], [false, true]);
        assert_eq!(traffic.end.map(|end| end.tensor), Some(3));
    }

    #[test]
    fn brokered_values_go_through_the_host() {
        let traffic = chain(Runtime { values: ValueUse::Brokered, ..Runtime::default() });
        assert!(traffic.begin.is_empty());
        assert_eq!(traffic.parts[0].places, traffic.parts[1].places, "objects belong to the program");
        let moved = |moves: &[Move]| moves.iter().map(|step| step.tensor).collect::<Vec<_>>();
        assert_eq!(moved(&traffic.parts[0].up), [0]);
        assert_eq!((moved(&traffic.parts[1].down), moved(&traffic.parts[1].up)), (vec![2], vec![2]));
        assert!(!traffic.parts[1].follows);
    }

    #[test]
    fn weights_can_come_with_each_call() {
        let traffic = chain(Runtime { weights: WeightUse::EachCall, ..Runtime::default() });
        let up: Vec<_> = traffic.parts.iter().map(|part| part.up.len()).collect();
        assert_eq!(up, [1, 0], "the second run finds the same weight in its slot");
        assert!(traffic.parts.iter().all(|part| matches!(part.places[1], Place::Slot(_))));
    }
}
