//! The carried value of a short convolution: copied, saved and read again.

use girih_graph::backend::{Block, Input};
use girih_graph::{Builder, Graph, GroupId, Op, Runner};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, exact, finish, key, on, portable, step};

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
fn a_kept_value_gives_the_rows_again() {
    for (taps, width) in SIZES {
        let (graph, source, x) = case(200, taps, width);
        let mut runner = on(exact(portable(), 1), &graph, &source, BLOCKS);
        let whole = run(&mut *runner, &x, &[TestSequence::new(0, 0, 200)]);
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
            assert_eq!(again, whole[128 * width..140 * width], "from block {block} on");
        }
        runner.state().zero(GroupId(0), Block(22)).unwrap();
        let part = &x[128 * width..129 * width];
        let other = run(&mut *runner, part, &[TestSequence::new(21, 128, 1)]);
        assert_ne!(other, whole[128 * width..129 * width]);
    }
}

#[test]
fn the_plan_counts_the_blocks() {
    use girih_graph::Backend;
    let graph = graph(8, 3, 64);
    let bytes = |blocks: u32| exact(portable(), 1).plan(&graph, &[blocks]).host.state;
    assert_eq!(bytes(40) - bytes(8), 32 * 2 * 64 * 4);
}
