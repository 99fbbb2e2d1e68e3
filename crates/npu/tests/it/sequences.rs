//! Steps of several sequences, whose attention is on the array: values, bytes, and what a step counts.

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::interpret::Interpreter;
use girih_graph::{Backend as _, Key, Output as _, Outputs, Runner, Sequence, Step, load};
use girih_npu::driver::{
    Compiler, KeyUse, Ledger, Runtime, Scenario, ValueUse, estimate_step, time_programs,
};
use girih_npu::pass::{AttentionPlacement, Grouping, NoDump, Policy};
use girih_npu::{Npu, NpuOptions, Target};

use crate::llama::{LlamaSizes, SMALL, key, llama};
use crate::random::RandomWeights;
use crate::values::assert_close;

const SIZES: LlamaSizes =
    LlamaSizes { layers: 2, width: 64, hidden: 64, vocabulary: 64, window: None, ..SMALL };

/// Blocks of state of a sequence of up to 512 positions.
const BLOCKS: u32 = 8;

/// Sequences of the largest step.
const SEQUENCES: u32 = 3;

fn largest() -> Key {
    Key { context: 512, sequences: SEQUENCES, output_rows: SEQUENCES, ..key(64) }
}

const POLICY: Policy = Policy { attention: AttentionPlacement::Array, ..Policy::BY_COST };

fn options() -> NpuOptions {
    NpuOptions { policy: POLICY, ..NpuOptions::default() }
}

fn on_array(target: &str, sizes: LlamaSizes, options: NpuOptions) -> Box<dyn Runner> {
    let npu = Npu::new(target, options).unwrap();
    let blocks = [BLOCKS * (SEQUENCES + 1)];
    load(npu, &RandomWeights(7), largest(), &blocks, |key| Ok(llama(&sizes, key))).unwrap()
}

fn by_definition(sizes: LlamaSizes) -> Box<dyn Runner> {
    let blocks = [BLOCKS * (SEQUENCES + 1)];
    load(Interpreter, &RandomWeights(7), largest(), &blocks, |key| Ok(llama(&sizes, key))).unwrap()
}

/// The rows of a sequence in a step: the sequence's number, and the positions.
type Part = (u32, std::ops::Range<u32>);

/// The logits after the last row of each sequence in a step. Tokens follow from the sequence and the position.
fn step(runner: &mut dyn Runner, parts: &[Part]) -> Vec<Vec<f32>> {
    let token = |sequence: u32, at: u32| (at * 37 + at / 61 + 11 * sequence) % 64;
    let tokens: Vec<u32> =
        parts.iter().flat_map(|(sequence, rows)| rows.clone().map(|at| token(*sequence, at))).collect();
    let blocks: Vec<Vec<Block>> = parts
        .iter()
        .map(|(sequence, _)| (sequence * BLOCKS..(sequence + 1) * BLOCKS).map(Block).collect())
        .collect();
    let groups: Vec<[&[Block]; 1]> = blocks.iter().map(|blocks| [&blocks[..]]).collect();
    let mut start = 0;
    let mut sequences = Vec::new();
    for ((_, rows), blocks) in parts.iter().zip(&groups) {
        let end = start + rows.len() as u32;
        let rows_of_step = Range32 { start, end };
        start = end;
        sequences.push(Sequence {
            blocks,
            position: rows.start,
            rows: rows_of_step,
            outputs: Outputs::Last,
            spans: &[],
        });
    }
    let inputs = &[Input::Ids(&tokens)];
    runner.step(Step { inputs, sequences: &sequences, watch: &mut Unwatched }).unwrap();
    (0..parts.len()).map(|row| runner.output().rows(row..row + 1).unwrap().to_vec()).collect()
}

/// Prompts of three lengths, then tokens of all three, of two, and a prompt beside tokens.
fn steps() -> Vec<Vec<Part>> {
    let mut steps = vec![vec![(0, 0..64)], vec![(0, 64..100)], vec![(1, 0..5), (2, 0..40)]];
    steps.extend((0..30).map(|at| vec![(0, 100 + at..101 + at), (1, 5 + at..6 + at), (2, 40 + at..41 + at)]));
    steps.extend((0..3).map(|at| vec![(2, 70 + at..71 + at), (0, 130 + at..131 + at)]));
    // The first sequence's rows are behind those of another, which has several.
    steps.push(vec![(2, 73..74), (1, 35..75), (0, 133..134)]);
    steps.push(vec![(1, 75..76), (0, 134..150), (2, 74..100)]);
    steps
}

fn logits(runner: &mut dyn Runner, steps: &[Vec<Part>]) -> Vec<Vec<f32>> {
    steps.iter().flat_map(|parts| step(runner, parts)).collect()
}

/// Without and with a window, sequences of other lengths in one step are near the definition.
#[test]
fn steps_of_several_sequences_match_the_interpreter() {
    for (window, target) in [(None, "toy"), (Some(70), "toy"), (Some(70), "xdna2-strix")] {
        let sizes = LlamaSizes { window, ..SIZES };
        let exact = logits(&mut *by_definition(sizes), &steps());
        assert_close(&logits(&mut *on_array(target, sizes, options()), &steps()), &exact);
    }
}
