//! Measures matmuls, from weights in memory to sums: a chain of matrices as in a feed-forward block, run
//! as one step. The percentage is that of the fastest instruction's measured rate; a benchmark that
//! exceeds it is wrong, and fails.
//!
//! ```text
//! GIRIH_FORMATS=q4_0,q5_1 cargo test --release -p girih-cpu --test it speed -- --ignored --nocapture
//! ```
//! `GIRIH_ISA` names a table, `GIRIH_ACT` a precision of activations.

use std::time::Instant;

use girih_cpu::kernels::{Table, by_name, tables};
use girih_cpu::limits::peaks;
use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, EqualWeights, PrecisionRule};
use girih_graph::backend::Input;
use girih_graph::{Builder, Graph, Op, Outputs, Runner};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, key, on, step, stored_values};

const WIDTH: usize = 2048;
const INNER: usize = 8192;

/// Pairs of matrices, up and down.
fn chain(dtype: DType, pairs: usize, rows: usize) -> Graph {
    let mut builder = Builder::new(key(rows, 1024));
    let mut x = builder.input("x", &[WIDTH], DType::F32);
    for pair in 0..pairs {
        let up = builder.weight(&format!("up.{pair}"), Shape::matrix(INNER, WIDTH), dtype);
        let wide = builder.shaped(&format!("wide.{pair}"), Op::Linear, &[x, up], &[INNER]);
        let down = builder.weight(&format!("down.{pair}"), Shape::matrix(WIDTH, INNER), dtype);
        x = builder.shaped(&format!("x.{pair}"), Op::Linear, &[wide, down], &[WIDTH]);
    }
    let output = builder.gather("output", x);
    builder.finish(output)
}

/// The seconds of a step, the minimum of several.
fn seconds(runner: &mut dyn Runner, rows: usize, times: usize) -> f64 {
    let embeddings = Random(1).numbers(rows * WIDTH);
    let sequence = TestSequence { outputs: Outputs::All, ..TestSequence::new(0, 0, rows as u32) };
    let once = |runner: &mut dyn Runner| {
        let begun = Instant::now();
        step(runner, Input::Rows(&embeddings), std::slice::from_ref(&sequence));
        begun.elapsed().as_secs_f64()
    };
    once(runner);
    (0..times).map(|_| once(runner)).fold(f64::INFINITY, f64::min)
}

fn measure(table: Table, dtype: DType, threads: usize) {
    let pairs = 8;
    let rows_max = 512;
    let graph = chain(dtype, pairs, rows_max);
    // One matrix of random values for all names: contents do not affect the time, if each has memory of its own.
    let stored = stored_values(dtype, &Shape::matrix(INNER, WIDTH), &mut Random(3));
    let source = Source(graph.weights().map(|(_, weight)| (weight.name.clone(), stored.clone())).collect());
    let equal_weights = EqualWeights::Keep;
    let options = CpuOptions { threads, precision: precision(), equal_weights, ..CpuOptions::default() };
    let cpu = Cpu::with_table(options, table);
    let mut runner = on(cpu.expect("this machine can run the table"), &graph, &source, 16);
    let weights = (2 * pairs * WIDTH * INNER) as f64;
    let (rows, columns) = dtype.tile();
    let bytes = weights * dtype.block_bytes() as f64 / (rows * columns) as f64;
    print!("{:8} {:6} {threads} threads:", table.name, dtype.name());
    let peak = peaks().iter().map(|peak| peak.rate(threads)).fold(0.0, f64::max);
    for rows in [1, 2, 4, 8, 16, 64, 128, 512] {
        let seconds = seconds(&mut *runner, rows, if rows > 64 { 3 } else { 8 });
        if rows <= 8 {
            print!("  {rows}: {:.1} GB/s", bytes / seconds / 1e9);
        } else {
            let rate = 2.0 * weights * rows as f64 / seconds;
            let part = 100.0 * rate / peak;
            print!("  {rows}: {:.0} GOPS, {part:.0} %", rate / 1e9);
            assert!(
                part <= 100.0,
                "{rows} rows exceed the processor's fastest instruction: not all of them ran"
            );
        }
    }
    println!();
}

/// The precision of activations in `GIRIH_ACT`; without it, the default of every processor.
fn precision() -> PrecisionRule {
    let Ok(name) = std::env::var("GIRIH_ACT") else { return PrecisionRule::Fixed };
    let named = ActivationPrecision::ALL.iter().find(|precision| precision.name() == name);
    PrecisionRule::Requested(*named.expect("the name of a precision"))
}

/// The formats in `GIRIH_FORMATS`, or the most common ones.
fn formats() -> Vec<DType> {
    match std::env::var("GIRIH_FORMATS") {
        Ok(names) => {
            let named = |name: &str| DType::ALL.iter().copied().find(|dtype| dtype.name() == name);
            names.split(',').map(|name| named(name).expect("the name of a format")).collect()
        }
        Err(_) => vec![DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::BF16],
    }
}

#[test]
#[ignore = "a measurement; takes a minute on an idle machine in a release build"]
fn speed() {
    let tables = match std::env::var("GIRIH_ISA") {
        Ok(name) => vec![by_name(&name).unwrap()],
        Err(_) => vec![tables()[0]],
    };
    for table in tables {
        for dtype in formats() {
            for threads in [1, 2] {
                measure(table, dtype, threads);
            }
        }
    }
}
