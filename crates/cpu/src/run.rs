//! Walks a program. Nothing is allocated here: what varies between steps lies
//! in memory that was made for the largest of them.

use std::cell::RefCell;

use girih_graph::backend::{Inputs, Lane, Step, Watch};
use girih_graph::{Error, Graph, Key};

use crate::kernels::Table;
use crate::lower::{At, Call, Count, Instruction, Place, local_size, lower};
use crate::memory::Aligned;
use crate::ops::{self, Crew, Heads, Rows, Seat};
use crate::pool::Pool;
use crate::state::{Cache, StateTensor};
use crate::weights::Weights;

/// One graph, compiled.
#[derive(Debug)]
pub struct Program {
    key: Key,
    instructions: Vec<Instruction>,
    memory: RefCell<Memory>,
}

/// What a step works in.
#[derive(Debug)]
struct Memory {
    /// The scratch values of the graph.
    scratch: Aligned<f32>,
    /// What each thread needs for itself.
    locals: Vec<Aligned<f32>>,
    seats: Vec<Seat>,
    wanted: Vec<u32>,
}

impl Program {
    /// Compiles a graph for so many threads.
    pub(crate) fn new(graph: &Graph, weights: &Weights, threads: usize) -> Result<Program, Error> {
        let (instructions, scratch) = lower(graph, weights)?;
        let local = local_size(graph);
        let locals = (0..threads).map(|_| Aligned::zeroed(local, "a thread's scratch memory"));
        let memory = Memory {
            scratch: Aligned::zeroed(scratch, "the scratch memory of a step")?,
            locals: locals.collect::<Result<_, _>>()?,
            seats: Vec::with_capacity(graph.key.rows as usize),
            wanted: Vec::with_capacity(graph.key.wanted as usize),
        };
        Ok(Program { key: graph.key, instructions, memory: RefCell::new(memory) })
    }

    /// The bytes that a program of this graph takes while it runs.
    pub(crate) fn plan(graph: &Graph, threads: usize) -> u64 {
        let scratch = girih_graph::ScratchPlan::of(graph).bytes / size_of::<f32>();
        let rows = size_of::<Seat>() as u64 * u64::from(graph.key.rows);
        let wanted = size_of::<u32>() as u64 * u64::from(graph.key.wanted);
        let locals = threads as u64 * Aligned::<f32>::bytes(local_size(graph));
        Aligned::<f32>::bytes(scratch) + locals + rows + wanted
    }

    /// Runs one step.
    ///
    /// # Panics
    /// When the step is larger than the program's key, or contradicts itself.
    pub(crate) fn run(
        &self,
        table: &Table,
        pool: &Pool,
        weights: &Weights,
        state: &mut Cache,
        step: Step<'_>,
    ) {
        let Step { inputs, lanes, output, watch } = step;
        let Memory { scratch, locals, seats, wanted } = &mut *self.memory.borrow_mut();
        seat(lanes, seats, wanted);
        assert!(
            seats.len() <= self.key.rows as usize && wanted.len() <= self.key.wanted as usize,
            "a step of {} rows, {} of them wanted, in a program for [{}]",
            seats.len(),
            wanted.len(),
            self.key,
        );
        let input = match inputs {
            Inputs::Tokens(_) => &[],
            Inputs::Embeddings(values) => values,
        };
        let mut run = Run {
            crew: Crew { table, pool, locals },
            weights,
            state,
            inputs,
            rows: Rows { lanes, seats, wanted },
            values: Values { input, scratch, output, rows: seats.len(), wanted: wanted.len() },
        };
        for instruction in &self.instructions {
            run.call(instruction);
            run.show(instruction, watch);
        }
    }
}

/// Lists where each row stands, and which rows are wanted.
fn seat(lanes: &[Lane<'_>], seats: &mut Vec<Seat>, wanted: &mut Vec<u32>) {
    seats.clear();
    wanted.clear();
    for (index, lane) in lanes.iter().enumerate() {
        let count = lane.rows.end - lane.rows.start;
        seats.extend((0..count).map(|row| Seat { lane: index as u32, position: lane.position + row }));
        wanted.extend(lane.wanted().map(|row| row as u32));
    }
}

/// One step on its way through a program.
struct Run<'a> {
    crew: Crew<'a>,
    weights: &'a Weights,
    state: &'a mut Cache,
    inputs: Inputs<'a>,
    rows: Rows<'a>,
    values: Values<'a>,
}

impl Run<'_> {
    fn call(&mut self, instruction: &Instruction) {
        let Run { crew, weights, state, rows, values, .. } = self;
        let rows = *rows;
        let Some(place) = instruction.output else {
            let Call::Write { x, state: index } = instruction.call else {
                unreachable!("every call but a write has a place for its result");
            };
            return write(state.tensor_mut(index), values.get(x), x.stride, rows);
        };
        match instruction.call {
            Call::Alias => {}
            Call::Write { .. } => unreachable!("the result of a write is state"),
            Call::Embed { table } => {
                let Inputs::Tokens(tokens) = self.inputs else { unreachable!("checked: embed reads tokens") };
                ops::embed(crew, tokens, weights.matrix(table), values.split(place, []).0);
            }
            Call::Norm { x, weight, epsilon } => {
                let (y, [x]) = values.split(place, [x]);
                ops::norm(crew, x, weights.vector(weight), epsilon, y);
            }
            Call::Linear { x, weight, bias } => {
                let (y, [x]) = values.split(place, [x]);
                let bias = bias.map(|bias| weights.vector(bias));
                ops::linear(crew, x, weights.matrix(weight), bias, y);
            }
            Call::Rope { x, frequencies, pairing } => {
                let (y, [x]) = values.split(place, [x]);
                ops::rope(crew, x, place.stride, weights.vector(frequencies), pairing, rows, y);
            }
            Call::Attend { q, keys, values: state_values, attention } => {
                let (y, [q]) = values.split(place, [q]);
                let heads = Heads { q, keys: state.tensor(keys), values: state.tensor(state_values) };
                ops::attend(crew, heads, attention, rows, y);
            }
            Call::Take { x } => {
                let (y, [x]) = values.split(place, [x]);
                ops::take(x, place.stride, rows, y);
            }
            call => elements(call, crew, values, place),
        }
    }

    /// Shows the result to whom it may concern.
    fn show(&self, instruction: &Instruction, watch: &mut dyn Watch) {
        let Some(place) = instruction.output else { return };
        if watch.wants(&instruction.name) {
            let shape = instruction.shape.with_outermost(self.values.count(place));
            watch.value(&instruction.name, &shape, self.values.get(place));
        }
    }
}

/// The calls that work on one element at a time.
fn elements(call: Call, crew: &mut Crew<'_>, values: &mut Values<'_>, place: Place) {
    let table = crew.table;
    match call {
        Call::Copy { x } => {
            let (y, x) = values.split(place, [x]);
            ops::elements(crew, x, y, |[x], y| y.copy_from_slice(x));
        }
        Call::Gate { gate, up, act } => {
            let (y, operands) = values.split(place, [gate, up]);
            ops::elements(crew, operands, y, |[gate, up], y| (table.gate)(act, gate, up, y));
        }
        Call::Add { a, b } => {
            let (y, operands) = values.split(place, [a, b]);
            ops::elements(crew, operands, y, |[a, b], y| (table.add)(a, b, y));
        }
        Call::Scale { x, factor } => {
            let (y, x) = values.split(place, [x]);
            ops::elements(crew, x, y, |[x], y| (table.scale)(x, factor, y));
        }
        Call::Softcap { x, cap } => {
            let (y, x) = values.split(place, [x]);
            ops::elements(crew, x, y, |[x], y| {
                y.copy_from_slice(x);
                (table.softcap)(y, cap);
            });
        }
        call => unreachable!("{call:?} works on rows"),
    }
}

/// Puts every row where its lane's state has its position.
fn write(state: &mut StateTensor, x: &[f32], stride: usize, rows: Rows<'_>) {
    for (seat, row) in rows.seats.iter().zip(x.chunks_exact(stride)) {
        state.write(&rows.lanes[seat.lane as usize], seat.position as usize, row);
    }
}

/// The values that a step brings, makes and yields.
struct Values<'a> {
    input: &'a [f32],
    scratch: &'a mut [f32],
    output: &'a mut [f32],
    rows: usize,
    wanted: usize,
}

impl Values<'_> {
    /// How many rows of a value there are in this step.
    fn count(&self, place: Place) -> usize {
        match place.count {
            Count::Rows => self.rows,
            Count::Wanted => self.wanted,
        }
    }

    /// The values at a place.
    fn get(&self, place: Place) -> &[f32] {
        let len = self.count(place) * place.stride;
        match place.at {
            At::Input => &self.input[..len],
            At::Output => &self.output[..len],
            At::Scratch(start) => &self.scratch[start..start + len],
        }
    }

    /// The values at a place to be written, and those at places to be read.
    ///
    /// # Panics
    /// When the first place and one of the others share memory, which plans
    /// without faults rule out.
    fn split<const N: usize>(&mut self, output: Place, operands: [Place; N]) -> (&mut [f32], [&[f32]; N]) {
        let lens = operands.map(|place| self.count(place) * place.stride);
        let len = self.count(output) * output.stride;
        // What may be read: scratch below the result, scratch from `above` on,
        // and the output unless it is the result.
        let (result, below, above, rest, yielded): (&mut [f32], &[f32], _, &[f32], &[f32]) = match output.at {
            At::Scratch(start) => {
                let (below, from) = self.scratch.split_at_mut(start);
                let (result, rest) = from.split_at_mut(len);
                (result, below, start + len, rest, self.output)
            }
            At::Output => (&mut self.output[..len], self.scratch, self.scratch.len(), &[], &[]),
            At::Input => unreachable!("checked: nothing writes the input"),
        };
        let operands = std::array::from_fn(|index| match operands[index].at {
            At::Input => &self.input[..lens[index]],
            At::Output => &yielded[..lens[index]],
            At::Scratch(start) if start < below.len() => &below[start..start + lens[index]],
            At::Scratch(start) => &rest[start - above..][..lens[index]],
        });
        (result, operands)
    }
}
