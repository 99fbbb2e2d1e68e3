//! Every format whose integers are multiplied, through a graph: results are compared with exact sums, and
//! steps of every number of rows with each other.

use girih_cpu::kernels::packed::{GROUP, Layout};
use girih_cpu::kernels::{Table, tables};
use girih_graph::backend::Input;
use girih_graph::{Builder, Graph, Op};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, cpu_with, gamma, key, on, step};

/// Outputs: a whole band and part of another.
const OUTPUTS: usize = 37;

/// Rows of the longest step: a whole tile and part of another.
const ROWS: usize = 16;

fn formats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| Layout::of(dtype).coding().is_some())
}

/// Numbers of inputs: one block, an odd number of blocks, and more groups than a panel has.
fn widths(dtype: DType) -> Vec<usize> {
    match dtype.tile() {
        (1, GROUP) => vec![GROUP, 3 * GROUP, 17 * GROUP],
        (1, columns) => vec![columns, 3 * columns],
        (_, columns) => vec![1, 70, columns, 2 * columns + 33],
    }
}

fn graph(dtype: DType, inputs: usize) -> Graph {
    let mut builder = Builder::new(key(ROWS, 64));
    let x = builder.input("x", &[inputs], DType::F32);
    let weight = builder.weight("weight", Shape::matrix(OUTPUTS, inputs), dtype);
    let y = builder.shaped("y", Op::Linear, &[x, weight], &[OUTPUTS]);
    let output = builder.gather("output", y);
    builder.finish(output)
}

/// Rows that are quantized without error: multiples of 1/128, up to 127/128 in each group.
fn embeddings(inputs: usize, random: &mut Random) -> Vec<f32> {
    let numbers = (0..ROWS * inputs).map(|index| {
        let whole =
            if (index % inputs).is_multiple_of(GROUP) { 127 } else { (random.bits() % 255) as i32 - 127 };
        whole as f32 / 128.0
    });
    numbers.collect()
}

/// The results of all rows, computed in steps of `rows` rows.
fn run(table: Table, graph: &Graph, source: &Source, embeddings: &[f32], rows: usize) -> Vec<f32> {
    let mut runner = on(cpu_with(table, 2), graph, source, 16);
    let steps = embeddings.chunks(rows * embeddings.len() / ROWS);
    steps
        .flat_map(|x| {
            let rows = x.len() * ROWS / embeddings.len();
            step(&mut *runner, Input::Rows(x), &[TestSequence::new(0, 0, rows as u32)])
        })
        .collect()
}

#[test]
fn matmuls_of_every_format_keep_their_bound() {
    let mut random = Random(31);
    for dtype in formats() {
        for inputs in widths(dtype) {
            let graph = graph(dtype, inputs);
            let source = Source::random(&graph, &mut random);
            let weights = source.numbers("weight", dtype, OUTPUTS, inputs);
            let x = embeddings(inputs, &mut random);
            for table in tables() {
                let got = run(*table, &graph, &source, &x, ROWS);
                for (index, got) in got.iter().enumerate() {
                    let x = &x[index / OUTPUTS * inputs..][..inputs];
                    let weights = &weights[index % OUTPUTS * inputs..][..inputs];
                    let (expected, size) = exact(x, weights);
                    // Each half of a group has two rounded sums and three rounded factors.
                    let bound = gamma(3 + 4 * inputs.div_ceil(GROUP)) * size;
                    let right = (f64::from(*got) - expected).abs() <= bound;
                    assert!(
                        right,
                        "{} {dtype}, {inputs} inputs: {got}, not {expected} ± {bound}",
                        table.name
                    );
                }
            }
        }
    }
}

/// Returns the exact sum, and the sum of the sizes of all intermediate terms. With minimums, these are larger
/// than the products: codes up to 31 that differ stand for numbers at least a 31st of their range apart, so a
/// minimum is at most 63 times the largest number of its group.
fn exact(x: &[f32], weights: &[f32]) -> (f64, f64) {
    let products = x.iter().zip(weights).map(|(&x, &weight)| f64::from(x) * f64::from(weight));
    let groups = x.chunks(GROUP / 2).zip(weights.chunks(GROUP / 2));
    let sizes = groups.map(|(x, weights)| {
        let largest = weights.iter().fold(0.0, |largest: f64, weight| largest.max(f64::from(weight.abs())));
        x.iter().map(|x| f64::from(x.abs())).sum::<f64>() * 64.0 * largest
    });
    (products.sum(), sizes.sum())
}

#[test]
fn results_do_not_depend_on_the_number_of_rows() {
    let mut random = Random(32);
    for dtype in formats() {
        let inputs = widths(dtype)[1];
        let graph = graph(dtype, inputs);
        let source = Source::random(&graph, &mut random);
        let x = random.numbers(ROWS * inputs);
        for table in tables() {
            let bits = |rows| -> Vec<u32> {
                run(*table, &graph, &source, &x, rows).iter().map(|y| y.to_bits()).collect()
            };
            let expected = bits(ROWS);
            for rows in 1..ROWS {
                assert!(bits(rows) == expected, "{} {dtype}, {inputs} inputs, {rows} rows", table.name);
            }
        }
    }
}
