//! Norms wider than what an invocation has in registers, whose sums have the order of a fixed tree.

use std::collections::HashMap;

use girih_graph::backend::{Input, Range32, Step, Unwatched};
use girih_graph::testing::WeightTable;
use girih_graph::{Builder, Graph, Key, Op, OutputKind, Outputs, Sequence};
use girih_tensor::{DType, Random, Shape};

use crate::opened::{adapter, open};

const ROWS: usize = 3;

fn graph(op: Op, width: usize) -> Graph {
    let rows = ROWS as u32;
    let key = Key { rows, sequences: 1, context: rows, output_rows: rows, output: OutputKind::Logits };
    let mut builder = Builder::new(key);
    let x = builder.input("x", &[width], DType::F32);
    let weight = builder.weight("weight", Shape::new(&[width]).expect("it is small"), DType::F32);
    let y = builder.same("y", op, &[x, weight]);
    let y = builder.gather("rows", y);
    builder.finish(y)
}

/// The norms of rows on the device.
fn normed(name: &str, op: Op, width: usize, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let bytes = weight.iter().flat_map(|number| number.to_le_bytes()).collect();
    let weights = WeightTable(HashMap::from([("weight".to_owned(), bytes)]));
    let graph = graph(op, width);
    let built = |_| Ok(graph.clone());
    let mut runner = open(name).load(&weights, graph.key, &[], &built).expect("the graph runs");
    let rows = Range32 { start: 0, end: ROWS as u32 };
    let sequence = Sequence { blocks: &[], position: 0, rows, outputs: Outputs::All, spans: &[] };
    let step = Step { inputs: &[Input::Rows(x)], sequences: &[sequence], watch: &mut Unwatched };
    runner.step(step).expect("the step runs");
    runner.output().rows(0..ROWS).expect("the step has rows").to_vec()
}

/// A sum in the order of the kernel: every 256th number one after another, then a tree of halves.
fn total(terms: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0; 256];
    terms.iter().enumerate().for_each(|(index, term)| sums[index % 256] = add(*term, sums[index % 256]));
    let mut half = 128;
    while half > 0 {
        (0..half).for_each(|index| sums[index] += sums[index + half]);
        half /= 2;
    }
    sums[0]
}

/// What a number becomes, in double precision from sums in single precision.
fn expected(op: Op, row: &[f32]) -> Vec<f64> {
    let n = row.len() as f64;
    let squares = |terms: &[f32]| f64::from(total(terms, |term, sum| term.mul_add(term, sum)));
    match op {
        Op::Norm { epsilon } => {
            let root = (squares(row) / n + f64::from(epsilon)).sqrt();
            row.iter().map(|number| f64::from(*number) / root).collect()
        }
        Op::LayerNorm { epsilon } => {
            let sum = |terms: &[f32]| total(terms, |term, sum| sum + term);
            let mean = (f64::from(sum(row)) / n) as f32;
            let less: Vec<f32> = row.iter().map(|number| number - mean).collect();
            let rest = f64::from(sum(&less)) / n;
            let root = (squares(&less) / n - rest * rest + f64::from(epsilon)).sqrt();
            less.iter().map(|number| (f64::from(*number) - rest) / root).collect()
        }
        _ => panic!("no norm"),
    }
}

#[test]
fn norms_of_any_width_have_the_sums_of_the_tree() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let _open = open(name);
    let mut random = Random(11);
    for width in [255, 257, 1024, 1025, 2304, 4096, 4097, 9000] {
        for op in [Op::Norm { epsilon: 1e-5 }, Op::LayerNorm { epsilon: 1e-5 }] {
            let (x, weight) = (random.numbers(ROWS * width), random.numbers(width));
            let got = normed(name, op, width, &x, &weight);
            for (row, got) in x.chunks_exact(width).zip(got.chunks_exact(width)) {
                let want = expected(op, row);
                for ((got, want), weight) in got.iter().zip(want).zip(&weight) {
                    let want = want * f64::from(*weight);
                    // A mean, epsilon, a root, a quotient, two differences and a product have a rounding each.
                    let error = (f64::from(*got) - want).abs();
                    assert!(
                        error <= 8.0 * f64::from(f32::EPSILON) * want.abs().max(1e-3),
                        "{width}: {got} {want}"
                    );
                }
            }
        }
    }
}
