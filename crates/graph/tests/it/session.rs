//! Runs graphs on the interpreter, with weights from a table.

use std::collections::HashMap;

use girih_graph::backend::{Block, GivenRows, Input, Range32, Unwatched, step_count};
use girih_graph::interpret::Interpreter;
use girih_graph::{Error, Graph, InputKind, Outputs, Runner, Sequence, Step, Watch, WeightSource, load};
use girih_tensor::Random;

use crate::forms::parse;

/// Weights by name, in the formats that a graph states.
pub struct WeightTable(HashMap<String, Vec<u8>>);

impl WeightTable {
    /// The table with `numbers(name, count)` for each weight.
    pub fn of(graph: &Graph, mut numbers: impl FnMut(&str, usize) -> Vec<f32>) -> WeightTable {
        let packed = graph.weights().map(|(_, value)| {
            let numbers = numbers(&value.name, value.shape.elements());
            let (rows, columns) = (value.shape.rows(), value.shape.columns());
            let bytes = value.dtype.pack_matrix(rows, columns, &numbers);
            (value.name.clone(), bytes.expect("tests use formats that can be packed"))
        });
        WeightTable(packed.collect())
    }
}

impl WeightSource for WeightTable {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let bytes = self.0.get(name).ok_or_else(|| Error::new(format!("there is no weight '{name}'")))?;
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    }
}

/// The graph of a text on the interpreter, with four blocks of state per group.
pub fn open(text: &str, numbers: impl FnMut(&str, usize) -> Vec<f32>) -> Box<dyn Runner> {
    let graph = parse(text);
    let table = WeightTable::of(&graph, numbers);
    let blocks = vec![4; graph.groups.len()];
    load(Interpreter, &table, graph.key, &blocks, |_| Ok(graph.clone()))
        .unwrap_or_else(|error| panic!("{error}, in:\n{text}"))
}

/// Runs one step of a graph without faults, of random weights; its last output has the values of
/// one row, or of each sequence.
pub fn run_once(graph: &Graph) {
    let mut runner = open_random(&graph.to_string());
    let rows = graph.key.rows.min(graph.key.context).min(64) as usize;
    let ids = vec![0; rows];
    let specs = runner.inputs().to_vec();
    let values = specs.iter().map(|spec| match spec.kind {
        InputKind::Ids { .. } => Vec::new(),
        InputKind::Rows { width } => vec![0.5; rows * width],
        InputKind::Given { width } => vec![0.25; width],
    });
    let values: Vec<Vec<f32>> = values.collect();
    let given: Vec<_> = values.iter().map(|values| [GivenRows { first_row: 0, values }]).collect();
    let inputs = specs.iter().zip(values.iter().zip(&given)).map(|(spec, (values, given))| match spec.kind {
        InputKind::Ids { .. } => Input::Ids(&ids),
        InputKind::Rows { .. } => Input::Rows(values),
        InputKind::Given { .. } => Input::Given(given),
    });
    let inputs: Vec<Input<'_>> = inputs.collect();
    let sequence = TestSequence { outputs: Outputs::Last, ..TestSequence::whole(rows as u32) };
    let out = watched(runner.as_mut(), &inputs, &[sequence], &mut Unwatched);
    assert_eq!(out.len(), runner.width());
}

/// Random weights that depend only on their names.
pub fn random_weights(graph: &Graph) -> WeightTable {
    WeightTable::of(graph, random_numbers)
}

fn random_numbers(name: &str, count: usize) -> Vec<f32> {
    let mut random = Random(name.bytes().fold(7, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte)));
    (0..count).map(|_| random.number()).collect()
}

/// As [`open`], with random weights that depend only on their names.
pub fn open_random(text: &str) -> Box<dyn Runner> {
    open(text, random_numbers)
}

/// One sequence of a step, with the same blocks in every group.
#[derive(Clone, Copy)]
pub struct TestSequence<'a> {
    pub blocks: &'a [Block],
    pub position: u32,
    pub rows: u32,
    pub outputs: Outputs,
    pub spans: &'a [Range32],
}

impl TestSequence<'_> {
    /// A sequence of `rows` rows from position 0 in block 0; all are output rows.
    pub fn whole(rows: u32) -> TestSequence<'static> {
        TestSequence { blocks: &[Block(0)], position: 0, rows, outputs: Outputs::All, spans: &[] }
    }
}

/// Runs a step of these sequences, which `runner` must accept, and returns its result rows.
pub fn step(runner: &mut dyn Runner, input: Input<'_>, sequences: &[TestSequence<'_>]) -> Vec<f32> {
    watched(runner, &[input], sequences, &mut Unwatched)
}

/// As [`step`], with several inputs and a watch.
pub fn watched(
    runner: &mut dyn Runner,
    inputs: &[Input<'_>],
    sequences: &[TestSequence<'_>],
    watch: &mut dyn Watch,
) -> Vec<f32> {
    let groups = runner.blocks().len();
    let blocks: Vec<Vec<&[Block]>> = sequences.iter().map(|sequence| vec![sequence.blocks; groups]).collect();
    let mut end = 0;
    let sequences: Vec<Sequence<'_>> = sequences
        .iter()
        .zip(&blocks)
        .map(|(sequence, blocks)| {
            let start = end;
            end += sequence.rows;
            let TestSequence { position, outputs, spans, .. } = *sequence;
            Sequence { blocks, position, rows: Range32 { start, end }, outputs, spans }
        })
        .collect();
    let results = step_count(&sequences, runner.max_key().output.extent());
    let step = Step { inputs, sequences: &sequences, watch };
    runner.step(step).unwrap_or_else(|error| panic!("{error}"));
    runner.output().rows(0..results).expect("the interpreter's results are in memory").to_vec()
}
