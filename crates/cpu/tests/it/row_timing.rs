//! Measures the kernels of rows and elements: per value, and in total for a layer of a prefill and for a
//! token, in the shape of Llama 3.2 1B.
//!
//! ```text
//! cargo test --release --locked -p girih-cpu --test it row_timing -- --ignored --nocapture
//! ```
//! One thread, the best of several rounds. `near` is one row again and again, as in decode; `far` is 512
//! rows, most of which do not fit into L2.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use girih_cpu::kernels::{QUANT_GROUP, Table, tables};
use girih_cpu::ops::{Activate, Add, Gate, LayerNorm, Norm, Rotate, Rotation, Scale, Softcap};
use girih_graph::{Act, Pairing};

use crate::fixture::Random;

/// Rows in a chunk of a prefill.
const ROWS: usize = 512;

const WIDTH: usize = 2048;
const FFN: usize = 8192;
const HEAD: usize = 64;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const LAYERS: usize = 16;

/// Calls a kernel on a range of the buffers' values.
type KernelCall = fn(&Table, &mut Buffers, Range<usize>);

/// A kernel over rows of `width` values, and the number of values that it computes in a layer for each row
/// of the step.
struct Measured {
    name: &'static str,
    width: usize,
    values_per_layer: usize,
    call: KernelCall,
}

/// Operands and results for rows of the widest kernel.
struct Buffers {
    a: Vec<f32>,
    b: Vec<f32>,
    weight: Vec<f32>,
    y: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Buffers {
    fn new() -> Buffers {
        let mut random = Random(1);
        let len = ROWS * FFN;
        let mut numbers = |len| random.numbers(len).iter().map(|x| 4.0 * x).collect();
        let (a, b, weight) = (numbers(len), numbers(len), numbers(FFN));
        let (codes, scales, sums) = (vec![0; len], vec![0.0; len / QUANT_GROUP], vec![0; len / QUANT_GROUP]);
        Buffers { a, b, weight, y: vec![0.0; len], codes, scales, sums }
    }
}

/// All kernels.
fn measured() -> Vec<Measured> {
    // Quantized before q, k and v; before o; before gate and up; before down.
    let (rotated, quantized) = ((HEADS + KV_HEADS) * HEAD, 3 * WIDTH + FFN);
    let kernels: [(&'static str, usize, usize, KernelCall); 11] = [
        ("norm", WIDTH, 2 * WIDTH, |table, buffers, run| {
            let (x, weight) = (&buffers.a[run.clone()], &buffers.weight[..WIDTH]);
            table.run(Norm { x, weight: Some(weight), epsilon: 1e-5, y: &mut buffers.y[run] });
        }),
        ("layer norm", WIDTH, 0, |table, buffers, run| {
            let (x, weight) = (&buffers.a[run.clone()], &buffers.weight[..WIDTH]);
            let bias = Some(&buffers.b[..WIDTH]);
            table.run(LayerNorm { x, weight: Some(weight), bias, epsilon: 1e-5, y: &mut buffers.y[run] });
        }),
        ("rotate halves", WIDTH, rotated, |table, buffers, run| rotate(table, buffers, Pairing::Halves, run)),
        ("rotate neighbours", WIDTH, 0, |table, buffers, run| {
            rotate(table, buffers, Pairing::Neighbours, run)
        }),
        ("add", WIDTH, 2 * WIDTH, |table, buffers, run| {
            let (a, b) = (&buffers.a[run.clone()], &buffers.b[run.clone()]);
            table.run(Add { a, b, y: &mut buffers.y[run] });
        }),
        ("silu gate", FFN, FFN, |table, buffers, run| gate(table, buffers, Act::Silu, run)),
        ("gelu_tanh gate", FFN, 0, |table, buffers, run| gate(table, buffers, Act::GeluTanh, run)),
        ("gelu", FFN, 0, |table, buffers, run| {
            table.run(Activate { act: Act::Gelu, x: &buffers.a[run.clone()], y: &mut buffers.y[run] });
        }),
        ("scale", WIDTH, 0, |table, buffers, run| {
            table.run(Scale { x: &buffers.a[run.clone()], factor: 0.3, y: &mut buffers.y[run] });
        }),
        ("softcap", WIDTH, 0, |table, buffers, run| {
            table.run(Softcap { x: &buffers.a[run.clone()], cap: 30.0, y: &mut buffers.y[run] });
        }),
        ("quantize", WIDTH, quantized, |table, buffers, run| {
            let groups = run.start / QUANT_GROUP..run.end / QUANT_GROUP;
            let (scales, sums) = (&mut buffers.scales[groups.clone()], &mut buffers.sums[groups]);
            (table.matmul.quantize)(&buffers.a[run.clone()], &mut buffers.codes[run], scales, sums);
        }),
    ];
    let kernels = kernels.into_iter();
    kernels
        .map(|(name, width, values_per_layer, call)| Measured { name, width, values_per_layer, call })
        .collect()
}

fn gate(table: &Table, buffers: &mut Buffers, act: Act, run: Range<usize>) {
    let up = &mut buffers.y[run.clone()];
    up.copy_from_slice(&buffers.b[run.clone()]);
    table.run(Gate { rule: act.into(), gate: &buffers.a[run], up });
}

fn rotate(table: &Table, buffers: &mut Buffers, pairing: Pairing, run: Range<usize>) {
    let (cosines, sines) = buffers.weight[..HEAD].split_at(HEAD / 2);
    let rotation = Rotation { cosines, sines };
    table.run(Rotate { x: &buffers.a[run.clone()], rotation, pairing, size: HEAD, y: &mut buffers.y[run] });
}

/// Nanoseconds per value, over `rows` different rows.
fn nanoseconds(kernel: &Measured, table: &Table, buffers: &mut Buffers, rows: usize) -> f64 {
    let width = kernel.width;
    let mut best = f64::MAX;
    for _ in 0..7 {
        let rounds = (1 << 22) / (rows * width) + 1;
        let start = Instant::now();
        for _ in 0..rounds {
            for row in 0..rows {
                (kernel.call)(table, black_box(buffers), row * width..(row + 1) * width);
            }
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / (rounds * rows * width) as f64);
    }
    best
}

#[test]
#[ignore = "a measurement; takes some seconds on an idle machine in a release build"]
fn measure_row_kernels() {
    let mut buffers = Buffers::new();
    for table in tables() {
        println!("{:<18} {:>9} {:>9}   ns a value, {}", "", "near", "far", table.name);
        let (mut layer, mut token) = (0.0, 0.0);
        for kernel in measured() {
            let [near, far] = [1, ROWS].map(|rows| nanoseconds(&kernel, table, &mut buffers, rows));
            println!("{:<18} {near:>9.4} {far:>9.4}", kernel.name);
            layer += far * (ROWS * kernel.values_per_layer) as f64 / 1e6;
            token += near * (LAYERS * kernel.values_per_layer) as f64 / 1e6;
        }
        println!("{layer:.3} ms a layer of {ROWS} rows, {token:.4} ms a token of {LAYERS} layers\n");
    }
}
