//! Graphs on the interpreter, fed from a table of weights.

use std::collections::HashMap;

use girih_graph::backend::{Block, Inputs, Range32, Unwatched};
use girih_graph::interpret::Interpreter;
use girih_graph::{Error, Graph, InputKind, Outputs, Runner, Sequence, Step, Watch, WeightSource, load};

use crate::forms::parse;
use crate::random::Random;

/// Weights by name, in the formats that a graph states.
pub struct Table(HashMap<String, Vec<u8>>);

impl Table {
    /// The table whose numbers `numbers` gives by name and count.
    pub fn of(graph: &Graph, mut numbers: impl FnMut(&str, usize) -> Vec<f32>) -> Table {
        let packed = graph.weights().map(|(_, value)| {
            let numbers = numbers(&value.name, value.shape.elements());
            let (rows, columns) = (value.shape.rows(), value.shape.columns());
            let bytes = value.dtype.pack_matrix(rows, columns, &numbers);
            (value.name.clone(), bytes.expect("tests use formats that are written"))
        });
        Table(packed.collect())
    }
}

impl WeightSource for Table {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let bytes = self.0.get(name).ok_or_else(|| Error::new(format!("there is no weight '{name}'")))?;
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    }
}

/// The graph of a text on the interpreter, with four blocks of state per group.
pub fn open(text: &str, numbers: impl FnMut(&str, usize) -> Vec<f32>) -> Box<dyn Runner> {
    let graph = parse(text);
    let table = Table::of(&graph, numbers);
    let blocks = vec![4; graph.groups.len()];
    load(Interpreter, &table, graph.key, &blocks, |_| Ok(graph.clone()))
        .unwrap_or_else(|error| panic!("{error}, in:\n{text}"))
}

/// Runs one step of a graph without faults, of random weights and inputs.
pub fn run_once(graph: &Graph) {
    let mut runner = open_random(&graph.to_string());
    let rows = graph.key.rows.min(graph.key.context).min(64);
    let input = graph.input().expect("a sound graph has an input");
    let tokens = vec![0; rows as usize];
    let embeddings = vec![0.5; rows as usize * graph.value(input).shape.stride()];
    let inputs = match graph.key.variant.input {
        InputKind::Tokens => Inputs::Tokens(&tokens),
        InputKind::Embeddings => Inputs::Embeddings(&embeddings),
    };
    let part = Part { outputs: Outputs::Last, ..Part::whole(rows) };
    assert_eq!(step(runner.as_mut(), inputs, &[part]).len(), runner.width());
}

/// As [`open`], with random weights that depend only on their names.
pub fn open_random(text: &str) -> Box<dyn Runner> {
    open(text, |name, count| {
        let mut random = Random(name.bytes().fold(7, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte)));
        (0..count).map(|_| random.number()).collect()
    })
}

/// One sequence's part of a step, with the same blocks in every group.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub blocks: &'a [Block],
    pub position: u32,
    pub rows: u32,
    pub outputs: Outputs,
    pub spans: &'a [Range32],
}

impl Part<'_> {
    /// All rows of a sequence of so many, in block 0.
    pub fn whole(rows: u32) -> Part<'static> {
        Part { blocks: &[Block(0)], position: 0, rows, outputs: Outputs::All, spans: &[] }
    }
}

/// Runs a step of these parts, which `runner` must accept.
pub fn step(runner: &mut dyn Runner, inputs: Inputs<'_>, parts: &[Part<'_>]) -> Vec<f32> {
    watched(runner, inputs, parts, &mut Unwatched)
}

pub fn watched(
    runner: &mut dyn Runner,
    inputs: Inputs<'_>,
    parts: &[Part<'_>],
    watch: &mut dyn Watch,
) -> Vec<f32> {
    let groups = runner.blocks().len();
    let blocks: Vec<Vec<&[Block]>> = parts.iter().map(|part| vec![part.blocks; groups]).collect();
    let mut end = 0;
    let sequences: Vec<Sequence<'_>> = parts
        .iter()
        .zip(&blocks)
        .map(|(part, blocks)| {
            let start = end;
            end += part.rows;
            let Part { position, outputs, spans, .. } = *part;
            Sequence { blocks, position, rows: Range32 { start, end }, outputs, spans }
        })
        .collect();
    let output_rows: u32 = parts.iter().map(|part| part.outputs.count(part.rows)).sum();
    let mut output = vec![f32::NAN; output_rows as usize * runner.width()];
    let step = Step { inputs, sequences: &sequences, output: &mut output, watch };
    runner.step(step).unwrap_or_else(|error| panic!("{error}"));
    output
}
