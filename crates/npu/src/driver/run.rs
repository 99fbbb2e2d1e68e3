//! Runs a step: the host computes, and values move between host and array.

use std::time::Duration;

use girih_graph::backend::{Input, NodeTime, Range32, Sequence, step_count};
use girih_graph::interpret::{Values, WeightRows as _};
use girih_graph::state::PositionMajor;
use girih_graph::{BLOCK_POSITIONS, Extent, Graph, HostRows, Key, OperandKind, Role, Step, ValueId, Watch};
use girih_tensor::{DType, Error, Result, Shape};

use super::device::{Device, Sync};
use super::keys::{KeyBlockRows, RequiredSlot, SlotContent, assigned_sets, changed};
use super::program::NpuProgram;
use super::ring::{KeyStep, window_of};
use super::tensors::laid_from;
use super::traffic::{Follows, PartTransfers, TensorLocation, TensorTransfer, appended_to, copies, elements};
use super::weights::NpuWeights;
use crate::form::groups::{
    ArrayTensor, ProgramRuns, START_BYTES, StepAction as Part, TensorKind, appended_offset, first_block,
};
use crate::host::HostCost;
use crate::kernel::MAX_SPANS;
use crate::pass::partition::may_have_spans;

impl NpuProgram {
    /// Runs one step, which may have fewer rows than the program.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(
        &self,
        device: &mut Device,
        weights: &NpuWeights,
        state: &mut PositionMajor,
        results: &mut HostRows,
        step: Step<'_>,
    ) -> Result<()> {
        let mut run = StepRun {
            program: self,
            device,
            weights,
            state,
            inputs: step.inputs,
            sequences: step.sequences,
            clocks: step.watch.clocks(),
            values: vec![None; self.graph.values.len()],
            tensors: vec![None; self.groups.tensors.len()],
            locations: vec![None; self.groups.tensors.len()],
            sets: Vec::new(),
            rows_are_synced: false,
        };
        run.timed(step.watch, ("inputs", "transfer", "host"), StepRun::begin)?;
        for ((part, transfers), made) in self.groups.steps.iter().zip(&self.traffic.parts).zip(&self.made) {
            run.timed(step.watch, self.part_name(part), |run| run.part(part, transfers))?;
            for &value in made {
                let name = &self.graph.value(value).name;
                if step.watch.wants(name) {
                    step.watch.value(name, &run.shape(value), &run.watched(value)?);
                }
            }
        }
        run.record_appended()?;
        let output = self.graph.output().ok_or_else(|| Error::new("the program has no output"))?;
        run.timed(step.watch, ("results", "transfer", "host"), |run| {
            self.traffic.end.iter().try_for_each(|&end| run.down(end))
        })?;
        let count = step_count(step.sequences, self.graph.value(output).outermost);
        results.begin(count)?.copy_from_slice(&run.held(output)?);
        Ok(())
    }

    /// The name of a part of the step, its op, and where it runs.
    fn part_name(&self, part: &Part) -> (&str, &'static str, &'static str) {
        match part {
            Part::Host { node } => {
                let node = &self.graph.nodes[*node as usize];
                (&self.graph.value(node.output).name, node.op.spec().name, "host")
            }
            Part::Array { program, .. } => {
                (&self.groups.programs[*program as usize].name, "program", "array")
            }
        }
    }
}

/// A running step.
struct StepRun<'a> {
    program: &'a NpuProgram,
    device: &'a mut Device,
    weights: &'a NpuWeights,
    state: &'a mut PositionMajor,
    inputs: &'a [Input<'a>],
    sequences: &'a [Sequence<'a>],
    /// Whether the step's watch is to receive times.
    clocks: bool,
    /// Values on the host that belong to no tensor of the array.
    values: Vec<Option<Vec<f32>>>,
    /// Tensors on the host: the rows in use.
    tensors: Vec<Option<Vec<f32>>>,
    /// The location of each tensor on the array.
    locations: Vec<Option<TensorLocation>>,
    /// The set of slots of each sequence, among those of resident keys and values.
    sets: Vec<usize>,
    /// Whether the host sees all rows that programs have appended.
    rows_are_synced: bool,
}

/// A run of a program in a step.
#[derive(Clone, Copy, Debug)]
struct ArrayRun {
    program: usize,
    /// The sequence whose keys, values and positions it reads.
    sequence: usize,
    /// The first row of its tensors.
    row: u64,
}

impl StepRun<'_> {
    fn graph(&self) -> &Graph {
        &self.program.graph
    }

    /// The first row of the step among the rows of the program. A step near the end of
    /// the context lies behind rows of padding, so that no row, padding included, is
    /// behind the context: programs with attention leave out the keys that rows up to
    /// there cannot see. Programs for several sequences leave out none of these.
    fn first_row(&self) -> usize {
        let chunks = |tensor: &ArrayTensor| tensor.kind == TensorKind::Chunks;
        match self.sequences {
            [sequence]
                if self.graph().key.sequences == 1 && self.program.groups.tensors.iter().any(chunks) =>
            {
                let (key, rows) = (self.graph().key, self.rows());
                let beyond =
                    (sequence.position as usize + key.rows as usize).saturating_sub(key.context as usize);
                beyond.min((key.rows as usize).saturating_sub(rows))
            }
            _ => 0,
        }
    }

    /// The first row of a tensor that is in use: that of the step, unless the tensor's
    /// rows are others.
    fn first_row_of(&self, tensor: usize) -> usize {
        let value = self.program.values[tensor].map(|value| self.graph().value(value).outermost);
        match (self.program.groups.tensors[tensor].kind, value) {
            (TensorKind::CosSin, _) | (TensorKind::Scratch, Some(Extent::Rows)) => self.first_row(),
            _ => 0,
        }
    }

    /// The position of the first row that a program computes for a sequence.
    fn first_position(&self, sequence: &Sequence<'_>) -> u32 {
        sequence.position - self.first_row() as u32
    }

    /// The number of rows of the step.
    fn rows(&self) -> usize {
        self.sequences.last().map_or(0, |sequence| sequence.rows.end as usize)
    }

    fn output_rows(&self) -> usize {
        step_count(self.sequences, Extent::OutputRows)
    }

    /// The shape of a value in this step.
    fn shape(&self, value: ValueId) -> Shape {
        let elements = elements(self.graph(), value, self.sequences);
        let value = self.graph().value(value);
        value.shape.with_outermost(elements / value.shape.stride().max(1))
    }

    /// Does a part of the step, given by name, op and place, and reports its simulated time.
    fn timed(
        &mut self,
        watch: &mut dyn Watch,
        (name, op, place): (&str, &'static str, &'static str),
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = std::mem::take(&mut self.device.ledger);
        let outcome = work(self);
        let cost = std::mem::replace(&mut self.device.ledger, before);
        self.device.ledger += cost;
        if self.clocks {
            let time = Duration::from_secs_f64(cost.seconds(self.device.target()));
            let (variant, rows) = (&[place][..], self.rows());
            watch.took(&NodeTime { name, op, variant, rows, bytes: 0, operations: 0, time });
        }
        outcome
    }

    /// Prepares the step's inputs and rotation tables.
    fn begin(&mut self) -> Result<()> {
        self.assign_sets()?;
        let inputs: Vec<ValueId> = self.graph().inputs().map(|(id, _)| id).collect();
        for (id, input) in inputs.into_iter().zip(self.inputs) {
            if let Input::Rows(rows) = input {
                self.store(id, rows.to_vec());
            }
        }
        for (number, tensor) in self.program.groups.tensors.iter().enumerate() {
            if tensor.kind == TensorKind::CosSin {
                let table = self.rotation_table(tensor)?;
                self.tensors[number] = Some(rounded(table));
            }
        }
        self.program.traffic.begin.iter().try_for_each(|&first| self.up(first))
    }

    /// The cosines and sines of every row's position. The angle is rounded to
    /// `f32` first, as in the definition of the rotation.
    fn rotation_table(&self, tensor: &ArrayTensor) -> Result<Vec<f32>> {
        let weights = self.weights.rows(self.device);
        let frequencies = weights.rows(&tensor.name, 0..1)?;
        let mut table = Vec::with_capacity(self.rows() * 2 * frequencies.len());
        for sequence in self.sequences {
            for (_, position) in sequence.rows.indexes().zip(sequence.position..) {
                let angles = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
                table.extend(angles.clone().map(|angle| angle.cos() as f32));
                table.extend(angles.map(|angle| angle.sin() as f32));
            }
        }
        Ok(table)
    }

    fn part(&mut self, part: &Part, transfers: &PartTransfers) -> Result<()> {
        transfers.down.iter().try_for_each(|&step| self.down(step))?;
        match part {
            Part::Host { node } => {
                self.host(*node as usize)?;
                transfers.made.iter().try_for_each(|&step| self.up(step))
            }
            Part::Array { program, tensors, runs, with_spans } => {
                transfers.up.iter().try_for_each(|&step| self.up(step))?;
                let count = runs.count(self.output_rows(), self.sequences.len());
                let runs: Vec<ArrayRun> =
                    (0..count).map(|number| self.array_run(*program, *with_spans, *runs, number)).collect();
                self.array(tensors, &runs, transfers)
            }
        }
    }

    /// The run of this number of an array step.
    fn array_run(&self, program: u32, with_spans: Option<u32>, runs: ProgramRuns, number: usize) -> ArrayRun {
        let (sequence, row) = match runs {
            ProgramRuns::Once => (0, 0),
            ProgramRuns::EachOutputRow => (0, number),
            ProgramRuns::EachSequence { .. } => (number, self.sequences[number].rows.start as usize),
        };
        let has_spans = self.sequences.get(sequence).is_some_and(|sequence| !sequence.spans.is_empty());
        let program = match runs {
            ProgramRuns::EachSequence { one_row } if self.sequences[number].rows.indexes().len() == 1 => {
                one_row
            }
            _ => with_spans.filter(|_| has_spans).unwrap_or(program),
        };
        ArrayRun { program: program as usize, sequence, row: row as u64 }
    }

    /// Stores what the host computed. Values that the array will read are
    /// rounded to bf16, so that the host sees the same values.
    fn store(&mut self, value: ValueId, numbers: Vec<f32>) {
        match self.program.tensors[value.0 as usize] {
            Some(tensor) => self.tensors[tensor as usize] = Some(rounded(numbers)),
            None => self.values[value.0 as usize] = Some(numbers),
        }
    }

    /// Transfers a tensor to the array.
    fn up(&mut self, TensorTransfer { tensor, location }: TensorTransfer) -> Result<()> {
        if let TensorLocation::Resident(tensor) = location {
            return self.write_changed_keys(tensor);
        }
        let object = self.program.object(self.device, location, 0)?;
        let ArrayTensor { kind, .. } = self.program.groups.tensors[tensor as usize];
        let each = if kind == TensorKind::Chunks { self.sequences.len() as u64 } else { 1 };
        let bytes = self.program.groups.tensors[tensor as usize].bytes() * each;
        match kind {
            TensorKind::Static => {
                let weight = self.weights.copy(&self.program.groups.tensors[tensor as usize].name)?;
                self.device.map_mut(object, 0..bytes).copy_from_slice(weight);
            }
            TensorKind::Chunks => {
                let chunks = self.gather(tensor)?;
                self.device.map_mut(object, 0..bytes).copy_from_slice(&chunks);
            }
            TensorKind::RowChunks => {
                let chunks = self.lay_rows(tensor)?;
                self.device.map_mut(object, 0..bytes).copy_from_slice(&chunks);
            }
            TensorKind::Start => {
                let window = self.program.groups.tensors[tensor as usize].extent[1];
                let words = self.sequences.iter().map(|sequence| self.start_words(window, sequence));
                let words: Vec<u32> = words.collect::<Result<Vec<_>>>()?.concat();
                let bytes = self.device.map_mut(object, 0..bytes);
                bytes.fill(0);
                for (word, into) in words.iter().zip(bytes.chunks_exact_mut(4)) {
                    into.copy_from_slice(&word.to_le_bytes());
                }
            }
            TensorKind::CosSin | TensorKind::Scratch => self.write(tensor as usize, location)?,
            TensorKind::Appended => {
                return Err(Error::new(
                    "what a program appends is sent to the array; this is a bug in girih",
                ));
            }
        }
        if copies(&self.program.groups.tensors[tensor as usize], self.device.runtime()) {
            self.device.ledger.copied_bytes += bytes;
        }
        self.device.sync(object, 0..bytes, Sync::ToDevice);
        Ok(())
    }

    /// The positions of the first row and of the first key of a sequence, and the mutual spans of its rows.
    fn start_words(&self, window: u32, sequence: &Sequence<'_>) -> Result<Vec<u32>> {
        let position = self.first_position(sequence);
        // Rows that attend to all others are one span. Other spans are those of ops on the host, such as windows of an image.
        let all = [Range32 { start: 0, end: sequence.rows.indexes().len() as u32 }];
        let is_whole = self.program.groups.tensors.iter().any(|one| one.kind == TensorKind::RowChunks);
        let spans = if is_whole { &all } else { self.attended_spans(sequence)? };
        let mut words = vec![0; START_BYTES as usize / 4];
        words[..2].copy_from_slice(&[position, first_block(position, window) * BLOCK_POSITIONS as u32]);
        for (span, into) in spans.iter().zip(words[2..].chunks_exact_mut(2)) {
            into.copy_from_slice(&[span.start, span.end]);
        }
        Ok(words)
    }

    /// Writes the rows of a tensor on the host as bf16. The padding is zero, so
    /// that the array always computes the same on it.
    fn write(&mut self, tensor: usize, location: TensorLocation) -> Result<()> {
        let ArrayTensor { name, extent: [_, columns], padded, .. } = &self.program.groups.tensors[tensor];
        let unmade = || Error::new(format!("'{name}' is sent before it is computed; this is a bug in girih"));
        let numbers = self.tensors[tensor].as_ref().ok_or_else(unmade)?;
        let row_bytes = padded[1] as usize * 2;
        let bytes = padded[0] as usize * row_bytes;
        let first = self.first_row_of(tensor);
        let object = self.program.object(self.device, location, 0)?;
        let object = self.device.map_mut(object, 0..bytes as u64);
        object.fill(0);
        let rows = numbers.chunks_exact(*columns as usize);
        if first + rows.len() > padded[0] as usize {
            let rows = first + rows.len();
            return Err(Error::new(format!("'{name}' has {rows} rows; {} fit", padded[0])));
        }
        for (row, into) in rows.zip(object.chunks_exact_mut(row_bytes).skip(first)) {
            DType::BF16.pack(row, &mut into[..2 * row.len()]);
        }
        self.locations[tensor] = Some(location);
        Ok(())
    }

    /// Transfers the rows in use of a tensor to the host.
    fn down(&mut self, TensorTransfer { tensor, location }: TensorTransfer) -> Result<()> {
        let Some(value) = self.program.values[tensor as usize] else {
            return Err(Error::new("a tensor without a value is sent to the host; this is a bug in girih"));
        };
        let object = self.program.object(self.device, location, 0)?;
        let ArrayTensor { extent: [_, columns], padded, .. } = self.program.groups.tensors[tensor as usize];
        let rows = elements(self.graph(), value, self.sequences) / columns as usize;
        let (row_bytes, first) = (u64::from(padded[1]) * 2, self.first_row_of(tensor as usize) as u64);
        let begin = location.offset() + first * row_bytes;
        let range = begin..begin + rows as u64 * row_bytes;
        if let TensorLocation::Row(slot, _) = location {
            if !std::mem::replace(&mut self.rows_are_synced, true) {
                let all = self.program.traffic.slots[slot as usize];
                self.device.sync(object, 0..all, Sync::FromDevice);
            }
        } else {
            self.device.sync(object, range.clone(), Sync::FromDevice);
        }
        let bytes = self.device.map(object, range)?;
        self.tensors[tensor as usize] = Some(unpacked(bytes, row_bytes as usize, columns as usize));
        Ok(())
    }

    /// The elements of a value on the host, rows in use only.
    fn held(&self, value: ValueId) -> Result<Vec<f32>> {
        let held = match self.program.tensors[value.0 as usize] {
            Some(tensor) => self.tensors[tensor as usize].clone(),
            None => {
                let root = crate::pass::partition::root(self.graph(), value);
                self.values[root.0 as usize].clone()
            }
        };
        let name = &self.graph().value(value).name;
        held.ok_or_else(|| {
            Error::new(format!("'{name}' is read before it is computed; this is a bug in girih"))
        })
    }

    /// The elements of a value, wherever it is, without a sync and without
    /// counting.
    fn watched(&self, value: ValueId) -> Result<Vec<f32>> {
        let Some(tensor) = self.program.tensors[value.0 as usize] else { return self.held(value) };
        let Some(location) = self.locations[tensor as usize] else { return self.held(value) };
        let ArrayTensor { extent: [_, columns], padded, .. } = self.program.groups.tensors[tensor as usize];
        let bytes = self.device.peek(self.program.object(self.device, location, 0)?);
        let count = elements(self.graph(), value, self.sequences);
        let row_bytes = padded[1] as usize * 2;
        let begin = location.offset() as usize + self.first_row_of(tensor as usize) * row_bytes;
        let bytes = &bytes[begin..];
        Ok(unpacked(&bytes[..count / columns as usize * row_bytes], row_bytes, columns as usize))
    }

    /// Computes a node on the host, by its definition.
    fn host(&mut self, index: usize) -> Result<()> {
        let graph = &self.program.graph;
        let node = &graph.nodes[index];
        let mut values = Values::new(graph, self.sequences);
        graph.inputs().zip(self.inputs).for_each(|((id, _), input)| values.bring(id, *input));
        for (&operand, kind) in node.inputs.iter().zip(node.op.spec().operands) {
            // What the array reads, too, is held as the array sees it, rounded to bf16.
            let is_held = match graph.value(operand).role {
                Role::Scratch => true,
                Role::Input => !matches!(kind, OperandKind::Ids | OperandKind::Given),
                Role::Weight | Role::State(_) | Role::Output => false,
            };
            if is_held {
                values.set(operand, self.held(operand)?);
            }
        }
        values.run(index, &self.weights.rows(self.device), self.state)?;
        self.device.ledger.add(HostCost::of(graph, node, self.sequences));
        if let Some(numbers) = values.take(node.output) {
            self.store(node.output, numbers);
        }
        Ok(())
    }

    fn array(&mut self, tensors: &[u32], runs: &[ArrayRun], transfers: &PartTransfers) -> Result<()> {
        let locations = &transfers.locations;
        self.rows_are_synced = false;
        for (number, run) in runs.iter().enumerate() {
            let offset = |tensor: &ArrayTensor, location| self.offset(tensor, location, *run);
            let set = self.sets.get(run.sequence).copied().unwrap_or(0);
            let bindings = self.program.bindings(self.device, (tensors, locations), set, &offset)?;
            let follows = match transfers.follows {
                Follows::Host if number > 0 => Follows::Program,
                follows => follows,
            };
            self.device.submit(self.program.lists[run.program], &bindings, follows)?;
        }
        for (&tensor, &location) in tensors.iter().zip(locations) {
            self.locations[tensor as usize] = Some(location);
        }
        Ok(())
    }

    /// The byte offset behind its location at which a run binds a tensor.
    fn offset(&self, tensor: &ArrayTensor, location: TensorLocation, run: ArrayRun) -> Result<u64> {
        let first = self.first_slot_offset(location, run.sequence)?;
        Ok(match tensor.kind {
            TensorKind::Static => 0,
            TensorKind::Appended => first + self.appended_offset(tensor)?,
            TensorKind::Chunks if matches!(location, TensorLocation::Resident(_)) => first,
            TensorKind::Chunks => run.sequence as u64 * tensor.bytes(),
            TensorKind::Start => run.sequence as u64 * tensor.row_bytes(),
            TensorKind::CosSin | TensorKind::Scratch | TensorKind::RowChunks => run.row * tensor.row_bytes(),
        })
    }

    /// The only sequence of the step.
    fn only_sequence(&self) -> Result<&Sequence<'_>> {
        let [sequence] = self.sequences else {
            return Err(Error::new(
                "appended keys and values need a step of one sequence; this is a bug in girih",
            ));
        };
        Ok(sequence)
    }

    /// The mutual spans of a sequence, for attention on the array.
    fn attended_spans<'s>(&self, sequence: &Sequence<'s>) -> Result<&'s [Range32]> {
        let spans = sequence.spans;
        let count = spans.len();
        if count > MAX_SPANS {
            return Err(Error::new(format!(
                "a sequence has {count} spans of rows that attend to each other both ways; attention on the array \
                 supports {MAX_SPANS}: use shorter steps or attention on the host"
            )));
        }
        let Key { rows, sequences: most, .. } = self.graph().key;
        if count > 0 && rows > 1 && most == 1 && !may_have_spans(self.graph()) {
            return Err(Error::new(
                "rows of tokens have a mutual span; attention on the array supports spans of given rows only",
            ));
        }
        Ok(spans)
    }

    /// Lays out the keys and values of each sequence in chunks.
    fn gather(&mut self, number: u32) -> Result<Vec<u8>> {
        let tensor = &self.program.groups.tensors[number as usize];
        let mut chunks = vec![0; tensor.bytes() as usize * self.sequences.len()];
        for (sequence, chunks) in self.sequences.iter().zip(chunks.chunks_exact_mut(tensor.bytes() as usize))
        {
            let step = self.key_step(number, sequence);
            let blocks = step.blocks(self.program.ring(number)?.window);
            for (block, into) in blocks.zip(chunks.chunks_exact_mut(tensor.block_bytes() as usize)) {
                self.lay(tensor, sequence, (block, step.written), into)?;
            }
        }
        self.device.ledger.add(HostCost { flops: 0, bytes: 2 * chunks.len() as u64 });
        Ok(chunks)
    }

    /// Lays out the keys and values of the rows of the step in chunks.
    fn lay_rows(&mut self, number: u32) -> Result<Vec<u8>> {
        let tensor = &self.program.groups.tensors[number as usize];
        let [heads, size] = tensor.extent.map(|count| count as usize);
        let [keys, values] = laid_from(self.graph(), tensor)[..] else {
            return Err(Error::new(format!(
                "'{}' lacks keys or values; this is a bug in girih",
                tensor.name
            )));
        };
        let width = self.graph().value(keys).shape.stride();
        let (keys, values) = (self.held(keys)?, self.held(values)?);
        let mut chunks = vec![0; tensor.bytes() as usize];
        let block = BLOCK_POSITIONS * width;
        let blocks = keys.chunks(block).zip(values.chunks(block));
        for ((keys, values), into) in blocks.zip(chunks.chunks_exact_mut(heads * tensor.row_bytes() as usize))
        {
            // Further heads of the tensor are padding.
            let into = into.chunks_exact_mut(tensor.row_bytes() as usize).take(width / size);
            for (head, chunk) in into.enumerate() {
                fill(chunk, [keys, values], head * size, width, size);
            }
        }
        self.device.ledger.add(HostCost { flops: 0, bytes: 2 * tensor.bytes() });
        Ok(chunks)
    }

    /// The positions of a sequence in the step, as the tensor of chunks receives them.
    fn key_step(&self, chunks: u32, sequence: &Sequence<'_>) -> KeyStep {
        let position = self.first_position(sequence);
        let end = sequence.position + sequence.rows.indexes().len() as u32;
        let is_appended = appended_to(&self.program.groups, chunks).is_some();
        KeyStep { position, written: if is_appended { sequence.position } else { end }, end }
    }

    /// The byte offset of the first block that a sequence attends to, if the location is among resident keys and
    /// values.
    fn first_slot_offset(&self, location: TensorLocation, sequence: usize) -> Result<u64> {
        let TensorLocation::Resident(chunks) = location else { return Ok(0) };
        let position = self.first_position(&self.sequences[sequence]);
        let slot = self.program.ring(chunks)?.first_slot(position) as u64;
        Ok(slot * self.program.groups.tensors[chunks as usize].block_bytes())
    }

    /// The byte offset of the place where a program appends, from the first key among the chunks.
    fn appended_offset(&self, place: &ArrayTensor) -> Result<u64> {
        let position = self.first_position(self.only_sequence()?);
        let first = first_block(position, window_of(self.graph(), &place.name)) * BLOCK_POSITIONS as u32;
        let [heads, size] = place.extent;
        Ok(appended_offset(heads, size, position - first))
    }

    /// Assigns each sequence a set of slots of resident keys and values: that of all layers which fits the first.
    fn assign_sets(&mut self) -> Result<()> {
        let resident = self.program.resident_keys.iter().zip(0..);
        let Some((id, number)) = resident.filter_map(|(id, number)| Some(((*id)?, number))).next() else {
            return Ok(());
        };
        let held = self.sequences.iter().map(|sequence| self.blocks_before(number, sequence));
        let held = held.collect::<Result<Vec<_>>>()?;
        self.sets = assigned_sets(self.device.slot_sets(id), &held);
        self.device.use_sets(id, &self.sets);
        Ok(())
    }

    /// The blocks that a sequence has before the step and attends to: their slots and stamps.
    fn blocks_before(&self, number: u32, sequence: &Sequence<'_>) -> Result<Vec<(usize, [u64; 2])>> {
        let (name, ring) = (&self.program.groups.tensors[number as usize].name, self.program.ring(number)?);
        let position = self.first_position(sequence);
        let step = KeyStep { position, written: sequence.position, end: sequence.position };
        let blocks = step.blocks(ring.window);
        blocks.map(|block| Ok((ring.slot(position, block), self.stamps(name, sequence, block)?))).collect()
    }

    /// Records that resident chunks have the rows that programs appended to them, and that the host wrote
    /// to its state.
    fn record_appended(&mut self) -> Result<()> {
        for number in 0..self.program.groups.tensors.len() as u32 {
            let Some(id) = self.program.resident_keys[number as usize] else { continue };
            let Some((slot, rows)) = self.appended_block(number)? else { continue };
            let (keys, values) = sides(&self.program.groups.tensors[number as usize].name);
            let sequence = self.only_sequence()?;
            let position = self.first_position(sequence) as usize;
            let mut is_finite = true;
            for side in [keys, values] {
                let row = self.state.rows(side, sequence, position..position + 1)?;
                is_finite &= row.iter().all(|value| value.is_finite());
            }
            let held = self.device.slot_sets(id)[slot.0].slots[slot.1];
            self.device.set_content(id, slot, held.appended(rows, is_finite));
        }
        Ok(())
    }

    /// The set and the slot to which a program appends, and the rows of its block with those of the step; none if
    /// no program does.
    fn appended_block(&self, number: u32) -> Result<Option<((usize, usize), KeyBlockRows)>> {
        if appended_to(&self.program.groups, number).is_none() {
            return Ok(None);
        }
        let name = &self.program.groups.tensors[number as usize].name;
        let sequence = self.only_sequence()?;
        let position = self.first_position(sequence);
        let block = position as usize / BLOCK_POSITIONS;
        let rows = self.content(name, sequence, block, position + 1)?;
        Ok(Some(((self.sets[0], self.program.ring(number)?.slot(position, block)), rows)))
    }

    /// The content of a block of the keys and the values of a tensor of this name, up to the position `end`.
    fn content(&self, name: &str, sequence: &Sequence<'_>, block: usize, end: u32) -> Result<KeyBlockRows> {
        Ok(KeyBlockRows::until(end, block, self.stamps(name, sequence, block)?))
    }

    /// The stamps of a block of the keys and the values of a tensor of this name.
    fn stamps(&self, name: &str, sequence: &Sequence<'_>, block: usize) -> Result<[u64; 2]> {
        let (keys, values) = sides(name);
        Ok([self.state.stamp(keys, sequence, block)?, self.state.stamp(values, sequence, block)?])
    }

    /// Lays out one block of keys and values of a sequence up to the position `end`, all heads, into zeroed memory.
    /// Returns whether all are finite.
    fn lay(
        &self,
        tensor: &ArrayTensor,
        sequence: &Sequence<'_>,
        (block, end): (usize, u32),
        into: &mut [u8],
    ) -> Result<bool> {
        let (keys, values) = sides(&tensor.name);
        let size = tensor.extent[1] as usize;
        let first = block * BLOCK_POSITIONS;
        let seen = first..(end as usize).clamp(first, first + BLOCK_POSITIONS);
        // Further heads of the tensor are padding.
        let width = self.graph().find(keys).map_or(0, |keys| self.graph().value(keys).shape.stride());
        let keys = self.state.rows(keys, sequence, seen.clone())?;
        let values = self.state.rows(values, sequence, seen)?;
        let heads = into.chunks_exact_mut(tensor.row_bytes() as usize).take(width / size);
        for (head, chunk) in heads.enumerate() {
            fill(chunk, [&keys, &values], head * size, width, size);
        }
        Ok(into
            .chunks_exact(2)
            .all(|value| u16::from_le_bytes([value[0], value[1]]) & BF16_INFINITY != BF16_INFINITY))
    }

    /// Writes the changed blocks of resident keys and values of all sequences.
    fn write_changed_keys(&mut self, number: u32) -> Result<()> {
        for (sequence, set) in self.sequences.iter().zip(self.sets.clone()) {
            self.write_changed_blocks(number, sequence, set)?;
        }
        if let Some((slot, rows)) = self.appended_block(number)? {
            let id = self.program.resident_keys(number)?;
            let held = self.device.slot_sets(id)[slot.0].slots[slot.1];
            self.device.set_content(id, slot, held.before_append(rows));
        }
        Ok(())
    }

    /// Writes the changed blocks of resident keys and values of a sequence to a set of slots.
    fn write_changed_blocks(&mut self, number: u32, sequence: &Sequence<'_>, set: usize) -> Result<()> {
        let tensor = &self.program.groups.tensors[number as usize];
        let id = self.program.resident_keys(number)?;
        let step = self.key_step(number, sequence);
        let mut required = Vec::new();
        for need in self.program.ring(number)?.needs(step) {
            let rows = need.block.map(|block| self.content(&tensor.name, sequence, block, step.written));
            required.push(RequiredSlot { need, rows: rows.transpose()? });
        }
        let block_bytes = tensor.block_bytes();
        for run in changed(&self.device.slot_sets(id)[set].slots, &required) {
            let mut laid = vec![0; run.len() * block_bytes as usize];
            let mut contents = Vec::new();
            for (slot, into) in run.iter().zip(laid.chunks_exact_mut(block_bytes as usize)) {
                let lay = |block| self.lay(tensor, sequence, (block, step.written), into);
                contents.push(SlotContent::written(slot.rows, slot.need.block.map_or(Ok(true), lay)?));
            }
            let begin = run[0].need.slot as u64 * block_bytes;
            let bytes = begin..begin + laid.len() as u64;
            let object = self.device.slot_sets(id)[set].object;
            self.device.map_mut(object, bytes.clone()).copy_from_slice(&laid);
            self.device.ledger.add(HostCost { flops: 0, bytes: 2 * (bytes.end - bytes.start) });
            self.device.sync(object, bytes, Sync::ToDevice);
            for (slot, content) in run.iter().zip(contents) {
                self.device.set_content(id, (set, slot.need.slot), content);
            }
        }
        Ok(())
    }
}

/// The bits of an exponent in bf16 that an infinity or a NaN has.
const BF16_INFINITY: u16 = 0x7f80;

/// The names of the keys and of the values of a tensor of chunks of this name.
fn sides(name: &str) -> (&str, &str) {
    name.split_once('|').unwrap_or((name, name))
}

/// Rounds numbers to bf16.
fn rounded(mut numbers: Vec<f32>) -> Vec<f32> {
    let mut bytes = vec![0; 2 * numbers.len()];
    DType::BF16.pack(&numbers, &mut bytes);
    DType::BF16.unpack(&bytes, &mut numbers);
    numbers
}

/// Decodes rows of bf16 without their padding.
fn unpacked(bytes: &[u8], row_bytes: usize, columns: usize) -> Vec<f32> {
    let rows = bytes.chunks_exact(row_bytes);
    let mut numbers = vec![0.0; rows.len() * columns];
    for (row, bytes) in numbers.chunks_exact_mut(columns).zip(rows) {
        DType::BF16.unpack(&bytes[..2 * columns], row);
    }
    numbers
}

/// Fills a chunk with one head of keys and values; the rest stays zero.
fn fill(chunk: &mut [u8], sides: [&[f32]; 2], at: usize, stride: usize, size: usize) {
    let halves = chunk.chunks_exact_mut(BLOCK_POSITIONS * size * 2);
    for (side, half) in sides.into_iter().zip(halves) {
        for (row, into) in side.chunks_exact(stride).zip(half.chunks_exact_mut(2 * size)) {
            DType::BF16.pack(&row[at..at + size], into);
        }
    }
}
