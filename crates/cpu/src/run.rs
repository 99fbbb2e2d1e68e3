//! Walks a program. Nothing is allocated here: what varies between steps lies
//! in memory that was made for the largest of them.

use std::array;
use std::cell::RefCell;
use std::time::{Duration, Instant};

use girih_graph::backend::{Inputs, Lane, NodeTime, Step, Watch};
use girih_graph::{Error, Graph, Key, ValueId};

use crate::amount::Amount;
use crate::arrange::{Arranged, Precision};
use crate::kernels::Table;
use crate::lower::{
    At, Call, Compute, Count, Elementwise, Instruction, Lowered, Place, Slot, local_size, lower,
    partials_size, rotations, slots,
};
use crate::memory::Aligned;
use crate::ops::{self, Executor, Heads, Origin, Rows, StepTurns};
use crate::pool::Pool;
use crate::state::Cache;
use crate::weights::Weights;

/// One graph, compiled.
#[derive(Debug)]
pub struct Program {
    key: Key,
    instructions: Vec<Instruction>,
    slots: Vec<Slot>,
    memory: RefCell<Memory>,
}

/// What a step works in.
#[derive(Debug)]
struct Memory {
    /// The scratch values of the graph.
    scratch: Aligned<f32>,
    /// Arranged activations.
    slots: Vec<Aligned<u32>>,
    /// What each thread needs for itself.
    locals: Vec<Aligned<f32>>,
    /// One entry for each of [`rotations`].
    turns: Vec<StepTurns>,
    /// Partial sums of attention.
    partials: Aligned<f32>,
    origins: Vec<Origin>,
    wanted: Vec<u32>,
}

impl Program {
    /// Compiles a graph for so many threads.
    pub(crate) fn new(
        graph: &Graph,
        weights: &Weights,
        threads: usize,
        precision: Option<Precision>,
    ) -> Result<Program, Error> {
        let Lowered { instructions, scratch, slots } = lower(graph, weights, precision)?;
        let arranged = slots.iter().map(|slot| Aligned::zeroed(slot.words, "the activations of a step"));
        let local = local_size(graph);
        let locals = (0..threads).map(|_| Aligned::zeroed(local, "a thread's scratch memory"));
        let turns = turns_shapes(graph).map(|(rows, pairs)| StepTurns::new(rows, pairs));
        let memory = Memory {
            scratch: Aligned::zeroed(scratch, "the scratch memory of a step")?,
            slots: arranged.collect::<Result<_, _>>()?,
            locals: locals.collect::<Result<_, _>>()?,
            turns: turns.collect::<Result<_, _>>()?,
            partials: Aligned::zeroed(partials_size(graph), "the partial sums of attention")?,
            origins: Vec::with_capacity(graph.key.rows as usize),
            wanted: Vec::with_capacity(graph.key.wanted as usize),
        };
        Ok(Program { key: graph.key, instructions, slots, memory: RefCell::new(memory) })
    }

    /// The bytes that a program of this graph takes while it runs.
    pub(crate) fn plan(graph: &Graph, threads: usize, precision: Option<Precision>) -> u64 {
        let scratch = girih_graph::ScratchPlan::of(graph).bytes / size_of::<f32>();
        let rows = size_of::<Origin>() as u64 * u64::from(graph.key.rows);
        let wanted = size_of::<u32>() as u64 * u64::from(graph.key.wanted);
        let locals = threads as u64 * Aligned::<f32>::bytes(local_size(graph));
        let arranged: u64 =
            slots(graph, precision).iter().map(|slot| Aligned::<u32>::bytes(slot.words)).sum();
        let turns: u64 = turns_shapes(graph).map(|(rows, pairs)| StepTurns::bytes(rows, pairs)).sum();
        let partials = Aligned::<f32>::bytes(partials_size(graph));
        Aligned::<f32>::bytes(scratch) + arranged + locals + turns + partials + rows + wanted
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
        let Memory { scratch, slots, locals, turns, partials, origins, wanted } =
            &mut *self.memory.borrow_mut();
        trace(lanes, origins, wanted);
        turns.iter_mut().for_each(StepTurns::forget);
        assert!(
            origins.len() <= self.key.rows as usize && wanted.len() <= self.key.wanted as usize,
            "a step of {} rows, {} of them wanted, in a program for [{}]",
            origins.len(),
            wanted.len(),
            self.key,
        );
        let input = match inputs {
            Inputs::Tokens(_) => &[],
            Inputs::Embeddings(values) => values,
        };
        let mut run = Run {
            executor: Executor { table, pool, locals, partials, variant: [""; 4] },
            kinds: &self.slots,
            slots,
            weights,
            state,
            turns,
            inputs,
            rows: Rows { lanes, origins, wanted },
            values: Values { input, scratch, output, rows: origins.len(), wanted: wanted.len() },
        };
        let clocks = watch.clocks();
        for instruction in &self.instructions {
            let begun = clocks.then(Instant::now);
            run.executor.variant = [table.name, "", "", ""];
            match instruction {
                Instruction::Write { x, state, .. } => run.write(*x, *state),
                Instruction::Arrange { x, width, slot, .. } => run.arrange(*x, *width, *slot),
                Instruction::Compute(compute) => run.compute(compute.call, compute.output),
            }
            if let Some(begun) = begun {
                watch.took(&run.took(instruction, begun.elapsed()));
            }
            if let Instruction::Compute(compute) = instruction {
                run.show(compute, watch);
            }
        }
    }
}

/// The rows and the pairs of each table of turns that a program of this graph has.
fn turns_shapes(graph: &Graph) -> impl Iterator<Item = (usize, usize)> {
    let pairs = |id: ValueId| graph.value(id).shape.elements();
    rotations(graph).into_iter().map(move |id| (graph.key.rows as usize, pairs(id)))
}

/// Lists where each row stands, and which rows are wanted.
fn trace(lanes: &[Lane<'_>], origins: &mut Vec<Origin>, wanted: &mut Vec<u32>) {
    origins.clear();
    wanted.clear();
    for (index, lane) in lanes.iter().enumerate() {
        let count = lane.rows.end - lane.rows.start;
        origins.extend((0..count).map(|row| Origin { lane: index as u32, position: lane.position + row }));
        wanted.extend(lane.wanted().map(|row| row as u32));
    }
}

/// One step on its way through a program.
struct Run<'a> {
    executor: Executor<'a>,
    kinds: &'a [Slot],
    slots: &'a mut [Aligned<u32>],
    weights: &'a Weights,
    state: &'a mut Cache,
    turns: &'a mut [StepTurns],
    inputs: Inputs<'a>,
    rows: Rows<'a>,
    values: Values<'a>,
}

impl Run<'_> {
    fn compute(&mut self, call: Call, place: Place) {
        let Run { executor, kinds, slots, weights, turns, state, rows, values, .. } = self;
        match call {
            Call::Alias => executor.variant[0] = "alias",
            Call::Embed { table } => {
                let Inputs::Tokens(tokens) = self.inputs else { unreachable!("checked: embed reads tokens") };
                ops::embed(executor, tokens, weights.matrix(table), values.split(place, []).0);
            }
            Call::Norm { x, weight, epsilon } => {
                let (y, [x]) = values.split(place, [x]);
                ops::norm(executor, x, weights.vector(weight), epsilon, y);
            }
            Call::Linear { slot, rows, width, weight, bias } => {
                let rows = values.rows_of(rows);
                let x = Arranged { kind: kinds[slot].kind, rows, width, words: &slots[slot] };
                let (y, []) = values.split(place, []);
                let bias = bias.map(|bias| weights.vector(bias));
                ops::linear(executor, x, weights.matrix(weight), bias, y);
            }
            Call::Rope { x, frequencies, turns: index, pairing } => {
                let (y, [x]) = values.split(place, [x]);
                turns[index].fill(executor, weights.vector(frequencies), *rows);
                ops::rope(executor, x, place.stride, &turns[index], pairing, y);
            }
            Call::Attend { q, keys, values: contents, attention } => {
                let (y, [q]) = values.split(place, [q]);
                let heads = Heads { q, keys: state.tensor(keys), values: state.tensor(contents) };
                ops::attend(executor, heads, attention, *rows, y);
            }
            Call::Take { x } => {
                let (y, [x]) = values.split(place, [x]);
                ops::take(x, place.stride, *rows, y);
            }
            Call::Elementwise(call) => elementwise(call, executor, values, place),
        }
    }

    /// Arranges rows for the products that follow.
    fn arrange(&mut self, x: Place, width: usize, slot: usize) {
        let (kind, x) = (self.kinds[slot].kind, self.values.get(x));
        ops::arranged(&mut self.executor, kind, x, width, &mut self.slots[slot]);
    }

    /// Puts every row where its lane's state has its position.
    fn write(&mut self, x: Place, state: usize) {
        let state = self.state.tensor_mut(state);
        let values = self.values.get(x);
        for lane in self.rows.lanes {
            let rows = lane.rows.indexes();
            let rows = &values[rows.start * x.stride..rows.end * x.stride];
            state.write(self.executor.table, lane, lane.position as usize, rows);
        }
    }

    /// What an instruction did that has just run.
    fn took<'i>(&'i self, instruction: &'i Instruction, time: Duration) -> NodeTime<'i> {
        let (name, op, rows, amount) = match instruction {
            Instruction::Write { x, name, .. } => (name, "write", self.values.count(*x), Amount::default()),
            Instruction::Arrange { x, name, .. } => {
                (name, "arrange", self.values.count(*x), Amount::default())
            }
            Instruction::Compute(Compute { call, output, name, op, .. }) => {
                let rows = self.values.count(*output);
                let amount = Amount::of(*call, rows, self.weights, self.state, self.rows.lanes);
                (name, *op, rows, amount)
            }
        };
        let words = &self.executor.variant;
        let variant = &words[..words.iter().take_while(|word| !word.is_empty()).count()];
        NodeTime { name, op, variant, rows, bytes: amount.bytes, operations: amount.operations, time }
    }

    /// Shows the result to whom it may concern.
    fn show(&self, compute: &Compute, watch: &mut dyn Watch) {
        if watch.wants(&compute.name) {
            let shape = compute.shape.with_outermost(self.values.count(compute.output));
            watch.value(&compute.name, &shape, self.values.get(compute.output));
        }
    }
}

fn elementwise(call: Elementwise, executor: &mut Executor<'_>, values: &mut Values<'_>, place: Place) {
    let table = executor.table;
    match call {
        Elementwise::Copy { x } => {
            let (y, x) = values.split(place, [x]);
            ops::elementwise(executor, x, y, |[x], y| y.copy_from_slice(x));
        }
        Elementwise::Gate { gate, up, act } => {
            let (y, operands) = values.split(place, [gate, up]);
            ops::elementwise(executor, operands, y, |[gate, up], y| (table.gate)(act, gate, up, y));
        }
        Elementwise::Add { a, b } => {
            let (y, operands) = values.split(place, [a, b]);
            ops::elementwise(executor, operands, y, |[a, b], y| (table.add)(a, b, y));
        }
        Elementwise::Scale { x, factor } => {
            let (y, x) = values.split(place, [x]);
            ops::elementwise(executor, x, y, |[x], y| (table.scale)(x, factor, y));
        }
        Elementwise::Softcap { x, cap } => {
            let (y, x) = values.split(place, [x]);
            ops::elementwise(executor, x, y, |[x], y| {
                y.copy_from_slice(x);
                (table.softcap)(y, cap);
            });
        }
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
        self.rows_of(place.count)
    }

    fn rows_of(&self, count: Count) -> usize {
        match count {
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
        // The result, the scratch below it, and the scratch from `end` on.
        let (result, below, above, end): (&mut [f32], &[f32], &[f32], usize) = match output.at {
            At::Scratch(start) => {
                let (below, rest) = self.scratch.split_at_mut(start);
                let (result, above) = rest.split_at_mut(len);
                (result, below, above, start + len)
            }
            At::Output => (&mut self.output[..len], self.scratch, &[], self.scratch.len()),
            At::Input => unreachable!("checked: nothing writes the input"),
        };
        let operands = array::from_fn(|index| match operands[index].at {
            At::Input => &self.input[..lens[index]],
            At::Scratch(start) if start < below.len() => &below[start..start + lens[index]],
            At::Scratch(start) => &above[start - end..][..lens[index]],
            At::Output => unreachable!("checked: the last node writes the output, so none reads it"),
        });
        (result, operands)
    }
}
