//! A hidden KV cache against the interpreter, while sequences are continued, copied and taken back.

use std::collections::HashMap;

use girih_graph::backend::{Block, Input, Range32, Sequence, Step, Unwatched};
use girih_graph::description::{AnyBackend, BackendChoice};
use girih_graph::interpret::Interpreter;
use girih_graph::testing::{U, WeightTable};
use girih_graph::{Builder, Graph, GroupId, Key, Op, OutputKind, Outputs, Pairing, Runner, Span, ValueId};
use girih_tensor::{DType, Random, Shape};

use crate::opened::{open, processor};

const CONTEXT: u32 = 128;
const ROWS: u32 = 48;
const SEQUENCES: u32 = 3;
/// Tokens of the tables.
const TOKENS: usize = 40;
/// Heads of queries and of keys, and their size.
const HEADS: usize = 4;
const GROUPS: usize = 2;
const SIZE: usize = 8;
/// Blocks of each group: two for each sequence.
const BLOCKS: u32 = 2 * SEQUENCES;
/// The largest magnitude in the tables, but for one value that f16 cannot hold.
const MOST: f64 = 1.0;

/// Attention to all positions and to the last 20, of rows of tables.
fn graph(key: Key, state: DType) -> Graph {
    let mut builder = Builder::new(key);
    let ids = builder.input("tokens", &[], DType::I32);
    let frequencies = builder.weight("frequencies", Shape::vector(SIZE / 2), DType::F32);
    let mut heads = |name: &str, count: usize| {
        let table = builder.weight(name, Shape::matrix(TOKENS, count * SIZE), DType::F32);
        let flat = builder.shaped(&format!("{name}.rows"), Op::Embed, &[ids, table], &[count * SIZE]);
        builder.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &[count, SIZE])
    };
    let [q, k, v] = [heads("q", HEADS), heads("k", GROUPS), heads("v", GROUPS)];
    let rope = Op::Rope { pairing: Pairing::Halves, factor: None };
    let [q, k] =
        [("q.rotated", q), ("k.rotated", k)].map(|(name, x)| builder.same(name, rope, &[x, frequencies]));
    let mut attend = |name: &str, span: Span| -> ValueId {
        let group = builder.group(span);
        let [keys, values] = ["keys", "values"]
            .map(|part| builder.state(&format!("{name}.{part}"), &[GROUPS, SIZE], state, group));
        builder.write(k, keys);
        builder.write(v, values);
        builder.same(name, Op::Attend { scale: 0.5, span, softcap: None }, &[q, keys, values])
    };
    let [far, near] = [attend("far", Span::Full), attend("near", Span::Window(20))];
    let sum = builder.same("sum", Op::Add, &[far, near]);
    let flat = builder.shaped("flat", Op::Reshape, &[sum], &[HEADS * SIZE]);
    let rows = builder.gather("outputs", flat);
    builder.finish(rows)
}

/// The largest difference of two results. A score is `0.5 · Σ q·k` over 8 products of rotated numbers below √2, so at most 8,
/// with 17 roundings; so powers are off by twice 17 · 8 of their size and two more of the function, and sums of at most
/// 128 of them and their products with values by 128 each. Both sides round, and two results are added. Keys and values
/// in f16 have another rounding of 2⁻¹¹, which moves scores and results by as much.
fn allowed(state: DType) -> f64 {
    let rounding = if state == DType::F16 { 2.0_f64.powi(-11) * (2.0 * 8.0 + 1.0) } else { 0.0 };
    let single = (2.0 * 17.0 * 8.0 + 2.0 + 2.0 * f64::from(CONTEXT)) * U;
    2.0 * 2.0 * (single + rounding) * MOST
}

/// A sequence with its blocks of each group.
#[derive(Clone)]
struct Own {
    tokens: Vec<u32>,
    blocks: [Block; 2],
}

/// Both backends with the same steps.
struct Both {
    runners: [Box<dyn Runner>; 2],
    allowed: f64,
}

impl Both {
    fn new(choice: &BackendChoice, state: DType, random: &mut Random) -> Both {
        let key = Key {
            rows: ROWS,
            sequences: SEQUENCES,
            context: CONTEXT,
            output_rows: ROWS,
            output: OutputKind::Hidden,
        };
        let mut table = |count: usize| -> Vec<u8> {
            let numbers = (0..count).map(|_| (random.below(2001) as f32 - 1000.0) / 1000.0);
            numbers.flat_map(f32::to_le_bytes).collect()
        };
        let weights = [
            ("q", table(TOKENS * HEADS * SIZE)),
            ("k", table(TOKENS * GROUPS * SIZE)),
            ("v", table(TOKENS * GROUPS * SIZE)),
            ("frequencies", table(SIZE / 2)),
        ];
        let weights = WeightTable(
            weights.map(|(name, bytes)| (name.to_owned(), bytes)).into_iter().collect::<HashMap<_, _>>(),
        );
        let backends: [Box<dyn AnyBackend>; 2] = [Box::new(Interpreter), open(choice)];
        let load = |backend: Box<dyn AnyBackend>| {
            backend
                .load(&weights, key, &[BLOCKS, BLOCKS], &|key| Ok(graph(key, state)))
                .expect("it runs the graph")
        };
        Both { runners: backends.map(load), allowed: allowed(state) }
    }

    /// Runs new tokens of some sequences, and compares all results.
    fn step(&mut self, sequences: &mut [Own], new: &[(usize, Vec<u32>)]) {
        let ids: Vec<u32> = new.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let blocks: Vec<[&[Block]; 2]> =
            new.iter().map(|(index, _)| [&sequences[*index].blocks[..]; 2]).collect();
        let mut start = 0;
        let step: Vec<Sequence<'_>> = new
            .iter()
            .zip(&blocks)
            .map(|((index, tokens), blocks)| {
                let rows = Range32 { start, end: start + tokens.len() as u32 };
                start = rows.end;
                let position = sequences[*index].tokens.len() as u32;
                Sequence { blocks, position, rows, outputs: Outputs::All, spans: &[] }
            })
            .collect();
        let [want, got] = self.runners.each_mut().map(|runner| {
            let inputs = [Input::Ids(&ids)];
            runner
                .step(Step { inputs: &inputs, sequences: &step, watch: &mut Unwatched })
                .expect("the step is right");
            runner.output().rows(0..ids.len()).expect("the step had them").to_vec()
        });
        for (index, (want, got)) in want.iter().zip(&got).enumerate() {
            let difference = f64::from((want - got).abs());
            assert!(difference <= self.allowed, "value {index} is {got}, not {want}");
        }
        for (index, tokens) in new {
            sequences[*index].tokens.extend(tokens);
        }
    }

    /// Copies the state of one sequence to another.
    fn copy(&mut self, sequences: &mut [Own], from: usize, to: usize) {
        for runner in &mut self.runners {
            for group in [GroupId(0), GroupId(1)] {
                for block in 0..2 {
                    let [from, to] = [from, to].map(|index| sequences[index].blocks[block]);
                    runner.state().copy(group, from, to).expect("the blocks are there");
                }
            }
        }
        sequences[to].tokens = sequences[from].tokens.clone();
    }
}

#[test]
fn sequences_that_part_and_step_back_have_the_numbers_of_the_definition() {
    let Some(choice) = processor() else { return };
    let choice = choice.with("openvino-kv", "hidden").expect("it is a form");
    for (seed, state) in [(1, DType::F32), (2, DType::F32), (3, DType::F16)] {
        let random = &mut Random(seed);
        let mut both = Both::new(&choice, state, random);
        let mut sequences: Vec<Own> = (0..SEQUENCES)
            .map(|index| Own { tokens: Vec::new(), blocks: [Block(2 * index), Block(2 * index + 1)] })
            .collect();
        for _ in 0..60 {
            match random.below(6) {
                0 => both.copy(&mut sequences, random.below(3), random.below(3)),
                1 => {
                    let tokens = &mut sequences[random.below(3)].tokens;
                    tokens.truncate(tokens.len() - random.below(tokens.len() + 1));
                }
                _ => {
                    let most = random.of(&[1, 5, 16]);
                    let mut new: Vec<(usize, Vec<u32>)> = Vec::new();
                    for (index, own) in sequences.iter().enumerate() {
                        let room = CONTEXT as usize - own.tokens.len();
                        let count = (1 + random.below(most)).min(room);
                        if count > 0 && random.below(3) > 0 {
                            new.push((index, (0..count).map(|_| random.below(TOKENS) as u32).collect()));
                        }
                    }
                    if !new.is_empty() {
                        both.step(&mut sequences, &new);
                    }
                }
            }
        }
    }
}
