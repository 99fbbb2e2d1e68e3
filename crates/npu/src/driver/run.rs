//! Running a step: what the host computes goes to where the array reads it,
//! and back.

use girih_graph::backend::{Inputs, Lane};
use girih_graph::{BLOCK_POSITIONS, Extent, Graph, Role, Step, ValueId};
use girih_tensor::{DType, Error, Result, Shape};

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
            lanes: step.lanes,
            values: vec![None; self.graph.values.len()],
        };
        run.begin()?;
        for (part, made) in self.groups.steps.iter().zip(&self.made) {
            match part {
                Part::Host { node } => run.host(*node as usize)?,
                Part::Array { program, tensors, each_wanted } => {
                    run.array(*program as usize, tensors, *each_wanted)?;
                }
            }
            for &value in made {
                let name = &self.graph.value(value).name;
                if step.watch.wants(name) {
                    step.watch.value(name, &run.shape(value), &run.read(value)?);
                }
            }
        }
        let output = self.graph.output().ok_or_else(|| Error::new("the program has no output"))?;
        step.output.copy_from_slice(&run.fetch(output)?);
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
    lanes: &'a [Lane<'a>],
    /// What the host holds of values that no tensor holds.
    values: Vec<Option<Vec<f32>>>,
}

impl Run<'_> {
    fn graph(&self) -> &Graph {
        &self.program.graph
    }

    /// The rows of the step.
    fn rows(&self) -> usize {
        self.lanes.last().map_or(0, |lane| lane.rows.end as usize)
    }

    /// A value's extents in this step.
    fn shape(&self, value: ValueId) -> Shape {
        let value = self.graph().value(value);
        match value.outermost {
            Extent::Rows => value.shape.with_outermost(self.rows()),
            Extent::Wanted => value.shape.with_outermost(self.wanted()),
            Extent::Fixed | Extent::Context => value.shape,
        }
    }

    fn wanted(&self) -> usize {
        self.lanes.iter().map(|lane| lane.wanted().len()).sum()
    }

    /// Writes the step's inputs, and the turns of its positions.
    fn begin(&mut self) -> Result<()> {
        if let (Inputs::Embeddings(rows), Some(input)) = (self.inputs, self.graph().input()) {
            self.store(input, rows.to_vec())?;
        }
        for (number, tensor) in self.program.groups.tensors.iter().enumerate() {
            if tensor.kind == TensorKind::Turns {
                let turns = self.turns(tensor)?;
                self.write(number, &turns)?;
            }
        }
        Ok(())
    }

    /// Cosines and sines of every row's position. The angle is rounded to
    /// `f32` first, as the definition of the rotation does.
    fn turns(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let frequencies = self.weights.rows(self.device).row(&tensor.name, 0)?;
        let mut turns = Vec::with_capacity(self.rows() * 2 * frequencies.len());
        for lane in self.lanes {
            for (_, position) in lane.rows.indexes().zip(lane.position..) {
                let angles = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
                turns.extend(angles.clone().map(|angle| angle.cos() as f32));
                turns.extend(angles.map(|angle| angle.sin() as f32));
            }
        }
        Ok(turns)
    }

    /// Puts what the host computed to where its readers look.
    fn store(&mut self, value: ValueId, numbers: Vec<f32>) -> Result<()> {
        match self.program.tensors[value.0 as usize] {
            Some(tensor) => self.write(tensor as usize, &numbers),
            None => {
                self.values[value.0 as usize] = Some(numbers);
                Ok(())
            }
        }
    }

    /// Writes rows into a tensor, rounded to bf16. What the rows do not fill
    /// is zero, so that what the array computes on padding is always the same.
    fn write(&mut self, tensor: usize, numbers: &[f32]) -> Result<()> {
        let Tensor { name, extent: [_, columns], padded, .. } = &self.program.groups.tensors[tensor];
        let row_bytes = padded[1] as usize * 2;
        let bytes = padded[0] as usize * row_bytes;
        let object = &mut self.device.map_mut(self.program.objects[tensor])[..bytes];
        object.fill(0);
        let rows = numbers.chunks_exact(*columns as usize);
        if rows.len() > padded[0] as usize {
            return Err(Error::new(format!("'{name}' has {} rows; {} fit", rows.len(), padded[0])));
        }
        for (row, into) in rows.zip(object.chunks_exact_mut(row_bytes)) {
            DType::BF16.pack(row, &mut into[..2 * row.len()]);
        }
        self.device.ledger.written_bytes += bytes as u64;
        Ok(())
    }

    /// A value's numbers, rows that count only.
    fn read(&self, value: ValueId) -> Result<Vec<f32>> {
        let shape = self.shape(value);
        let Some(tensor) = self.program.tensors[value.0 as usize] else {
            let root = crate::pass::partition::root(self.graph(), value);
            let held = self.values[root.0 as usize].clone();
            return held.ok_or_else(|| {
                Error::new(format!("'{}' is read before it is made", self.graph().value(value).name))
            });
        };
        let Tensor { extent: [_, columns], padded, .. } = self.program.groups.tensors[tensor as usize];
        let rows = shape.elements() / columns as usize;
        let mut numbers = vec![0.0; rows * columns as usize];
        let object = self.device.map(self.program.objects[tensor as usize]);
        let bytes = object.chunks_exact(padded[1] as usize * 2);
        for (row, bytes) in numbers.chunks_exact_mut(columns as usize).zip(bytes) {
            DType::BF16.unpack(&bytes[..2 * row.len()], row);
        }
        Ok(numbers)
    }

    /// As [`Run::read`], with what it costs to make the bytes visible.
    fn fetch(&mut self, value: ValueId) -> Result<Vec<f32>> {
        let numbers = self.read(value)?;
        if self.program.tensors[value.0 as usize].is_some() {
            self.device.ledger.read_bytes += 2 * numbers.len() as u64;
        }
        Ok(numbers)
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
            operands.push(if held { self.fetch(input)? } else { Vec::new() });
        }
        let rows = self.weights.rows(self.device);
        let job = Job {
            graph: &self.program.graph,
            node,
            operands: &operands,
            weights: &rows,
            inputs: self.inputs,
            lanes: self.lanes,
        };
        let (numbers, work) = (kernel.compute(&job, self.state)?, kernel.work(&job));
        drop(rows);
        self.device.ledger.add(work);
        if self.program.graph.value(node.output).role == Role::Scratch || !numbers.is_empty() {
            self.store(node.output, numbers)?;
        }
        Ok(())
    }

    fn array(&mut self, program: usize, tensors: &[u32], each_wanted: bool) -> Result<()> {
        let schedule = &self.program.schedules[program];
        for &tensor in tensors {
            if self.program.groups.tensors[tensor as usize].kind == TensorKind::Chunks {
                self.gather(tensor as usize)?;
            }
        }
        if !each_wanted {
            return self.device.submit(schedule, &self.program.bindings(tensors, None));
        }
        for row in 0..self.wanted() as u64 {
            self.device.submit(schedule, &self.program.bindings(tensors, Some(row)))?;
        }
        Ok(())
    }

    /// Lays the keys and values of the step's one sequence out in chunks.
    fn gather(&mut self, tensor: usize) -> Result<()> {
        let Tensor { name, extent: [heads, size], padded, .. } = &self.program.groups.tensors[tensor];
        let [lane] = self.lanes else {
            return Err(Error::new("attention on the array takes steps of one sequence"));
        };
        if !lane.spans.is_empty() {
            return Err(Error::new(
                "attention on the array does not know rows that see each other both ways",
            ));
        }
        let (keys, values) = name.split_once('|').unwrap_or((name, name));
        let end = lane.position as usize + lane.rows.indexes().len();
        let (heads, size) = (*heads as usize, *size as usize);
        let chunk = padded[1] as usize * 2;
        let blocks = padded[0] as usize / heads;
        let bytes = padded[0] as usize * chunk;
        let mut chunks = vec![0; bytes];
        for (block, first) in (0..blocks).zip((0..).step_by(BLOCK_POSITIONS)) {
            let seen = first..end.clamp(first, first + BLOCK_POSITIONS);
            let keys = self.state.rows(keys, lane, seen.clone())?;
            let values = self.state.rows(values, lane, seen)?;
            for head in 0..heads {
                let chunk = &mut chunks[(head * blocks + block) * chunk..][..chunk];
                fill(chunk, lane.position, [&keys, &values], head * size, heads * size, size);
            }
        }
        self.device.map_mut(self.program.objects[tensor])[..bytes].copy_from_slice(&chunks);
        self.device.ledger.written_bytes += bytes as u64;
        self.device.ledger.add(Work { flops: 0, bytes: 2 * bytes as u64 });
        Ok(())
    }
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
