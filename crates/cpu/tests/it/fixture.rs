//! Random numbers, weights in memory, and steps for all tests.

use std::collections::HashMap;

use girih_cpu::kernels::{Table, tables};
use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, PrecisionRule};
use girih_graph::backend::{Block, Input, Range32, Unwatched, Watch, step_count};
pub use girih_graph::testing::stored_values;
use girih_graph::{
    BLOCK_POSITIONS, Backend, Builder, Error, Graph, Key, OutputKind, Outputs, Runner, Sequence, Step,
    ValueId, WeightSource, load,
};
use girih_tensor::DType;
pub use girih_tensor::Random;

/// Weights in memory, by name.
#[derive(Default)]
pub struct Source(pub HashMap<String, Vec<u8>>);

impl Source {
    /// Random weights for a graph.
    pub fn random(graph: &Graph, random: &mut Random) -> Source {
        let weights = graph.weights();
        Source(weights.map(|(_, w)| (w.name.clone(), stored_values(w.dtype, &w.shape, random))).collect())
    }

    /// Sets about half of the units of 32 rows and `columns` columns of each matrix to zeros.
    pub fn zero_units(&mut self, graph: &Graph, columns: usize, random: &mut Random) {
        for (_, weight) in graph.weights().filter(|(_, weight)| weight.shape.extents().len() > 1) {
            let each = weight.dtype.tile().1;
            let row_bytes = weight.shape.columns() / each * weight.dtype.block_bytes();
            let unit_bytes = (columns / each).max(1) * weight.dtype.block_bytes();
            let bytes = self.0.get_mut(&weight.name).expect("the source has all weights");
            for band in bytes.chunks_mut(32 * row_bytes) {
                for unit in (0..row_bytes).step_by(unit_bytes).filter(|_| random.below(2) == 0) {
                    let rows = band.chunks_exact_mut(row_bytes);
                    rows.for_each(|row| row[unit..row_bytes.min(unit + unit_bytes)].fill(0));
                }
            }
        }
    }

    /// Gives layer 1 the weights of layer 0.
    pub fn double_layer(&mut self) {
        let layer: Vec<_> = self
            .0
            .iter()
            .filter_map(|(name, bytes)| {
                Some((format!("layers.1.{}", name.strip_prefix("layers.0.")?), bytes.clone()))
            })
            .collect();
        self.0.extend(layer);
    }

    /// The numbers of a weight.
    pub fn numbers(&self, name: &str, dtype: DType, rows: usize, columns: usize) -> Vec<f32> {
        let view = girih_tensor::View::new(dtype, rows, columns, &self.0[name]).unwrap();
        let mut values = vec![0.0; rows * columns];
        view.unpack_rows(0..rows, &mut values);
        values
    }
}

impl WeightSource for Source {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let missing = || Error::new(format!("the source has no weight '{name}'"));
        let bytes = self.0.get(name).ok_or_else(missing)?;
        into.copy_from_slice(&bytes[offset as usize..offset as usize + into.len()]);
        Ok(())
    }
}

/// An owned sequence, with blocks of its own.
#[derive(Clone, Debug)]
pub struct TestSequence {
    /// The first of its consecutive blocks, in every group.
    pub block: u32,
    pub position: u32,
    pub rows: u32,
    pub outputs: Outputs,
    pub spans: Vec<Range32>,
}

impl TestSequence {
    pub fn new(block: u32, position: u32, rows: u32) -> TestSequence {
        TestSequence { block, position, rows, outputs: Outputs::All, spans: Vec::new() }
    }
}

/// Runs one step of these sequences in a graph with one input; returns its result rows.
pub fn step(runner: &mut dyn Runner, input: Input<'_>, sequences: &[TestSequence]) -> Vec<f32> {
    step_of(runner, &[input], sequences)
}

/// As [`step`], in a graph with any number of inputs.
pub fn step_of(runner: &mut dyn Runner, inputs: &[Input<'_>], sequences: &[TestSequence]) -> Vec<f32> {
    step_watched(runner, inputs, sequences, &mut Unwatched)
}

/// As [`step_of`], with a watch.
pub fn step_watched(
    runner: &mut dyn Runner,
    inputs: &[Input<'_>],
    sequences: &[TestSequence],
    watch: &mut dyn Watch,
) -> Vec<f32> {
    let groups = runner.blocks().len();
    let lists: Vec<Vec<Block>> = sequences
        .iter()
        .map(|s| {
            let count = (s.position + s.rows).div_ceil(BLOCK_POSITIONS as u32);
            (s.block..s.block + count).map(Block).collect()
        })
        .collect();
    let blocks: Vec<Vec<&[Block]>> = lists.iter().map(|list| vec![&list[..]; groups]).collect();
    let mut next = 0;
    let sequences: Vec<Sequence<'_>> = sequences
        .iter()
        .zip(&blocks)
        .map(|(s, blocks)| {
            let rows = Range32 { start: next, end: next + s.rows };
            next = rows.end;
            Sequence { blocks, position: s.position, rows, outputs: s.outputs, spans: &s.spans }
        })
        .collect();
    runner.step(Step { inputs, sequences: &sequences, watch }).unwrap();
    let rows = step_count(&sequences, runner.max_key().output.extent());
    runner.output().rows(0..rows).unwrap().to_vec()
}

/// A key with embeddings as input and hidden states as output.
pub fn key(rows: usize, context: u32) -> Key {
    let output = OutputKind::Hidden;
    Key { rows: rows as u32, sequences: 8, context, output_rows: rows as u32, output }
}

/// The graph that yields the output rows of `value`.
pub fn finish(mut builder: Builder, value: ValueId) -> Graph {
    let taken = builder.gather("taken", value);
    builder.finish(taken)
}

/// Loads `graph` on a backend, with `blocks` blocks in each of its groups.
pub fn on<B: Backend>(backend: B, graph: &Graph, source: &Source, blocks: u32) -> Box<dyn Runner> {
    let blocks = vec![blocks; graph.groups.len()];
    load(backend, source, graph.key, &blocks, |_| Ok(graph.clone())).unwrap()
}

pub fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap()
}

pub fn cpu_with(table: Table, threads: usize) -> Cpu {
    Cpu::with_table(CpuOptions { threads, ..CpuOptions::default() }, table).unwrap()
}

/// A backend that does not round activations.
pub fn exact(table: Table, threads: usize) -> Cpu {
    let options = CpuOptions {
        threads,
        precision: PrecisionRule::Requested(ActivationPrecision::F32),
        ..CpuOptions::default()
    };
    Cpu::with_table(options, table).unwrap()
}

/// The portable kernels.
pub fn portable() -> Table {
    *tables().last().expect("the portable table is always there")
}

/// The portable kernels after a change.
pub fn changed(change: impl FnOnce(&mut Table)) -> Table {
    let mut table = portable();
    change(&mut table);
    table
}

/// The unit roundoff of `f32`.
pub const U: f64 = f32::EPSILON as f64 / 2.0;

/// The error of `n` successive roundings (Higham, §3.1).
pub fn gamma(n: usize) -> f64 {
    let n = n as f64 * U;
    n / (1.0 - n)
}

/// Describes the first value that differs from the expected one by more than
/// its bound.
pub fn disagreement(got: &[f32], expected: &[f32], bounds: &[f64]) -> Option<String> {
    assert_eq!((got.len(), expected.len()), (bounds.len(), bounds.len()), "one bound for each value");
    let values = got.iter().zip(expected).zip(bounds).enumerate();
    values.into_iter().find_map(|(index, ((&got, &expected), &bound))| {
        let distance = (f64::from(got) - f64::from(expected)).abs();
        // False for NaN.
        let agrees = distance <= bound;
        (!agrees)
            .then(|| format!("value {index} is {got}, not {expected}: {distance:e} apart, not {bound:e}"))
    })
}
