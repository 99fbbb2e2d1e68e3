//! Runs the instructions of a program. A step allocates nothing: its memory is sized for the largest step.

use std::array;
use std::cell::RefCell;
use std::mem;
use std::slice;
use std::time::{Duration, Instant};

use girih_graph::backend::{NodeTime, Sequence, Step, Watch, step_count};
use girih_graph::{Error, Graph, HostRows, Key, SunkGather, ValueId, sink_gather};
use girih_tensor::Shape;

use crate::activations::{PackedActivations, PrecisionRule, SourceRows};
use crate::amount::Amount;
use crate::bind;
use crate::bound::{OpScratch, PackSource};
use crate::instruction::{
    ActivationSlot, Compute, CpuInstruction, Made, Matmul, MatmulEpilogue, Matmuls, StateWrite, StateWrites,
};
use crate::kernels::Table;
use crate::kernels::packed::NARROW;
use crate::lower::{Lowered, lower, scratch_len, slots};
use crate::memory::Aligned;
use crate::ops::adapters::{AdapterMatrices, products_with_a};
use crate::ops::{
    self, Executor, LostValue, RotationTable, RowOrigin, StepRotations, StepRows, WrittenBlocks,
    rotation_tables,
};
use crate::pool::ThreadPool;
use crate::state::{CpuState, KvStore};
use crate::step::{CpuStep, StepWeights};
use crate::step_values::{StepValues, ValueStore};
use crate::weights::CpuWeights;

/// A compiled graph.
#[derive(Debug)]
pub struct CpuProgram {
    key: Key,
    /// Computes all rows of every value.
    all_rows: InstructionList,
    /// Computes only the output rows of some values, whose names these are; it runs unless one of them is
    /// watched.
    output_rows_only: Option<(InstructionList, Vec<String>)>,
    slots: Vec<ActivationSlot>,
    memory: RefCell<StepMemory>,
}

/// Instructions, and where the values of their graph lie.
#[derive(Debug)]
struct InstructionList {
    instructions: Vec<CpuInstruction>,
    stores: Vec<ValueStore>,
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
    /// One entry for each of [`rotation_tables`].
    rotations: Vec<StepRotations>,
    /// Memory that threads share.
    partials: Aligned<f32>,
    /// Words that threads share.
    words: Aligned<u32>,
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
        let Lowered { instructions, stores, slots } = lower(graph, weights, rule)?;
        let sunk = sink_gather(graph);
        let scratch = scratch_len(graph, sunk.as_ref());
        let output_rows_only = sunk.map(|SunkGather { graph, names }| {
            let Lowered { instructions, stores, slots: _ } = lower(&graph, weights, rule)?;
            Ok::<_, Error>((InstructionList { instructions, stores }, names))
        });
        let packed = slots.iter().map(|slot| Aligned::zeroed(slot.words, "the activations of a step"));
        let OpScratch { local, partials, words } = bind::scratch(graph, rule);
        let locals = (0..threads).map(|_| Aligned::zeroed(local, "a thread's scratch memory"));
        let rotations = rotation_shapes(graph).map(|(rows, pairs)| StepRotations::new(rows, pairs));
        let memory = StepMemory {
            scratch: Aligned::zeroed(scratch, "the scratch memory of a step")?,
            slots: packed.collect::<Result<_, _>>()?,
            locals: locals.collect::<Result<_, _>>()?,
            rotations: rotations.collect::<Result<_, _>>()?,
            partials: Aligned::zeroed(partials, "the partial sums of a step")?,
            words: Aligned::zeroed(words, "the activations of experts")?,
            origins: Vec::with_capacity(graph.key.rows as usize),
            output_rows: Vec::with_capacity(graph.key.output_rows as usize),
            written: WrittenBlocks::new(graph),
            step_state: CpuState::of_step(graph)?,
        };
        Ok(CpuProgram {
            key: graph.key,
            all_rows: InstructionList { instructions, stores },
            output_rows_only: output_rows_only.transpose()?,
            slots,
            memory: RefCell::new(memory),
        })
    }

    /// The bytes of memory that a program of this graph needs.
    pub(crate) fn plan(graph: &Graph, threads: usize, rule: PrecisionRule) -> u64 {
        let rows = size_of::<RowOrigin>() as u64 * u64::from(graph.key.rows) + WrittenBlocks::bytes(graph);
        let output_rows = size_of::<u32>() as u64 * u64::from(graph.key.output_rows);
        let OpScratch { local, partials, words } = bind::scratch(graph, rule);
        let locals = Aligned::<f32>::bytes(local).saturating_mul(threads as u64);
        let packed = slots(graph, rule).into_iter().map(|slot| Aligned::<u32>::bytes(slot.words));
        let packed = packed.fold(0, u64::saturating_add);
        let rotations = rotation_shapes(graph).map(|(rows, pairs)| StepRotations::bytes(rows, pairs));
        let rotations = rotations.fold(0, u64::saturating_add);
        let shared = Aligned::<f32>::bytes(partials).saturating_add(Aligned::<u32>::bytes(words));
        let scratch = Aligned::<f32>::bytes(scratch_len(graph, sink_gather(graph).as_ref()));
        let step_state = CpuState::step_plan(graph);
        let parts = [scratch, packed, locals, rotations, shared, rows, output_rows, step_state];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The instructions of a step: those that compute only output rows, unless a
    /// value whose rows they omit is watched.
    fn instructions(&self, watch: &dyn Watch) -> &InstructionList {
        match &self.output_rows_only {
            Some((list, names)) if !names.iter().any(|name| watch.wants(name)) => list,
            _ => &self.all_rows,
        }
    }

    /// The instructions of a step, or of one node of it, and where values lie.
    ///
    /// # Errors
    /// If no instruction computes the node alone.
    fn due(
        &self,
        only: Option<&str>,
        watch: &dyn Watch,
    ) -> Result<(&[CpuInstruction], &[ValueStore]), Error> {
        let InstructionList { instructions, stores } = match only {
            None => self.instructions(watch),
            Some(_) => &self.all_rows,
        };
        let instructions = match only {
            None => &instructions[..],
            Some(name) => node_instruction(instructions, name)?,
        };
        Ok((instructions, stores))
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

    /// Runs one step; with `only`, one node of it, by the name of its result.
    ///
    /// # Errors
    /// If no instruction computes this node alone, or a table in a file cannot be read.
    ///
    /// # Panics
    /// If the step is larger than the program's key, or its parts contradict each other.
    pub(crate) fn run(
        &self,
        (table, pool): (&Table, &ThreadPool),
        weights: &CpuWeights,
        (state, output): (&mut CpuState, &mut HostRows),
        step: Step<'_>,
        only: Option<&str>,
    ) -> Result<(), Error> {
        let Step { inputs, sequences, watch } = step;
        let StepMemory {
            scratch,
            slots,
            locals,
            rotations,
            partials,
            words,
            origins,
            output_rows,
            written,
            step_state,
        } = &mut *self.memory.borrow_mut();
        list_rows(sequences, origins, output_rows);
        rotations.iter_mut().for_each(StepRotations::clear);
        self.check_size(origins.len(), output_rows.len(), sequences.len());
        let output = output.begin(step_count(sequences, self.key.output.extent()))?;
        let (instructions, stores) = self.due(only, watch)?;
        let mut run = CpuRun {
            step: CpuStep {
                executor: Executor { table, pool, locals, partials, words, variant: [""; 4] },
                rows: StepRows { sequences, origins, output_rows },
                values: StepValues {
                    stores,
                    inputs,
                    scratch,
                    output,
                    rows: origins.len(),
                    output_rows: output_rows.len(),
                    sequences: sequences.len(),
                },
                weights: StepWeights { loaded: weights, stores },
                state,
                step_state,
                rotations,
            },
            kinds: &self.slots,
            slots,
            written,
            is_fused: false,
        };
        let clocks = watch.clocks();
        // The first matmuls of the next step follow the last of this one.
        let mut following = matmuls_of(instructions).cycle().skip(1);
        for instruction in instructions {
            let begun = clocks.then(Instant::now);
            run.step.executor.variant = [table.name, "", "", ""];
            match instruction {
                CpuInstruction::Write(writes) => run.write(writes),
                CpuInstruction::Pack { source, x, slot, .. } => run.pack(*source, *x, *slot),
                CpuInstruction::Matmuls(matmuls) => {
                    following.next().inspect(|next| run.prefetch(next));
                    run.matmuls(matmuls, watch);
                }
                CpuInstruction::Compute(compute) if run.is_due(compute, watch) => {
                    (compute.op.run)(&mut run.step);
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
        weights.finish_rows()
    }
}

/// The rows and the pairs of each table of rotations in a program of this graph.
fn rotation_shapes(graph: &Graph) -> impl Iterator<Item = (usize, usize)> {
    let pairs = |table: RotationTable| {
        let streams = table.positions.map_or(1, |positions| graph.value(positions).shape.columns());
        graph.value(table.frequencies).shape.elements() / streams
    };
    rotation_tables(graph).into_iter().map(move |table| (graph.key.rows as usize, pairs(table)))
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

/// The instruction that computes a node, and nothing else.
fn node_instruction<'l>(
    instructions: &'l [CpuInstruction],
    node: &str,
) -> Result<&'l [CpuInstruction], Error> {
    let is_node = |instruction: &CpuInstruction| matches!(instruction, CpuInstruction::Compute(Compute { name, made: Made::Here, .. }) if name == node);
    let index = instructions.iter().position(is_node).ok_or_else(|| {
        Error::new(format!("no instruction computes '{node}' by itself; this is a bug in girih"))
    })?;
    Ok(slice::from_ref(&instructions[index]))
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
    step: CpuStep<'a>,
    kinds: &'a [ActivationSlot],
    slots: &'a mut [Aligned<u32>],
    written: &'a mut WrittenBlocks,
    /// Whether the last matmuls have applied their epilogue, and have added what adapters add.
    is_fused: bool,
}

impl CpuRun<'_> {
    /// Whether a value must be computed by its own instruction.
    fn is_due(&self, compute: &Compute, watch: &dyn Watch) -> bool {
        match compute.made {
            Made::Here => true,
            Made::InPassing => watch.wants(&compute.name),
            Made::WithMatmuls => !self.is_fused,
        }
    }

    /// Lets idle threads prefetch the weights of the next matmuls if these are
    /// memory-bound.
    fn prefetch(&self, next: &Matmuls) {
        let CpuStep { executor, values, weights, .. } = &self.step;
        if values.count(next.x) <= NARROW {
            let matrices = next.parts.iter().map(|part| weights.matrix(part.weight));
            let gated = matches!(next.epilogue, Some((MatmulEpilogue::Gate { .. }, _)));
            ops::prefetch(executor.pool, matrices, gated);
        }
    }

    /// Multiplies rows by all matrices in one task, or by one after another if an
    /// output is watched, with the same bits.
    fn matmuls(&mut self, matmuls: &Matmuls, watch: &dyn Watch) {
        let Matmuls { x, parts, epilogue, .. } = matmuls;
        let is_watched = parts.iter().any(|part| {
            let of_adapters = part.adapters.iter().flat_map(|adapters| &adapters.names);
            watch.wants(&part.name) || of_adapters.into_iter().any(|name| watch.wants(name))
        });
        self.is_fused = !is_watched;
        if is_watched {
            parts.iter().for_each(|part| self.linear(*x, slice::from_ref(part), None));
        } else {
            self.linear(*x, parts, *epilogue);
        }
    }

    /// Multiplies rows by some matrices. With an epilogue there is only its output.
    fn linear(&mut self, x: ValueId, parts: &[Matmul], epilogue: Option<(MatmulEpilogue, ValueId)>) {
        let CpuRun { step: CpuStep { executor, values, weights, .. }, kinds, slots, is_fused, .. } = self;
        let (rows, width) = (values.count(x), values.stride(x));
        let (words, partials) = (mem::take(&mut executor.words), mem::take(&mut executor.partials));
        let pairs = array::from_fn(|index| {
            let adapters = parts.get(index)?.adapters.as_ref().filter(|_| *is_fused)?;
            let [a, b] = [adapters.node.a, adapters.node.b].map(|weight| weights.experts(weight));
            Some(AdapterMatrices { a, b, kinds: adapters.kinds })
        });
        let chosen = parts.iter().find_map(|part| Some(values.get(part.adapters.as_ref()?.node.chosen)));
        let x_rows = (values.get(x), width);
        let memory = (&mut *partials, &mut *words);
        let terms = products_with_a(executor, x_rows, chosen.unwrap_or_default(), pairs, memory);
        let matmuls = array::from_fn(|index| {
            let part = parts.get(index)?;
            let x = PackedActivations { kind: kinds[part.slot].kind, rows, width, words: &slots[part.slot] };
            let bias = part.bias.map(|bias| weights.vector(bias));
            Some(ops::MatmulOperands { x, weight: weights.matrix(part.weight), bias, adapters: terms[index] })
        });
        let mut outputs: [&mut [f32]; ops::MAX_MATMULS] = Default::default();
        let epilogue = match epilogue {
            None => {
                outputs = values.outputs(array::from_fn(|index| {
                    let part = parts.get(index)?;
                    let adapters = part.adapters.as_ref().filter(|_| *is_fused);
                    Some(adapters.map_or(part.output, |adapters| adapters.output))
                }));
                ops::Epilogue::Store
            }
            Some((MatmulEpilogue::Add { residual }, output)) => {
                let (output, [residual]) = values.split(output, [residual]);
                outputs[0] = output;
                ops::Epilogue::Add(residual)
            }
            Some((MatmulEpilogue::Gate { rule }, output)) => {
                outputs[0] = values.split(output, []).0;
                ops::Epilogue::Gate { rule, weights: None }
            }
        };
        ops::linear(executor, matmuls, epilogue, outputs);
        (executor.words, executor.partials) = (words, partials);
    }

    /// Packs activations for the matmuls that follow.
    fn pack(&mut self, source: PackSource, x: ValueId, slot: usize) {
        let CpuStep { executor, values, weights, .. } = &mut self.step;
        let get = |id| values.get(id);
        let source = match source {
            PackSource::Rows { x } => SourceRows::Rows(get(x)),
            PackSource::Norm { x, weight, epsilon } => {
                let weight = weight.map(|weight| weights.vector(weight));
                SourceRows::Norm { x: get(x), weight, epsilon }
            }
            PackSource::Gate { gate, up, rule } => SourceRows::Gate { gate: get(gate), up: get(up), rule },
        };
        executor.variant = [executor.table.name, source.name(), "", ""];
        let (kind, words) = (self.kinds[slot].kind, &mut self.slots[slot]);
        ops::pack_activations(executor, kind, source, values.stride(x), words);
    }

    /// Writes every row to its position in its sequence's state.
    fn write(&mut self, writes: &StateWrites) {
        match writes.parts[..] {
            [one] => self.write_parts(writes.store, [one]),
            [first, second] => self.write_parts(writes.store, [first, second]),
            _ => unreachable!("a task writes one or two state values"),
        }
    }

    /// Writes rows to state values or tensors of the step.
    fn write_parts<const N: usize>(&mut self, store: KvStore, parts: [StateWrite; N]) {
        let CpuStep { executor, rows, values, weights: _, state, step_state, rotations: _ } = &mut self.step;
        let state = match store {
            KvStore::State => state,
            KvStore::Step => step_state,
        };
        let sources = parts.map(|part| values.get(part.x));
        let tensors = state.tensors_mut(parts.map(|part| part.state));
        for LostValue { row, part, value, .. } in ops::write(executor, sources, tensors, *rows, self.written)
        {
            state.add_fault(parts[part].state, row, value);
        }
    }

    /// What the last instruction did, and how long it took.
    fn took<'i>(&'i self, instruction: &'i CpuInstruction, time: Duration) -> NodeTime<'i> {
        let rows_of = |id| self.step.values.count(id);
        let (name, op, rows, amount) = match instruction {
            CpuInstruction::Write(StateWrites { parts, name, .. }) => {
                (name, "write", rows_of(parts[0].x), Amount::default())
            }
            CpuInstruction::Pack { x, name, .. } => (name, "pack", rows_of(*x), Amount::default()),
            CpuInstruction::Matmuls(Matmuls { x, parts, name, .. }) => {
                let (rows, fused) = (rows_of(*x), self.is_fused);
                let adapters = parts.iter().filter(|_| fused).filter_map(|part| part.adapters.as_ref());
                let works =
                    parts.iter().map(|part| &part.work).chain(adapters.map(|adapters| &adapters.work));
                (name, "linear", rows, works.map(|work| work.amount(rows, &self.step)).sum())
            }
            CpuInstruction::Compute(Compute { output, work, name, op_name, .. }) => {
                let rows = rows_of(*output);
                (name, *op_name, rows, work.amount(rows, &self.step))
            }
        };
        let words = &self.step.executor.variant;
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
    fn report(&self, name: &str, shape: &Shape, id: ValueId, watch: &mut dyn Watch) {
        if watch.wants(name) {
            let shape = shape.with_outermost(self.step.values.count(id));
            watch.value(name, &shape, self.step.values.get(id));
        }
    }
}
