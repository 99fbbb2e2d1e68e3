//! The short convolution: the interpreter's numbers within a bound, and equal bits whatever the
//! kernels, the threads, the chunks of a sequence and its neighbours.

use girih_cpu::kernels::tables;
use girih_graph::backend::{Block, Input};
use girih_graph::interpret::Interpreter;
use girih_graph::{Builder, Graph, GroupId, Op, Runner};
use girih_tensor::{DType, Shape};

use crate::case::finish;
use crate::fixture::{Random, Source, TestSequence, disagreement, exact, gamma, key, on, portable, step};

/// Blocks of state.
const BLOCKS: u32 = 24;

/// A convolution of `width` columns in steps of up to `rows` rows.
fn graph(rows: usize, taps: usize, width: usize) -> Graph {
    let mut builder = Builder::new(key(rows, 1024));
    let x = builder.input("x", &[width], DType::F32);
    let weight = builder.weight("taps", Shape::matrix(taps, width), DType::F32);
    let carried = builder.carried("carried", Shape::matrix(taps - 1, width));
    let y = builder.same("y", Op::ShortConv, &[x, weight, carried]);
    finish(builder, y)
}

/// A graph, its weights, and rows of its input.
fn case(rows: usize, taps: usize, width: usize) -> (Graph, Source, Vec<f32>) {
    let (graph, mut random) = (graph(rows, taps, width), Random((taps * 1000 + width) as u64));
    let source = Source::random(&graph, &mut random);
    let x = random.numbers(rows * width);
    (graph, source, x)
}

fn run(runner: &mut dyn Runner, x: &[f32], sequences: &[TestSequence]) -> Vec<f32> {
    step(runner, Input::Rows(x), sequences)
}

/// Widths around those of vectors, and more values than one piece of work has.
const SIZES: [(usize, usize); 5] = [(2, 1), (3, 7), (3, 64), (4, 33), (7, 300)];

#[test]
fn every_table_has_the_bits_of_all_others_within_the_bound_of_the_interpreter() {
    for (taps, width) in SIZES {
        let (graph, source, x) = case(150, taps, width);
        let sequences =
            [TestSequence::new(0, 0, 70), TestSequence::new(8, 0, 1), TestSequence::new(16, 0, 79)];
        let want = run(&mut *on(Interpreter, &graph, &source, BLOCKS), &x, &sequences);
        let plain = run(&mut *on(exact(portable(), 1), &graph, &source, BLOCKS), &x, &sequences);
        let weights = source.numbers("taps", DType::F32, taps, width);
        // The sum of the sizes of a row's terms, each of which takes part in at most `taps` sums.
        let starts = [0, 70, 71, 150];
        let bounds = (0..150 * width).map(|at| {
            let (row, column) = (at / width, at % width);
            let first = starts.iter().rev().find(|first| **first <= row).copied().unwrap();
            let term = |tap: usize| {
                let row = (row + tap).checked_sub(taps - 1).filter(|row| *row >= first);
                row.map_or(0.0, |row| {
                    f64::from((weights[tap * width + column] * x[row * width + column]).abs())
                })
            };
            gamma(taps + 1) * (0..taps).map(term).sum::<f64>() + f64::from(f32::MIN_POSITIVE)
        });
        let bounds: Vec<f64> = bounds.collect();
        assert_eq!(disagreement(&plain, &want, &bounds), None, "{taps} taps, {width} columns");
        let mut wrong = want.clone();
        wrong[75 * width] *= 1.0 + 1e-5;
        assert!(disagreement(&wrong, &want, &bounds).is_some(), "the bound notices a wrong value");
        for table in tables() {
            for threads in [1, 2, 5] {
                let got = run(&mut *on(exact(*table, threads), &graph, &source, BLOCKS), &x, &sequences);
                assert_eq!(got, plain, "{} with {threads} threads, {taps} taps, {width} columns", table.name);
            }
        }
    }
}

#[test]
fn chunks_and_neighbours_change_no_bit_and_a_kept_value_gives_the_rows_again() {
    for (taps, width) in SIZES {
        let (rows, mut random) = (300, Random(9));
        let (graph, source, x) = case(rows, taps, width);
        let alone = |from: usize, count: usize| {
            let x = &x[from * width..(from + count) * width];
            run(
                &mut *on(exact(portable(), 1), &graph, &source, BLOCKS),
                x,
                &[TestSequence::new(0, 0, count as u32)],
            )
        };
        let whole = [alone(0, 200), alone(200, 100)];
        for _ in 0..20 {
            // The sequences have the first 200 rows of `x`, and the others.
            let mut runner = on(exact(tables()[0], 2), &graph, &source, BLOCKS);
            let (firsts, counts) = ([0, 200], [200, 100]);
            let (mut done, mut got) = ([0, 0], [Vec::new(), Vec::new()]);
            while done != counts {
                let (mut step, mut sequences, mut parts) = (Vec::new(), Vec::new(), Vec::new());
                for index in 0..2 {
                    let left = counts[index] - done[index];
                    // Also fewer rows than taps, which end behind the end of a block.
                    let most = random.of(&[1, 5, 90]);
                    let count = (1 + random.below(most)).min(left);
                    if count == 0 || random.once_in(5) {
                        continue;
                    }
                    let from = (firsts[index] + done[index]) * width;
                    step.extend_from_slice(&x[from..from + count * width]);
                    sequences.push(TestSequence::new(8 * index as u32, done[index] as u32, count as u32));
                    parts.push((index, count));
                    done[index] += count;
                }
                if sequences.is_empty() {
                    continue;
                }
                let mut results = run(&mut *runner, &step, &sequences);
                for (index, count) in parts {
                    got[index].extend(results.drain(..count * width));
                }
            }
            assert_eq!(got, whole, "{taps} taps, {width} columns");
            // From the value at the end of a block on, also from a copy and from its bytes.
            let state = runner.state();
            state.copy(GroupId(0), Block(1), Block(20)).unwrap();
            let saved = state.export(GroupId(0), Block(1)).unwrap();
            assert_eq!(saved.len(), 4 * (taps - 1) * width);
            state.import(GroupId(0), Block(22), &saved).unwrap();
            assert!(state.import(GroupId(0), Block(22), &saved[1..]).is_err());
            for block in [0, 19, 21] {
                let part = &x[128 * width..140 * width];
                let again = run(&mut *runner, part, &[TestSequence::new(block, 128, 12)]);
                assert_eq!(again, whole[0][128 * width..140 * width], "from block {block} on");
            }
            runner.state().zero(GroupId(0), Block(22)).unwrap();
            let part = &x[128 * width..129 * width];
            let other = run(&mut *runner, part, &[TestSequence::new(21, 128, 1)]);
            assert_ne!(other, whole[0][128 * width..129 * width]);
        }
    }
}

#[test]
fn the_plan_counts_the_blocks() {
    use girih_graph::Backend;
    let graph = graph(8, 3, 64);
    let bytes = |blocks: u32| exact(portable(), 1).plan(&graph, &[blocks]).host.state;
    assert_eq!(bytes(40) - bytes(8), 32 * 2 * 64 * 4);
}
