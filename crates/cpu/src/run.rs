//! Runs the instructions of a program. A step allocates nothing: its memory is sized for the largest step.

use std::array;
use std::cell::RefCell;
use std::slice;
use std::time::{Duration, Instant};

use girih_graph::backend::{Input, NodeTime, Sequence, Step, Watch, step_count};
use girih_graph::{Error, Graph, HostRows, Key, SunkGather, ValueId, sink_gather};
use girih_tensor::Shape;

use crate::activations::{PackedActivations, PrecisionRule, SourceRows};
use crate::amount::Amount;
use crate::instruction::{
    ActivationSlot, Compute, CpuInstruction, Elementwise, Made, Matmul, MatmulEpilogue, Matmuls, OpCall,
    PackSource, RopeParams, RowCount, StateWrite, StateWrites, StepBuffer, ValueLocation,
};
use crate::kernels::Table;
use crate::kernels::packed::NARROW;
use crate::lower::{Lowered, local_len, lower, partials_len, rotation_frequencies, scratch_len, slots};
use crate::memory::Aligned;
use crate::ops::{
    self, AttentionOperands, Executor, LostValue, RowOrigin, StepRotations, StepRows, WrittenBlocks,
};
use crate::pool::ThreadPool;
use crate::state::{CpuState, KvStore};
use crate::weights::CpuWeights;

/// A compiled graph.
#[derive(Debug)]
pub struct CpuProgram {
    key: Key,
    /// Computes all rows of every value.
    instructions: Vec<CpuInstruction>,
    output_rows_only: Option<OutputRowsProgram>,
    slots: Vec<ActivationSlot>,
    memory: RefCell<StepMemory>,
}

/// Computes only the output rows of some values; it runs unless one of these values is watched.
#[derive(Debug)]
struct OutputRowsProgram {
    instructions: Vec<CpuInstruction>,
    /// The names of these values.
    names: Vec<String>,
}

/// The memory that a step uses.
#[derive(Debug)]
struct StepMemory {
    /// The scratch values of the graph.
    scratch: Aligned<f32>,
    /// Packed activations.
    slots: Vec<Aligned<u32>>,
    /// Scratch memory of each thread.
    locals: Vec<Aligned<f32>>,
    /// One entry for each of [`rotation_frequencies`].
    rotations: Vec<StepRotations>,
    /// Partial sums of attention.
    partials: Aligned<f32>,
    origins: Vec<RowOrigin>,
    output_rows: Vec<u32>,
    written: WrittenBlocks,
    /// Keys and values of attention to rows of the step.
    step_state: CpuState,
}

impl CpuProgram {
    /// Compiles a graph for a number of threads.
    pub(crate) fn new(
        graph: &Graph,
        weights: &CpuWeights,
        threads: usize,
        rule: PrecisionRule,
    ) -> Result<CpuProgram, Error> {
        let Lowered { instructions, slots } = lower(graph, weights, rule)?;
        let sunk = sink_gather(graph);
        let scratch = scratch_len(graph, sunk.as_ref());
        let output_rows_only = sunk.map(|SunkGather { graph, names }| {
            let Lowered { instructions, .. } = lower(&graph, weights, rule)?;
            Ok::<_, Error>(OutputRowsProgram { instructions, names })
        });
        let packed = slots.iter().map(|slot| Aligned::zeroed(slot.words, "the activations of a step"));
        let local = local_len(graph, rule);
        let locals = (0..threads).map(|_| Aligned::zeroed(local, "a thread's scratch memory"));
        let rotations = rotation_shapes(graph).map(|(rows, pairs)| StepRotations::new(rows, pairs));
        let memory = StepMemory {
            scratch: Aligned::zeroed(scratch, "the scratch memory of a step")?,
            slots: packed.collect::<Result<_, _>>()?,
            locals: locals.collect::<Result<_, _>>()?,
            rotations: rotations.collect::<Result<_, _>>()?,
            partials: Aligned::zeroed(partials_len(graph), "the partial sums of attention")?,
            origins: Vec::with_capacity(graph.key.rows as usize),
            output_rows: Vec::with_capacity(graph.key.output_rows as usize),
            written: WrittenBlocks::new(graph),
            step_state: CpuState::of_step(graph)?,
        };
        Ok(CpuProgram {
            key: graph.key,
            instructions,
            output_rows_only: output_rows_only.transpose()?,
            slots,
            memory: RefCell::new(memory),
        })
    }

    /// The bytes of memory that a program of this graph needs.
    pub(crate) fn plan(graph: &Graph, threads: usize, rule: PrecisionRule) -> u64 {
        let rows = size_of::<RowOrigin>() as u64 * u64::from(graph.key.rows) + WrittenBlocks::bytes(graph);
        let output_rows = size_of::<u32>() as u64 * u64::from(graph.key.output_rows);
        let locals = Aligned::<f32>::bytes(local_len(graph, rule)).saturating_mul(threads as u64);
        let packed = slots(graph, rule).into_iter().map(|slot| Aligned::<u32>::bytes(slot.words));
        let packed = packed.fold(0, u64::saturating_add);
        let rotations = rotation_shapes(graph).map(|(rows, pairs)| StepRotations::bytes(rows, pairs));
        let rotations = rotations.fold(0, u64::saturating_add);
        let partials = Aligned::<f32>::bytes(partials_len(graph));
        let scratch = Aligned::<f32>::bytes(scratch_len(graph, sink_gather(graph).as_ref()));
        let step_state = CpuState::step_plan(graph);
        let parts = [scratch, packed, locals, rotations, partials, rows, output_rows, step_state];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The instructions of a step: those that compute only output rows, unless a
    /// value whose rows they omit is watched.
    fn instructions(&self, watch: &dyn Watch) -> &[CpuInstruction] {
        match &self.output_rows_only {
            Some(OutputRowsProgram { instructions, names })
                if !names.iter().any(|name| watch.wants(name)) =>
            {
                instructions
            }
            _ => &self.instructions,
        }
    }

    /// Checks that the program's memory holds a step of these sizes.
    ///
    /// # Panics
    /// If it does not.
    fn check_size(&self, rows: usize, output_rows: usize, sequences: usize) {
        let Key { rows: max, output_rows: max_outputs, sequences: max_sequences, .. } = self.key;
        assert!(
            rows <= max as usize
                && output_rows <= max_outputs as usize
                && sequences <= max_sequences as usize,
            "a step of {rows} rows, {output_rows} of them output rows, and {sequences} sequences \
             in a program for [{}]",
            self.key,
        );
    }

    /// Runs one step.
    ///
    /// # Panics
    /// If the step is larger than the program's key, or its parts contradict each other.
    pub(crate) fn run(
        &self,
        table: &Table,
        pool: &ThreadPool,
        weights: &CpuWeights,
        state: &mut CpuState,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<(), Error> {
        let Step { inputs, sequences, watch } = step;
        let StepMemory {
            scratch,
            slots,
            locals,
            rotations,
            partials,
            origins,
            output_rows,
            written,
            step_state,
        } = &mut *self.memory.borrow_mut();
        list_rows(sequences, origins, output_rows);
        rotations.iter_mut().for_each(StepRotations::clear);
        self.check_size(origins.len(), output_rows.len(), sequences.len());
        let output = output.begin(step_count(sequences, self.key.output.extent()))?;
        let mut run = CpuRun {
            executor: Executor { table, pool, locals, partials, variant: [""; 4] },
            kinds: &self.slots,
            slots,
            weights,
            state,
            step_state,
            rotations,
            written,
            epilogue_done: false,
            rows: StepRows { sequences, origins, output_rows },
            values: StepValues {
                inputs,
                scratch,
                output,
                rows: origins.len(),
                output_rows: output_rows.len(),
                sequences: sequences.len(),
            },
        };
        let clocks = watch.clocks();
        let instructions = self.instructions(watch);
        // The first matmuls of the next step follow the last of this one.
        let mut following = matmuls_of(instructions).cycle().skip(1);
        for instruction in instructions {
            let begun = clocks.then(Instant::now);
            run.executor.variant = [table.name, "", "", ""];
            match instruction {
                CpuInstruction::Write(writes) => run.write(writes, watch),
                CpuInstruction::Pack { source, width, slot, .. } => run.pack(*source, *width, *slot),
                CpuInstruction::Matmuls(matmuls) => {
                    following.next().inspect(|next| run.prefetch(next));
                    run.matmuls(matmuls, watch);
                }
                CpuInstruction::Compute(compute) if run.is_due(compute, watch) => {
                    run.compute(compute.call, compute.output);
                }
                CpuInstruction::Compute(compute) => {
                    run.report(&compute.name, &compute.shape, compute.output, watch);
                    continue;
                }
            }
            if let Some(begun) = begun {
                watch.took(&run.took(instruction, begun.elapsed()));
            }
            run.report_results(instruction, watch);
        }
        Ok(())
    }
}

/// The rows and the pairs of each table of rotations in a program of this graph.
fn rotation_shapes(graph: &Graph) -> impl Iterator<Item = (usize, usize)> {
    let pairs = |id: ValueId| graph.value(id).shape.elements();
    rotation_frequencies(graph).into_iter().map(move |id| (graph.key.rows as usize, pairs(id)))
}

/// Lists the origin of each row, and the output rows.
fn list_rows(sequences: &[Sequence<'_>], origins: &mut Vec<RowOrigin>, output_rows: &mut Vec<u32>) {
    origins.clear();
    output_rows.clear();
    for (index, sequence) in sequences.iter().enumerate() {
        let count = sequence.rows.end - sequence.rows.start;
        origins.extend(
            (0..count).map(|row| RowOrigin { sequence: index as u32, position: sequence.position + row }),
        );
        output_rows.extend(sequence.output_rows().map(|row| row as u32));
    }
}

/// The matmuls of a program, in order.
fn matmuls_of(instructions: &[CpuInstruction]) -> impl Iterator<Item = &Matmuls> + Clone {
    instructions.iter().filter_map(|instruction| match instruction {
        CpuInstruction::Matmuls(matmuls) => Some(matmuls),
        _ => None,
    })
}

/// One step while it runs.
struct CpuRun<'a> {
    executor: Executor<'a>,
    kinds: &'a [ActivationSlot],
    slots: &'a mut [Aligned<u32>],
    weights: &'a CpuWeights,
    state: &'a mut CpuState,
    step_state: &'a mut CpuState,
    rotations: &'a mut [StepRotations],
    written: &'a mut WrittenBlocks,
    /// Whether the last matmuls have applied their epilogue.
    epilogue_done: bool,
    rows: StepRows<'a>,
    values: StepValues<'a>,
}

impl CpuRun<'_> {
    /// Whether a value must be computed by its own instruction.
    fn is_due(&self, compute: &Compute, watch: &dyn Watch) -> bool {
        match compute.made {
            Made::Here => true,
            Made::InPassing => watch.wants(&compute.name),
            Made::WithMatmuls => !self.epilogue_done,
        }
    }

    fn compute(&mut self, call: OpCall, location: ValueLocation) {
        let CpuRun { executor, weights, rotations, state, step_state, rows, values, .. } = self;
        match call {
            OpCall::Alias => executor.variant[0] = "alias",
            OpCall::Embed { ids, table } => {
                let Input::Ids(ids) = values.inputs[ids] else { unreachable!("checked: embed reads ids") };
                ops::embed(executor, ids, weights.matrix(table), values.split(location, []).0);
            }
            OpCall::Norm { x, weight, epsilon } => {
                let (y, [x]) = values.split(location, [x]);
                ops::norm(executor, x, weights.vector(weight), epsilon, y);
            }
            OpCall::LayerNorm { x, weight, bias, epsilon } => {
                let (y, [x]) = values.split(location, [x]);
                let bias = bias.map(|bias| weights.vector(bias));
                ops::layer_norm(executor, x, (weights.vector(weight), bias), epsilon, y);
            }
            OpCall::Rope { x, rotation: RopeParams { frequencies, table, pairing } } => {
                let (y, [x]) = values.split(location, [x]);
                rotations[table].fill(executor, weights.vector(frequencies), *rows);
                ops::rope(executor, x, location.stride, &rotations[table], pairing, y);
            }
            OpCall::Attend { q, store, keys, values: contents, attention } => {
                let (y, [q]) = values.split(location, [q]);
                let held = match store {
                    KvStore::State => &**state,
                    KvStore::Step => &**step_state,
                };
                let heads = AttentionOperands { q, keys: held.tensor(keys), values: held.tensor(contents) };
                ops::attend(executor, heads, attention, *rows, y);
            }
            OpCall::ShortConv { x, taps, carried } => {
                let (y, [x]) = values.split(location, [x]);
                let (taps, carried) = (weights.vector(taps), state.carried_mut(carried));
                ops::short_conv(executor, x, taps, carried, location.stride, *rows, y);
            }
            OpCall::Gather { x } => {
                let (y, [x]) = values.split(location, [x]);
                ops::gather(x, location.stride, *rows, y);
            }
            OpCall::Splice { x, given } => {
                let Input::Given(given) = values.inputs[given] else {
                    unreachable!("checked: splice reads given rows")
                };
                let (y, [x]) = values.split(location, [x]);
                ops::splice(executor, x, given, location.stride, y);
            }
            OpCall::Pool { x, how } => {
                let (y, [x]) = values.split(location, [x]);
                ops::pool(executor, x, location.stride, how, *rows, y);
            }
            OpCall::Elementwise(call) => elementwise(call, executor, values, location),
        }
    }

    /// Lets idle threads prefetch the weights of the next matmuls if these are
    /// memory-bound.
    fn prefetch(&self, next: &Matmuls) {
        if self.values.rows_of(next.rows) <= NARROW {
            let weights = next.parts.iter().map(|part| self.weights.matrix(part.weight));
            let gated = matches!(next.epilogue, Some((MatmulEpilogue::Gate { .. }, _)));
            ops::prefetch(self.executor.pool, weights, gated);
        }
    }

    /// Multiplies rows by all matrices in one task, or by one after another if an
    /// output is watched, with the same bits.
    fn matmuls(&mut self, matmuls: &Matmuls, watch: &dyn Watch) {
        let Matmuls { rows, width, parts, epilogue, .. } = matmuls;
        let is_watched = parts.iter().any(|part| watch.wants(&part.name));
        self.epilogue_done = epilogue.is_some() && !is_watched;
        let results = array::from_fn(|index| Some(parts.get(index)?.output));
        match *epilogue {
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
            Some((epilogue, output)) => {
                self.linear(*rows, *width, parts, Some(epilogue), [Some(output), None, None, None]);
            }
        }
    }

    /// Multiplies rows by some matrices.
    fn linear(
        &mut self,
        rows: RowCount,
        width: usize,
        parts: &[Matmul],
        epilogue: Option<MatmulEpilogue>,
        outputs: [Option<ValueLocation>; ops::MAX_MATMULS],
    ) {
        let CpuRun { executor, kinds, slots, weights, values, .. } = self;
        let rows = values.rows_of(rows);
        let matmuls = array::from_fn(|index| {
            let part = parts.get(index)?;
            let x = PackedActivations { kind: kinds[part.slot].kind, rows, width, words: &slots[part.slot] };
            let bias = part.bias.map(|bias| weights.vector(bias));
            Some(ops::MatmulOperands { x, weight: weights.matrix(part.weight), bias })
        });
        let residual = match epilogue {
            Some(MatmulEpilogue::Add { residual }) => Some(residual),
            _ => None,
        };
        let (outputs, [residual]) = values.lend(outputs, [residual]);
        let epilogue = match epilogue {
            None => ops::Epilogue::Store,
            Some(MatmulEpilogue::Add { .. }) => ops::Epilogue::Add(residual),
            Some(MatmulEpilogue::Gate { act }) => ops::Epilogue::Gate(act),
        };
        ops::linear(executor, matmuls, epilogue, outputs);
    }

    /// Packs activations for the matmuls that follow.
    fn pack(&mut self, source: PackSource, width: usize, slot: usize) {
        let get = |location| self.values.get(location);
        let source = match source {
            PackSource::Rows { x } => SourceRows::Rows(get(x)),
            PackSource::Norm { x, weight, epsilon } => {
                SourceRows::Norm { x: get(x), weight: self.weights.vector(weight), epsilon }
            }
            PackSource::Gate { gate, up, act } => SourceRows::Gate { gate: get(gate), up: get(up), act },
        };
        self.executor.variant = [self.executor.table.name, source.name(), "", ""];
        ops::pack_activations(
            &mut self.executor,
            self.kinds[slot].kind,
            source,
            width,
            &mut self.slots[slot],
        );
    }

    /// Writes every row to its position in its sequence's state. If the rotated heads
    /// are watched, their own instruction has rotated them before.
    fn write(&mut self, writes: &StateWrites, watch: &dyn Watch) {
        let is_rotated = writes.rotated.as_ref().is_none_or(|name| watch.wants(name));
        let part = |part: StateWrite| match part.unrotated {
            Some((x, rotation)) if !is_rotated => (x, Some(rotation), part.state),
            _ => (part.x, None, part.state),
        };
        if !is_rotated {
            self.executor.variant[1] = "rope";
        }
        match writes.parts[..] {
            [one] => self.write_parts(writes.store, [part(one)]),
            [first, second] => self.write_parts(writes.store, [first, second].map(part)),
            _ => unreachable!("a task writes one or two state values"),
        }
    }

    /// Writes rows to state values or tensors of the step, and rotates those that have a rotation.
    fn write_parts<const N: usize>(
        &mut self,
        store: KvStore,
        parts: [(ValueLocation, Option<RopeParams>, usize); N],
    ) {
        let CpuRun { executor, weights, rotations, state, step_state, rows, values, written, .. } = self;
        let state = match store {
            KvStore::State => state,
            KvStore::Step => step_state,
        };
        for RopeParams { frequencies, table, .. } in parts.iter().filter_map(|part| part.1) {
            rotations[table].fill(executor, weights.vector(frequencies), *rows);
        }
        let sources = parts.map(|(x, rotation, _)| ops::write::StateRows {
            x: values.get(x),
            rotations: rotation.map(|rotation| (&rotations[rotation.table], rotation.pairing)),
        });
        let tensors = state.tensors_mut(parts.map(|(.., state)| state));
        for LostValue { row, part, value, .. } in ops::write(executor, sources, tensors, *rows, written) {
            state.add_fault(parts[part].2, row, value);
        }
    }

    /// What the last instruction did, and how long it took.
    fn took<'i>(&'i self, instruction: &'i CpuInstruction, time: Duration) -> NodeTime<'i> {
        let (name, op, rows, amount) = match instruction {
            CpuInstruction::Write(StateWrites { parts, name, .. }) => {
                (name, "write", self.values.count(parts[0].x), Amount::default())
            }
            CpuInstruction::Pack { count, name, .. } => {
                (name, "pack", self.values.rows_of(*count), Amount::default())
            }
            CpuInstruction::Matmuls(matmuls) => {
                let rows = self.values.rows_of(matmuls.rows);
                (&matmuls.name, "linear", rows, Amount::of_matmuls(matmuls, rows, self.weights))
            }
            CpuInstruction::Compute(Compute { call, output, name, op, .. }) => {
                let rows = self.values.count(*output);
                let amount = Amount::of(*call, rows, self.weights, self.state, self.rows.sequences);
                (name, *op, rows, amount)
            }
        };
        let words = &self.executor.variant;
        let variant = &words[..words.iter().take_while(|word| !word.is_empty()).count()];
        NodeTime { name, op, variant, rows, bytes: amount.bytes, operations: amount.operations, time }
    }

    /// Reports the results of an instruction to the watch.
    fn report_results(&self, instruction: &CpuInstruction, watch: &mut dyn Watch) {
        match instruction {
            CpuInstruction::Compute(Compute { name, shape, output, .. }) => {
                self.report(name, shape, *output, watch)
            }
            CpuInstruction::Matmuls(Matmuls { parts, .. }) => {
                parts.iter().for_each(|part| self.report(&part.name, &part.shape, part.output, watch));
            }
            CpuInstruction::Write(_) | CpuInstruction::Pack { .. } => {}
        }
    }

    /// Reports a value to the watch if it asked for this value.
    fn report(&self, name: &str, shape: &Shape, location: ValueLocation, watch: &mut dyn Watch) {
        if watch.wants(name) {
            let shape = shape.with_outermost(self.values.count(location));
            watch.value(name, &shape, self.values.get(location));
        }
    }
}

fn elementwise(
    call: Elementwise,
    executor: &mut Executor<'_>,
    values: &mut StepValues<'_>,
    location: ValueLocation,
) {
    let table = executor.table;
    match call {
        Elementwise::Copy { x } => {
            let (y, x) = values.split(location, [x]);
            ops::elementwise(executor, x, y, |[x], y| y.copy_from_slice(x));
        }
        Elementwise::Gate { gate, up, act } => {
            let (y, operands) = values.split(location, [gate, up]);
            ops::elementwise(executor, operands, y, |[gate, up], y| (table.gate)(act, gate, up, y));
        }
        Elementwise::Activate { x, act } => {
            let (y, x) = values.split(location, [x]);
            ops::elementwise(executor, x, y, |[x], y| (table.activate)(act, x, y));
        }
        Elementwise::Add { a, b } => {
            let (y, operands) = values.split(location, [a, b]);
            ops::elementwise(executor, operands, y, |[a, b], y| (table.add)(a, b, y));
        }
        Elementwise::Scale { x, factor } => {
            let (y, x) = values.split(location, [x]);
            ops::elementwise(executor, x, y, |[x], y| (table.scale)(x, factor, y));
        }
        Elementwise::Softcap { x, cap } => {
            let (y, x) = values.split(location, [x]);
            ops::elementwise(executor, x, y, |[x], y| {
                y.copy_from_slice(x);
                (table.softcap)(y, cap);
            });
        }
    }
}

/// The rows of values that a step brings for an input.
fn input_rows<'a>(inputs: &'a [Input<'a>], index: usize) -> &'a [f32] {
    match inputs[index] {
        Input::Rows(values) => values,
        Input::Ids(_) | Input::Given(_) => unreachable!("checked: the input has rows of values"),
    }
}

/// The inputs, intermediate values and outputs of a step.
struct StepValues<'a> {
    inputs: &'a [Input<'a>],
    scratch: &'a mut [f32],
    output: &'a mut [f32],
    rows: usize,
    output_rows: usize,
    sequences: usize,
}

impl StepValues<'_> {
    /// The number of rows of a value in this step.
    fn count(&self, location: ValueLocation) -> usize {
        self.rows_of(location.count)
    }

    fn rows_of(&self, count: RowCount) -> usize {
        match count {
            RowCount::Rows => self.rows,
            RowCount::OutputRows => self.output_rows,
            RowCount::Sequences => self.sequences,
        }
    }

    /// The values at a location.
    fn get(&self, location: ValueLocation) -> &[f32] {
        let len = self.count(location) * location.stride;
        match location.buffer {
            StepBuffer::Input(index) => input_rows(self.inputs, index),
            StepBuffer::Output => &self.output[..len],
            StepBuffer::Scratch(start) => &self.scratch[start..start + len],
        }
    }

    /// Borrows the values at one location mutably, and those at other locations for
    /// reading.
    ///
    /// # Panics
    /// As [`StepValues::lend`].
    fn split<const N: usize>(
        &mut self,
        output: ValueLocation,
        operands: [ValueLocation; N],
    ) -> (&mut [f32], [&[f32]; N]) {
        let ([output], operands) = self.lend([Some(output)], operands.map(Some));
        (output, operands)
    }

    /// Borrows the values at some locations mutably, and those at others for reading;
    /// empty where there is no location.
    ///
    /// # Panics
    /// If a location to be written overlaps another, which a correct plan rules out.
    fn lend<const W: usize, const R: usize>(
        &mut self,
        outputs: [Option<ValueLocation>; W],
        operands: [Option<ValueLocation>; R],
    ) -> ([&mut [f32]; W], [&[f32]; R]) {
        let len = |location: ValueLocation| self.rows_of(location.count) * location.stride;
        let (lens, operand_lens) =
            (outputs.map(|location| location.map(len)), operands.map(|location| location.map(len)));
        let start = |location: Option<ValueLocation>| match location?.buffer {
            StepBuffer::Scratch(start) => Some(start),
            StepBuffer::Output => None,
            StepBuffer::Input(_) => unreachable!("checked: nothing writes an input"),
        };
        let mut order: [usize; W] = array::from_fn(|index| index);
        order.sort_unstable_by_key(|&index| start(outputs[index]));
        // The scratch before each result, with its start.
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
        let (inputs, rest) = (self.inputs, &*rest);
        let operands = array::from_fn(|index| {
            let (Some(location), Some(len)) = (operands[index], operand_lens[index]) else { return &[][..] };
            let start = match location.buffer {
                StepBuffer::Input(index) => return input_rows(inputs, index),
                StepBuffer::Scratch(start) => start,
                StepBuffer::Output => {
                    unreachable!("checked: the last node writes the output, so none reads it")
                }
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
