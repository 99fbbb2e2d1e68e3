//! Walks a program. Nothing is allocated here: what varies between steps lies
//! in memory that was made for the largest of them.

use std::array;
use std::cell::RefCell;
use std::slice;
use std::time::{Duration, Instant};

use girih_graph::backend::{Inputs, NodeTime, Sequence, Step, Watch};
use girih_graph::{Error, Graph, Key, SunkGather, ValueId, sink_gather};
use girih_tensor::Shape;

use crate::amount::Amount;
use crate::arrange::{Arranged, Precision, Source};
use crate::kernels::Table;
use crate::kernels::packed::NARROW;
use crate::lower::{
    self, At, Call, Compute, Count, Elementwise, Finish, Instruction, Lowered, Made, Place, Product,
    Products, Slot, Turn, Write, Writes, local_size, lower, partials_size, rotations, scratch_size, slots,
};
use crate::memory::Aligned;
use crate::ops::{self, Executor, Heads, Origin, Rows, StepTurns, Written};
use crate::pool::Pool;
use crate::state::Cache;
use crate::weights::Weights;

/// One graph, compiled.
#[derive(Debug)]
pub struct Program {
    key: Key,
    /// All rows of every value.
    instructions: Vec<Instruction>,
    early: Option<WantedOnly>,
    slots: Vec<Slot>,
    memory: RefCell<Memory>,
}

/// What a program runs unless someone watches the values that it makes less of.
#[derive(Debug)]
struct WantedOnly {
    instructions: Vec<Instruction>,
    /// The values of which only output rows are made, by name.
    names: Vec<String>,
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
    output_rows: Vec<u32>,
    written: Written,
}

impl Program {
    /// Compiles a graph for so many threads.
    pub(crate) fn new(
        graph: &Graph,
        weights: &Weights,
        threads: usize,
        precision: Option<Precision>,
    ) -> Result<Program, Error> {
        let Lowered { instructions, slots } = lower(graph, weights, precision)?;
        let early = sink_gather(graph);
        let scratch = scratch_size(graph, early.as_ref());
        let early = early.map(|SunkGather { graph, names }| {
            let Lowered { instructions, .. } = lower(&graph, weights, precision)?;
            Ok::<_, Error>(WantedOnly { instructions, names })
        });
        let arranged = slots.iter().map(|slot| Aligned::zeroed(slot.words, "the activations of a step"));
        let local = local_size(graph, precision);
        let locals = (0..threads).map(|_| Aligned::zeroed(local, "a thread's scratch memory"));
        let turns = turns_shapes(graph).map(|(rows, pairs)| StepTurns::new(rows, pairs));
        let memory = Memory {
            scratch: Aligned::zeroed(scratch, "the scratch memory of a step")?,
            slots: arranged.collect::<Result<_, _>>()?,
            locals: locals.collect::<Result<_, _>>()?,
            turns: turns.collect::<Result<_, _>>()?,
            partials: Aligned::zeroed(partials_size(graph), "the partial sums of attention")?,
            origins: Vec::with_capacity(graph.key.rows as usize),
            output_rows: Vec::with_capacity(graph.key.output_rows as usize),
            written: Written::new(graph),
        };
        Ok(Program {
            key: graph.key,
            instructions,
            early: early.transpose()?,
            slots,
            memory: RefCell::new(memory),
        })
    }

    /// The bytes that a program of this graph takes while it runs.
    pub(crate) fn plan(graph: &Graph, threads: usize, precision: Option<Precision>) -> u64 {
        let rows = size_of::<Origin>() as u64 * u64::from(graph.key.rows) + Written::bytes(graph);
        let output_rows = size_of::<u32>() as u64 * u64::from(graph.key.output_rows);
        let locals = threads as u64 * Aligned::<f32>::bytes(local_size(graph, precision));
        let arranged: u64 =
            slots(graph, precision).iter().map(|slot| Aligned::<u32>::bytes(slot.words)).sum();
        let turns: u64 = turns_shapes(graph).map(|(rows, pairs)| StepTurns::bytes(rows, pairs)).sum();
        let partials = Aligned::<f32>::bytes(partials_size(graph));
        let scratch = Aligned::<f32>::bytes(scratch_size(graph, sink_gather(graph).as_ref()));
        scratch + arranged + locals + turns + partials + rows + output_rows
    }

    /// The instructions of a step: those on output rows only, unless somebody
    /// watches a value that they leave out rows of.
    fn instructions(&self, watch: &dyn Watch) -> &[Instruction] {
        match &self.early {
            Some(WantedOnly { instructions, names }) if !names.iter().any(|name| watch.wants(name)) => {
                instructions
            }
            _ => &self.instructions,
        }
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
        let Step { inputs, sequences, output, watch } = step;
        let Memory { scratch, slots, locals, turns, partials, origins, output_rows, written } =
            &mut *self.memory.borrow_mut();
        trace(sequences, origins, output_rows);
        turns.iter_mut().for_each(StepTurns::forget);
        assert!(
            origins.len() <= self.key.rows as usize && output_rows.len() <= self.key.output_rows as usize,
            "a step of {} rows, {} of them output rows, in a program for [{}]",
            origins.len(),
            output_rows.len(),
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
            written,
            finished: false,
            inputs,
            rows: Rows { sequences, origins, output_rows },
            values: Values { input, scratch, output, rows: origins.len(), output_rows: output_rows.len() },
        };
        let clocks = watch.clocks();
        let instructions = self.instructions(watch);
        // The products of the next step follow those of this one.
        let mut following = products_of(instructions).cycle().skip(1);
        for instruction in instructions {
            let begun = clocks.then(Instant::now);
            run.executor.variant = [table.name, "", "", ""];
            match instruction {
                Instruction::Write(writes) => run.write(writes, watch),
                Instruction::Arrange { source, width, slot, .. } => run.arrange(*source, *width, *slot),
                Instruction::Products(products) => {
                    following.next().inspect(|next| run.foresee(next));
                    run.products(products, watch);
                }
                Instruction::Compute(compute) if run.is_due(compute, watch) => {
                    run.compute(compute.call, compute.output);
                }
                Instruction::Compute(compute) => {
                    run.show(&compute.name, &compute.shape, compute.output, watch);
                    continue;
                }
            }
            if let Some(begun) = begun {
                watch.took(&run.took(instruction, begun.elapsed()));
            }
            run.show_results(instruction, watch);
        }
    }
}

/// The rows and the pairs of each table of turns that a program of this graph has.
fn turns_shapes(graph: &Graph) -> impl Iterator<Item = (usize, usize)> {
    let pairs = |id: ValueId| graph.value(id).shape.elements();
    rotations(graph).into_iter().map(move |id| (graph.key.rows as usize, pairs(id)))
}

/// Lists where each row stands, and which rows are output rows.
fn trace(sequences: &[Sequence<'_>], origins: &mut Vec<Origin>, output_rows: &mut Vec<u32>) {
    origins.clear();
    output_rows.clear();
    for (index, sequence) in sequences.iter().enumerate() {
        let count = sequence.rows.end - sequence.rows.start;
        origins.extend(
            (0..count).map(|row| Origin { sequence: index as u32, position: sequence.position + row }),
        );
        output_rows.extend(sequence.output_rows().map(|row| row as u32));
    }
}

/// The products of a program, in their order.
fn products_of(instructions: &[Instruction]) -> impl Iterator<Item = &Products> + Clone {
    instructions.iter().filter_map(|instruction| match instruction {
        Instruction::Products(products) => Some(products),
        _ => None,
    })
}

/// One step on its way through a program.
struct Run<'a> {
    executor: Executor<'a>,
    kinds: &'a [Slot],
    slots: &'a mut [Aligned<u32>],
    weights: &'a Weights,
    state: &'a mut Cache,
    turns: &'a mut [StepTurns],
    written: &'a mut Written,
    /// Whether the last products have made the value of the next node, too.
    finished: bool,
    inputs: Inputs<'a>,
    rows: Rows<'a>,
    values: Values<'a>,
}

impl Run<'_> {
    /// Whether a value is to be made now.
    fn is_due(&self, compute: &Compute, watch: &dyn Watch) -> bool {
        match compute.made {
            Made::Here => true,
            Made::InPassing => watch.wants(&compute.name),
            Made::WithProducts => !self.finished,
        }
    }

    fn compute(&mut self, call: Call, place: Place) {
        let Run { executor, weights, turns, state, rows, values, .. } = self;
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
            Call::Rope { x, turn: Turn { frequencies, turns: index, pairing } } => {
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

    /// Lets threads that wait ask for the weights of the products that come next,
    /// where reading these is what takes the time.
    fn foresee(&self, next: &Products) {
        if self.values.rows_of(next.rows) <= NARROW {
            let weights = next.parts.iter().map(|part| self.weights.matrix(part.weight));
            let gated = matches!(next.finish, Some((Finish::Gate { .. }, _)));
            ops::foresee(self.executor.pool, weights, gated);
        }
    }

    /// Multiplies rows by all matrices at once, or by one after another where
    /// someone watches: with the same bits.
    fn products(&mut self, products: &Products, watch: &dyn Watch) {
        let Products { rows, width, parts, finish, .. } = products;
        let is_watched = parts.iter().any(|part| watch.wants(&part.name));
        self.finished = finish.is_some() && !is_watched;
        let results = array::from_fn(|index| Some(parts.get(index)?.output));
        match *finish {
            _ if is_watched => {
                for part in parts {
                    self.linear(
                        *rows,
                        *width,
                        slice::from_ref(part),
                        None,
                        [Some(part.output), None, None, None],
                    );
                }
            }
            None => self.linear(*rows, *width, parts, None, results),
            Some((finish, output)) => {
                self.linear(*rows, *width, parts, Some(finish), [Some(output), None, None, None]);
            }
        }
    }

    /// Multiplies rows by some matrices.
    fn linear(
        &mut self,
        rows: Count,
        width: usize,
        parts: &[Product],
        finish: Option<Finish>,
        outputs: [Option<Place>; ops::MOST_PRODUCTS],
    ) {
        let Run { executor, kinds, slots, weights, values, .. } = self;
        let rows = values.rows_of(rows);
        let products = array::from_fn(|index| {
            let part = parts.get(index)?;
            let x = Arranged { kind: kinds[part.slot].kind, rows, width, words: &slots[part.slot] };
            let bias = part.bias.map(|bias| weights.vector(bias));
            Some(ops::Product { x, weight: weights.matrix(part.weight), bias })
        });
        let residual = match finish {
            Some(Finish::Add { residual }) => Some(residual),
            _ => None,
        };
        let (outputs, [residual]) = values.lend(outputs, [residual]);
        let finish = match finish {
            None => ops::Finish::Store,
            Some(Finish::Add { .. }) => ops::Finish::Add(residual),
            Some(Finish::Gate { act }) => ops::Finish::Gate(act),
        };
        ops::linear(executor, products, finish, outputs);
    }

    /// Arranges rows for the products that follow.
    fn arrange(&mut self, source: lower::Source, width: usize, slot: usize) {
        let get = |place| self.values.get(place);
        let source = match source {
            lower::Source::Rows { x } => Source::Rows(get(x)),
            lower::Source::Norm { x, weight, epsilon } => {
                Source::Norm { x: get(x), weight: self.weights.vector(weight), epsilon }
            }
            lower::Source::Gate { gate, up, act } => Source::Gate { gate: get(gate), up: get(up), act },
        };
        self.executor.variant = [self.executor.table.name, source.name(), "", ""];
        ops::arranged(&mut self.executor, self.kinds[slot].kind, source, width, &mut self.slots[slot]);
    }

    /// Puts every row where its sequence's state has its position. Heads that someone
    /// wants to see rotated have been rotated before.
    fn write(&mut self, writes: &Writes, watch: &dyn Watch) {
        let is_rotated = writes.rotated.as_ref().is_none_or(|name| watch.wants(name));
        let part = |part: Write| match part.unturned {
            Some((x, turn)) if !is_rotated => (x, Some(turn), part.state),
            _ => (part.x, None, part.state),
        };
        if !is_rotated {
            self.executor.variant[1] = "rope";
        }
        match writes.parts[..] {
            [one] => self.write_parts([part(one)]),
            [first, second] => self.write_parts([first, second].map(part)),
            _ => unreachable!("a task writes one state value or two"),
        }
    }

    /// Puts rows, after they are rotated, into as many state values.
    fn write_parts<const N: usize>(&mut self, parts: [(Place, Option<Turn>, usize); N]) {
        let Run { executor, weights, turns, state, rows, values, written, .. } = self;
        for Turn { frequencies, turns: index, .. } in parts.iter().filter_map(|part| part.1) {
            turns[index].fill(executor, weights.vector(frequencies), *rows);
        }
        let sources = parts.map(|(x, turn, _)| ops::write::Source {
            x: values.get(x),
            turns: turn.map(|turn| (&turns[turn.turns], turn.pairing)),
        });
        ops::write(executor, sources, state.tensors_mut(parts.map(|(.., state)| state)), *rows, written);
    }

    /// What an instruction did that has just run.
    fn took<'i>(&'i self, instruction: &'i Instruction, time: Duration) -> NodeTime<'i> {
        let (name, op, rows, amount) = match instruction {
            Instruction::Write(Writes { parts, name, .. }) => {
                (name, "write", self.values.count(parts[0].x), Amount::default())
            }
            Instruction::Arrange { count, name, .. } => {
                (name, "arrange", self.values.rows_of(*count), Amount::default())
            }
            Instruction::Products(products) => {
                let rows = self.values.rows_of(products.rows);
                (&products.name, "linear", rows, Amount::of_products(products, rows, self.weights))
            }
            Instruction::Compute(Compute { call, output, name, op, .. }) => {
                let rows = self.values.count(*output);
                let amount = Amount::of(*call, rows, self.weights, self.state, self.rows.sequences);
                (name, *op, rows, amount)
            }
        };
        let words = &self.executor.variant;
        let variant = &words[..words.iter().take_while(|word| !word.is_empty()).count()];
        NodeTime { name, op, variant, rows, bytes: amount.bytes, operations: amount.operations, time }
    }

    /// Shows what an instruction has made.
    fn show_results(&self, instruction: &Instruction, watch: &mut dyn Watch) {
        match instruction {
            Instruction::Compute(Compute { name, shape, output, .. }) => {
                self.show(name, shape, *output, watch)
            }
            Instruction::Products(Products { parts, .. }) => {
                parts.iter().for_each(|part| self.show(&part.name, &part.shape, part.output, watch));
            }
            Instruction::Write(_) | Instruction::Arrange { .. } => {}
        }
    }

    /// Shows a value to whom it may concern.
    fn show(&self, name: &str, shape: &Shape, place: Place, watch: &mut dyn Watch) {
        if watch.wants(name) {
            let shape = shape.with_outermost(self.values.count(place));
            watch.value(name, &shape, self.values.get(place));
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
    output_rows: usize,
}

impl Values<'_> {
    /// How many rows of a value there are in this step.
    fn count(&self, place: Place) -> usize {
        self.rows_of(place.count)
    }

    fn rows_of(&self, count: Count) -> usize {
        match count {
            Count::Rows => self.rows,
            Count::OutputRows => self.output_rows,
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
    /// As [`Values::lend`].
    fn split<const N: usize>(&mut self, output: Place, operands: [Place; N]) -> (&mut [f32], [&[f32]; N]) {
        let ([output], operands) = self.lend([Some(output)], operands.map(Some));
        (output, operands)
    }

    /// The values at places to be written, and those at places to be read;
    /// nothing where there is no place.
    ///
    /// # Panics
    /// When a place to be written shares memory with another, which plans
    /// without faults rule out.
    fn lend<const W: usize, const R: usize>(
        &mut self,
        outputs: [Option<Place>; W],
        operands: [Option<Place>; R],
    ) -> ([&mut [f32]; W], [&[f32]; R]) {
        let len = |place: Place| self.rows_of(place.count) * place.stride;
        let (lens, operand_lens) =
            (outputs.map(|place| place.map(len)), operands.map(|place| place.map(len)));
        let start = |place: Option<Place>| match place?.at {
            At::Scratch(start) => Some(start),
            At::Output => None,
            At::Input => unreachable!("checked: nothing writes the input"),
        };
        let mut order: [usize; W] = array::from_fn(|index| index);
        order.sort_unstable_by_key(|&index| start(outputs[index]));
        // The scratch between the results, from a number on.
        let mut gaps: [(usize, &[f32]); W] = [(0, &[]); W];
        let mut results: [&mut [f32]; W] = array::from_fn(|_| &mut [][..]);
        let (mut output, mut rest, mut at) = (Some(&mut *self.output), &mut *self.scratch, 0);
        for index in order {
            let Some(len) = lens[index] else { continue };
            results[index] = match start(outputs[index]) {
                None => &mut output.take().expect("a step has one output")[..len],
                Some(start) => {
                    let (gap, others) = rest.split_at_mut(start - at);
                    let (result, others) = others.split_at_mut(len);
                    gaps[index] = (at, gap);
                    (rest, at) = (others, start + len);
                    result
                }
            };
        }
        let (input, rest) = (self.input, &*rest);
        let operands = array::from_fn(|index| {
            let (Some(place), Some(len)) = (operands[index], operand_lens[index]) else { return &[][..] };
            let start = match place.at {
                At::Input => return &input[..len],
                At::Scratch(start) => start,
                At::Output => unreachable!("checked: the last node writes the output, so none reads it"),
            };
            let mut parts = gaps.iter().copied().chain([(at, rest)]);
            let part = parts.find(|(first, part)| {
                (*first..=first + part.len()).contains(&(start + len)) && start >= *first
            });
            let (first, part) = part.expect("a plan keeps what is read apart from what is written");
            &part[start - first..][..len]
        });
        (results, operands)
    }
}
