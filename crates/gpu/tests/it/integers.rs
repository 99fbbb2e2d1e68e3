//! Products by integers against their definition: rows rounded to bytes, weights as in their file, sums in double precision.

use std::collections::HashMap;

use girih_graph::backend::{Input, Range32, Step, Unwatched};
use girih_graph::testing::WeightTable;
use girih_graph::{Builder, Graph, Key, Op, OutputKind, Outputs, Sequence};
use girih_tensor::{DType, Random, Shape, View};

use crate::emulated::emulated;
use crate::opened::{adapter, open};

/// Three bands; the last one is not whole.
const WEIGHT_ROWS: usize = 70;

/// Two slices; the last one is whole in formats with blocks of 256.
const COLUMNS: usize = 512;

/// Rows of few and of many; the last ones have two tiles.
const STEPS: [usize; 4] = [1, 5, 20, 130];

/// A graph that multiplies rows by a weight.
fn graph(dtype: DType, columns: usize) -> Graph {
    let rows = STEPS[STEPS.len() - 1] as u32;
    let key = Key { rows, sequences: 1, context: rows, output_rows: rows, output: OutputKind::Hidden };
    let mut builder = Builder::new(key);
    let x = builder.input("x", &[columns], DType::F32);
    let shape = Shape::new(&[WEIGHT_ROWS, columns]).expect("it is small");
    let weight = builder.weight("weight", shape, dtype);
    let y = builder.shaped("y", Op::Linear, &[x, weight], &[WEIGHT_ROWS]);
    let y = builder.gather("rows", y);
    builder.finish(y)
}

/// Where the blocks of formats that girih does not write have numbers in half precision.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q5_1 => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::IQ4_NL | DType::IQ4_XS => &[0],
        _ => &[],
    }
}

/// A packed matrix; any codes and small scales in formats that girih does not write.
fn blocks(dtype: DType, columns: usize, random: &mut Random) -> Vec<u8> {
    if dtype.writes() {
        let numbers = random.numbers(WEIGHT_ROWS * columns);
        return dtype.pack_matrix(WEIGHT_ROWS, columns, &numbers).expect("it is written");
    }
    let count = dtype.matrix_bytes(WEIGHT_ROWS, columns).expect("rows are whole blocks");
    let mut bytes: Vec<u8> = (0..count).map(|_| random.below(256) as u8).collect();
    for block in bytes.chunks_mut(dtype.block_bytes()) {
        for at in halves(dtype) {
            // Positive numbers from 2⁻⁶ to 2⁻⁴.
            block[at + 1] = 0x24 + random.below(8) as u8;
        }
    }
    bytes
}

/// A number of a row as the device rounds it, and what the other neighbour would differ by where both are as near: the
/// device's quotient may have another last bit.
#[derive(Clone, Copy)]
struct Rounded {
    number: f64,
    slack: f64,
}

/// A row as the device rounds it: the scale of a group is a 127th of the largest magnitude.
fn rounded(x: &[f32]) -> Vec<Rounded> {
    let group = |x: &[f32]| {
        let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let (scale, inverse) = (f64::from(largest * (1.0 / 127.0)), 127.0 / largest);
        let code = |x: &f32| {
            let steps = if largest > 0.0 { x * inverse } else { 0.0 };
            let is_tie = (steps.fract().abs() - 0.5).abs() < 1e-4;
            let slack = if is_tie { scale } else { 0.0 };
            Rounded { number: f64::from(steps.round_ties_even()) * scale, slack }
        };
        x.iter().map(code).collect::<Vec<Rounded>>()
    };
    x.chunks(32).flat_map(group).collect()
}

/// The results of steps of some rows each.
fn results(name: &str, graph: &Graph, weights: &WeightTable, x: &[f32], rows: usize) -> Vec<f32> {
    let built = |_| Ok(graph.clone());
    let mut runner = open(name).load(weights, graph.key, &[], &built).expect("the format has kernels");
    let width = x.len() / STEPS[STEPS.len() - 1];
    let mut all = Vec::new();
    for x in x.chunks(rows * width) {
        let rows = x.len() / width;
        let range = Range32 { start: 0, end: rows as u32 };
        let sequence = Sequence { blocks: &[], position: 0, rows: range, outputs: Outputs::All, spans: &[] };
        let step = Step { inputs: &[Input::Rows(x)], sequences: &[sequence], watch: &mut Unwatched };
        runner.step(step).expect("the step runs");
        all.extend_from_slice(runner.output().rows(0..rows).expect("the step has rows"));
    }
    all
}

#[test]
fn each_quantized_format_is_multiplied_as_defined_in_steps_of_any_rows() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let is_quantized = |dtype: &DType| dtype.tile().1 > 1;
    check(name, DType::ALL.iter().copied().filter(is_quantized));
}

#[test]
fn kernels_for_cuda_multiply_as_defined_in_steps_of_any_rows() {
    if let Some(name) = emulated() {
        check(name, [DType::Q4_0, DType::Q6_K].into_iter());
    }
}

/// Compares products of matrices in these formats with their definition, and steps of one row with steps of several.
fn check(name: &str, dtypes: impl Iterator<Item = DType>) {
    let _open = open(name);
    let mut random = Random(11);
    for dtype in dtypes {
        let whole = COLUMNS.is_multiple_of(dtype.tile().1 * 8);
        let columns = if whole { COLUMNS - dtype.tile().1 } else { COLUMNS };
        let bytes = blocks(dtype, columns, &mut random);
        let mut weights = vec![0.0; WEIGHT_ROWS * columns];
        View::new(dtype, WEIGHT_ROWS, columns, &bytes)
            .expect("the bytes have the shape")
            .unpack_rows(0..WEIGHT_ROWS, &mut weights);
        let mut x = random.numbers(STEPS[STEPS.len() - 1] * columns);
        // A group of zeros has no scale.
        x[32..64].fill(0.0);
        let table = WeightTable(HashMap::from([("weight".to_owned(), bytes)]));
        let graph = graph(dtype, columns);
        let of_one = results(name, &graph, &table, &x, STEPS[0]);
        for (row, y) in x.chunks(columns).zip(of_one.chunks(WEIGHT_ROWS)) {
            let row = rounded(row);
            for (weight, y) in weights.chunks(columns).zip(y) {
                let terms = || weight.iter().zip(&row).map(|(w, x)| (f64::from(*w), *x));
                let sum = terms().map(|(w, x)| w * x.number).sum::<f64>();
                let size = terms().map(|(w, x)| (w * x.number).abs()).sum::<f64>();
                let slack = terms().map(|(w, x)| w.abs() * x.slack).sum::<f64>();
                // Offsets make terms of up to four times the size; a chain has at most six roundings for a group.
                let bound = 4.0 * size * (6 * columns / 32) as f64 * f64::from(f32::EPSILON) + slack;
                assert!((f64::from(*y) - sum).abs() <= bound, "{dtype}: {y} for {sum}, bound {bound}");
            }
        }
        for rows in &STEPS[1..] {
            let got = results(name, &graph, &table, &x, *rows);
            let different = got.iter().zip(&of_one).position(|(got, one)| got.to_bits() != one.to_bits());
            assert_eq!(different, None, "{dtype} in steps of {rows} rows");
        }
    }
}
