//! Running a step: what the host computes goes to where the array reads it,
//! and back.

use girih_graph::backend::{Inputs, Sequence};
use girih_graph::{BLOCK_POSITIONS, Graph, Role, Step, ValueId};
use girih_tensor::{DType, Error, Result, Shape};

use super::device::Sync;
use super::keys::{Held, Seen, changed};
use super::traffic::{Move, Passing, Place, copies, elements, sees_all};
use super::{Device, Program, Weights};
use crate::form::groups::{CHUNK_HEAD, Step as Part, Tensor, TensorKind};
use crate::host::{self, Cache, Job, Rows as _, Work};

impl Program {
    /// Runs one step on rows that may be fewer than the program's.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(
        &self,
        device: &mut Device,
        weights: &Weights,
        state: &mut Cache,
        step: Step<'_>,
    ) -> Result<()> {
        let mut run = Run {
            program: self,
            device,
            weights,
            state,
            inputs: step.inputs,
            sequences: step.sequences,
            values: vec![None; self.graph.values.len()],
            tensors: vec![None; self.groups.tensors.len()],
            places: vec![None; self.groups.tensors.len()],
        };
        run.begin()?;
        for ((part, passing), made) in self.groups.steps.iter().zip(&self.traffic.parts).zip(&self.made) {
            run.part(part, passing)?;
            for &value in made {
                let name = &self.graph.value(value).name;
                if step.watch.wants(name) {
                    step.watch.value(name, &run.shape(value), &run.watched(value)?);
                }
            }
        }
        let output = self.graph.output().ok_or_else(|| Error::new("the program has no output"))?;
        self.traffic.end.iter().try_for_each(|&end| run.down(end))?;
        step.output.copy_from_slice(&run.held(output)?);
        Ok(())
    }
}

/// A step under way.
struct Run<'a> {
    program: &'a Program,
    device: &'a mut Device,
    weights: &'a Weights,
    state: &'a mut Cache,
    inputs: Inputs<'a>,
    sequences: &'a [Sequence<'a>],
    /// What the host holds of values that no tensor holds.
    values: Vec<Option<Vec<f32>>>,
    /// What the host holds of tensors: rows that count.
    tensors: Vec<Option<Vec<f32>>>,
    /// Where the array has each tensor.
    places: Vec<Option<Place>>,
}

impl Run<'_> {
    fn graph(&self) -> &Graph {
        &self.program.graph
    }

    /// The rows of the step.
    fn rows(&self) -> usize {
        self.sequences.last().map_or(0, |sequence| sequence.rows.end as usize)
    }

    fn output_rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.output_rows().len()).sum()
    }

    /// A value's extents in this step.
    fn shape(&self, value: ValueId) -> Shape {
        let elements = elements(self.graph(), value, self.rows(), self.output_rows());
        let value = self.graph().value(value);
        value.shape.with_outermost(elements / value.shape.stride().max(1))
    }

    /// Makes the step's inputs, and the turns of its positions.
    fn begin(&mut self) -> Result<()> {
        if let (Inputs::Embeddings(rows), Some(input)) = (self.inputs, self.graph().input()) {
            self.store(input, rows.to_vec());
        }
        for (number, tensor) in self.program.groups.tensors.iter().enumerate() {
            if tensor.kind == TensorKind::Turns {
                let turns = self.turns(tensor)?;
                self.tensors[number] = Some(rounded(turns));
            }
        }
        self.program.traffic.begin.iter().try_for_each(|&first| self.up(first))
    }

    /// Cosines and sines of every row's position. The angle is rounded to
    /// `f32` first, as the definition of the rotation does.
    fn turns(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let frequencies = self.weights.rows(self.device).row(&tensor.name, 0)?;
        let mut turns = Vec::with_capacity(self.rows() * 2 * frequencies.len());
        for sequence in self.sequences {
            for (_, position) in sequence.rows.indexes().zip(sequence.position..) {
                let angles = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
                turns.extend(angles.clone().map(|angle| angle.cos() as f32));
                turns.extend(angles.map(|angle| angle.sin() as f32));
            }
        }
        Ok(turns)
    }

    fn part(&mut self, part: &Part, passing: &Passing) -> Result<()> {
        passing.down.iter().try_for_each(|&step| self.down(step))?;
        match part {
            Part::Host { node } => {
                self.host(*node as usize)?;
                passing.made.iter().try_for_each(|&step| self.up(step))
            }
            Part::Array { program, tensors, each_output_row } => {
                passing.up.iter().try_for_each(|&step| self.up(step))?;
                self.array(*program as usize, tensors, *each_output_row, passing)
            }
        }
    }

    /// Keeps what the host computed. What the array will read is rounded as it
    /// will see it, so that the host sees the same.
    fn store(&mut self, value: ValueId, numbers: Vec<f32>) {
        match self.program.tensors[value.0 as usize] {
            Some(tensor) => self.tensors[tensor as usize] = Some(rounded(numbers)),
            None => self.values[value.0 as usize] = Some(numbers),
        }
    }

    /// Writes a tensor to where the array reads it.
    fn up(&mut self, Move { tensor, place }: Move) -> Result<()> {
        if let Place::Kept(tensor) = place {
            return self.keep(tensor);
        }
        let object = self.program.object(self.device, place)?;
        let Tensor { kind, .. } = self.program.groups.tensors[tensor as usize];
        let bytes = self.program.groups.tensors[tensor as usize].bytes();
        match kind {
            TensorKind::Static => {
                let weight = self.weights.copy(&self.program.groups.tensors[tensor as usize].name)?;
                self.device.map_mut(object, 0..bytes).copy_from_slice(weight);
            }
            TensorKind::Chunks => {
                let chunks = self.gather(tensor as usize)?;
                self.device.map_mut(object, 0..bytes).copy_from_slice(&chunks);
            }
            TensorKind::Turns | TensorKind::Scratch => self.write(tensor as usize, place)?,
        }
        if copies(&self.program.groups.tensors[tensor as usize], self.device.runtime()) {
            self.device.ledger.copied_bytes += bytes;
        }
        self.device.sync(object, 0..bytes, Sync::ToDevice);
        Ok(())
    }

    /// Writes the rows that the host holds of a tensor, as bf16. What they do
    /// not fill is zero, so that what the array computes on padding is always
    /// the same.
    fn write(&mut self, tensor: usize, place: Place) -> Result<()> {
        let Tensor { name, extent: [_, columns], padded, .. } = &self.program.groups.tensors[tensor];
        let unmade = || Error::new(format!("'{name}' is sent before it is made; this is a fault of girih"));
        let numbers = self.tensors[tensor].as_ref().ok_or_else(unmade)?;
        let row_bytes = padded[1] as usize * 2;
        let bytes = padded[0] as usize * row_bytes;
        let object = self.program.object(self.device, place)?;
        let object = self.device.map_mut(object, 0..bytes as u64);
        object.fill(0);
        let rows = numbers.chunks_exact(*columns as usize);
        if rows.len() > padded[0] as usize {
            return Err(Error::new(format!("'{name}' has {} rows; {} fit", rows.len(), padded[0])));
        }
        for (row, into) in rows.zip(object.chunks_exact_mut(row_bytes)) {
            DType::BF16.pack(row, &mut into[..2 * row.len()]);
        }
        self.places[tensor] = Some(place);
        Ok(())
    }

    /// Brings the rows of a tensor that count to the host.
    fn down(&mut self, Move { tensor, place }: Move) -> Result<()> {
        let Some(value) = self.program.values[tensor as usize] else {
            return Err(Error::new("what holds no value comes to the host; this is a fault of girih"));
        };
        let object = self.program.object(self.device, place)?;
        let Tensor { extent: [_, columns], padded, .. } = self.program.groups.tensors[tensor as usize];
        let rows = elements(self.graph(), value, self.rows(), self.output_rows()) / columns as usize;
        let row_bytes = u64::from(padded[1]) * 2;
        self.device.sync(object, 0..rows as u64 * row_bytes, Sync::FromDevice);
        let bytes = self.device.map(object, 0..rows as u64 * row_bytes)?;
        self.tensors[tensor as usize] = Some(unpacked(bytes, row_bytes as usize, columns as usize));
        Ok(())
    }

    /// A value's numbers as the host holds them, rows that count only.
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
            Error::new(format!("'{name}' is read before it is made; this is a fault of girih"))
        })
    }

    /// A value's numbers wherever they are: nothing is synced or counted.
    fn watched(&self, value: ValueId) -> Result<Vec<f32>> {
        let Some(tensor) = self.program.tensors[value.0 as usize] else { return self.held(value) };
        let Some(place) = self.places[tensor as usize] else { return self.held(value) };
        let Tensor { extent: [_, columns], padded, .. } = self.program.groups.tensors[tensor as usize];
        let bytes = self.device.peek(self.program.object(self.device, place)?);
        let count = elements(self.graph(), value, self.rows(), self.output_rows());
        let row_bytes = padded[1] as usize * 2;
        Ok(unpacked(&bytes[..count / columns as usize * row_bytes], row_bytes, columns as usize))
    }

    fn host(&mut self, node: usize) -> Result<()> {
        let node = &self.program.graph.nodes[node];
        let kernel = host::kernel(node.op);
        let kernel =
            kernel.ok_or_else(|| Error::new(format!("the host has no kernel for {}", node.op.name())))?;
        let mut operands = Vec::new();
        for &input in &node.inputs {
            let value = self.program.graph.value(input);
            let held = value.role == Role::Scratch
                || (value.role == Role::Input && matches!(self.inputs, Inputs::Embeddings(_)));
            operands.push(if held { self.held(input)? } else { Vec::new() });
        }
        let rows = self.weights.rows(self.device);
        let job = Job {
            graph: &self.program.graph,
            node,
            operands: &operands,
            weights: &rows,
            inputs: self.inputs,
            sequences: self.sequences,
        };
        let (numbers, work) = (kernel.compute(&job, self.state)?, kernel.work(&job));
        drop(rows);
        self.device.ledger.add(work);
        if self.program.graph.value(node.output).role == Role::Scratch || !numbers.is_empty() {
            self.store(node.output, numbers);
        }
        Ok(())
    }

    fn array(
        &mut self,
        program: usize,
        tensors: &[u32],
        each_output_row: bool,
        passing: &Passing,
    ) -> Result<()> {
        let (list, places) = (self.program.lists[program], &passing.places);
        if each_output_row {
            for row in 0..self.output_rows() as u64 {
                let bindings = self.program.bindings(self.device, tensors, places, Some(row))?;
                self.device.submit(list, &bindings, passing.follows || row > 0)?;
            }
        } else {
            let bindings = self.program.bindings(self.device, tensors, places, None)?;
            self.device.submit(list, &bindings, passing.follows)?;
        }
        for (&tensor, &place) in tensors.iter().zip(places) {
            self.places[tensor as usize] = Some(place);
        }
        Ok(())
    }

    /// The step's one sequence, where the array attends to it.
    fn attended(&self) -> Result<&Sequence<'_>> {
        let [sequence] = self.sequences else {
            return Err(Error::new("attention on the array takes steps of one sequence"));
        };
        if !sequence.spans.is_empty() {
            return Err(Error::new(
                "attention on the array does not know rows that see each other both ways",
            ));
        }
        Ok(sequence)
    }

    /// The keys and values of the step's one sequence, laid out in chunks.
    fn gather(&mut self, tensor: usize) -> Result<Vec<u8>> {
        let tensor = &self.program.groups.tensors[tensor];
        let heads = tensor.extent[0] as usize;
        let mut chunks = vec![0; tensor.bytes() as usize];
        let block_bytes = heads * tensor.row_bytes() as usize;
        for (block, into) in chunks.chunks_exact_mut(block_bytes).enumerate() {
            self.lay(tensor, block, into)?;
        }
        self.device.ledger.add(Work { flops: 0, bytes: 2 * tensor.bytes() });
        Ok(chunks)
    }

    /// Lays a block of keys and values out, all heads, over zeros.
    fn lay(&self, tensor: &Tensor, block: usize, into: &mut [u8]) -> Result<()> {
        let sequence = self.attended()?;
        let (keys, values) = tensor.name.split_once('|').unwrap_or((&tensor.name, &tensor.name));
        let (heads, size) = (tensor.extent[0] as usize, tensor.extent[1] as usize);
        let end = sequence.position as usize + sequence.rows.indexes().len();
        let first = block * BLOCK_POSITIONS;
        let seen = first..end.clamp(first, first + BLOCK_POSITIONS);
        let keys = self.state.rows(keys, sequence, seen.clone())?;
        let values = self.state.rows(values, sequence, seen)?;
        for (head, chunk) in into.chunks_exact_mut(tensor.row_bytes() as usize).enumerate() {
            fill(chunk, sequence.position, [&keys, &values], head * size, heads * size, size);
        }
        Ok(())
    }

    /// Writes what has changed of keys and values that stay.
    fn keep(&mut self, number: u32) -> Result<()> {
        let tensor = &self.program.groups.tensors[number as usize];
        let id = self.program.kept(number)?;
        let sequence = self.attended()?;
        let (keys, values) = tensor.name.split_once('|').unwrap_or((&tensor.name, &tensor.name));
        let end = sequence.position + sequence.rows.indexes().len() as u32;
        let seen = Seen { position: sequence.position, end, full: sees_all(self.graph(), &tensor.name) };
        let count = self.device.kept(id).blocks.len();
        let mut wanted = vec![Held::default(); count];
        let filled = (end as usize).div_ceil(BLOCK_POSITIONS);
        for (block, wanted) in wanted.iter_mut().enumerate().take(filled) {
            let stamps =
                [self.state.stamp(keys, sequence, block)?, self.state.stamp(values, sequence, block)?];
            *wanted = seen.wanted(block, stamps);
        }
        let mut held = self.device.kept(id).blocks.clone();
        let block_bytes = u64::from(tensor.extent[0]) * tensor.row_bytes();
        for range in changed(seen, &held, &wanted) {
            let bytes = range.start as u64 * block_bytes..range.end as u64 * block_bytes;
            let mut laid = vec![0; (bytes.end - bytes.start) as usize];
            for (block, into) in range.clone().zip(laid.chunks_exact_mut(block_bytes as usize)) {
                if wanted[block].stamps.is_some() {
                    self.lay(tensor, block, into)?;
                }
            }
            let object = self.device.kept(id).object;
            self.device.map_mut(object, bytes.clone()).copy_from_slice(&laid);
            self.device.ledger.add(Work { flops: 0, bytes: 2 * (bytes.end - bytes.start) });
            self.device.sync(object, bytes, Sync::ToDevice);
            held[range.clone()].copy_from_slice(&wanted[range]);
        }
        self.device.note(id, &held);
        Ok(())
    }
}

/// What is left of numbers when they are stored as bf16.
fn rounded(mut numbers: Vec<f32>) -> Vec<f32> {
    let mut bytes = vec![0; 2 * numbers.len()];
    DType::BF16.pack(&numbers, &mut bytes);
    DType::BF16.unpack(&bytes, &mut numbers);
    numbers
}

/// Rows of bf16, without their padding.
fn unpacked(bytes: &[u8], row_bytes: usize, columns: usize) -> Vec<f32> {
    let rows = bytes.chunks_exact(row_bytes);
    let mut numbers = vec![0.0; rows.len() * columns];
    for (row, bytes) in numbers.chunks_exact_mut(columns).zip(rows) {
        DType::BF16.unpack(&bytes[..2 * columns], row);
    }
    numbers
}

/// Fills a chunk with where the step begins, and with one head of keys and of
/// values; what they do not fill stays zero.
fn fill(chunk: &mut [u8], start: u32, sides: [&[f32]; 2], at: usize, stride: usize, size: usize) {
    chunk[..4].copy_from_slice(&start.to_le_bytes());
    let half = BLOCK_POSITIONS * size * 2;
    let places = chunk[CHUNK_HEAD as usize..].chunks_exact_mut(half);
    for (side, place) in sides.into_iter().zip(places) {
        for (row, into) in side.chunks_exact(stride).zip(place.chunks_exact_mut(2 * size)) {
            DType::BF16.pack(&row[at..at + size], into);
        }
    }
}
