//! The largest numbers that the device finds are those of the rows, by their definition.

use girih_graph::backend::{Input, Range32, Step, Unwatched};
use girih_graph::testing::WeightTable;
use girih_graph::{Builder, Graph, Key, Op, OutputKind, Outputs, Picks, Runner, Sequence};
use girih_tensor::{DType, Random};

use crate::emulated::emulated;
use crate::opened::{adapter, open};

const ROWS: usize = 5;

/// A graph whose results are its input.
fn graph(width: usize) -> Graph {
    let rows = ROWS as u32;
    let key = Key { rows, sequences: 1, context: rows, output_rows: rows, output: OutputKind::Logits };
    let mut builder = Builder::new(key);
    let x = builder.input("x", &[width], DType::F32);
    let y = builder.same("y", Op::Add, &[x, x]);
    let y = builder.gather("rows", y);
    builder.finish(y)
}

fn step(runner: &mut dyn Runner, numbers: &[f32]) {
    let rows = Range32 { start: 0, end: ROWS as u32 };
    let sequence = Sequence { blocks: &[], position: 0, rows, outputs: Outputs::All, spans: &[] };
    let step = Step { inputs: &[Input::Rows(numbers)], sequences: &[sequence], watch: &mut Unwatched };
    runner.step(step).expect("the step runs");
}

#[test]
fn picks_are_those_of_the_rows() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    check(name);
}

#[test]
fn picks_of_the_kernels_for_cuda_are_those_of_the_rows() {
    if let Some(name) = emulated() {
        check(name);
    }
}

fn check(name: &str) {
    let _open = open(name);
    let mut random = Random(5);
    for width in [1, 7, 255, 4096, 4097, 13_000] {
        let graph = graph(width);
        let built = |_| Ok(graph.clone());
        let weights = WeightTable::default();
        let mut runner = open(name).load(&weights, graph.key, &[], &built).expect("the graph runs");
        // Few different numbers, so that the largest is there several times; the second row has NaN, the third one infinity,
        // the fourth one zeros of both signs below which all is.
        let mut numbers: Vec<f32> = (0..ROWS * width).map(|_| random.below(9) as f32 - 4.0).collect();
        numbers[width + width / 2] = f32::NAN;
        numbers[2 * width + width / 3] = f32::INFINITY;
        numbers[3 * width..4 * width].iter_mut().for_each(|number| *number = -number.abs());
        numbers[4 * width..].iter_mut().for_each(|number| *number = f32::NEG_INFINITY);
        for asks_rows in [false, true, true] {
            step(&mut *runner, &numbers);
            assert_eq!(runner.output().max_picks(), 1);
            let got: Vec<Picks> =
                (0..ROWS).map(|row| runner.output().picks(row, 1, &[]).expect("the device runs")).collect();
            if !asks_rows {
                assert_eq!(runner.output().picks(0, 0, &[]).expect("the device runs"), Picks::default());
            }
            let rows = runner.output().rows(0..ROWS).expect("the device runs").to_vec();
            assert!(
                rows.iter().zip(&numbers).all(|(row, x)| row.to_bits() == (x + x).to_bits() || x.is_nan())
            );
            for (row, got) in rows.chunks_exact(width).zip(got) {
                let want = Picks::of(row, 1, &[]);
                let bits = |picks: &Picks| {
                    let top: Vec<(u32, u32)> = picks.top.iter().map(|(id, x)| (*id, x.to_bits())).collect();
                    (top, picks.has_nan)
                };
                assert_eq!(bits(&got), bits(&want), "rows of {width}");
            }
        }
    }
}
