//! The conformance suite on every kernel table: each op within its bound of the interpreter, and with equal bytes
//! for any number of threads and any steps.

use std::ops::Range;

use girih_cpu::kernels::attend::{Cells, ChunkWeights, MaxSum, ValueBlock};
use girih_cpu::kernels::packed::{Band, Panels, Sums};
use girih_cpu::kernels::{Table, tables};
use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, PrecisionRule};
use girih_graph::description::AnyBackend;
use girih_graph::testing::{Open, Report, Roundoff, TestedBackend, check};

use crate::fixture::{changed, portable};

/// Cases of each op, unless the variable `GIRIH_SEEDS` says more.
const SEEDS: u64 = 16;

fn seeds() -> u64 {
    std::env::var("GIRIH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// The precision without rounding.
const EXACT: PrecisionRule = PrecisionRule::Requested(ActivationPrecision::F32);

/// Runs the suite with some numbers of threads.
fn report(table: Table, precision: PrecisionRule, round: Option<Roundoff>, seeds: Range<u64>) -> Report {
    let open = |threads: usize| -> Box<dyn AnyBackend> {
        let options = CpuOptions { threads, precision, ..CpuOptions::default() };
        Box::new(Cpu::with_table(options, table).expect("the options agree"))
    };
    let ways: [Open<'_>; 3] = [&|| open(1), &|| open(2), &|| open(5)];
    check(TestedBackend::new(table.name, &ways, round), seeds)
}

/// All tables are reported before any fault fails the test: `xtask mutants` reads the reports.
#[test]
fn every_table_is_within_the_bounds_and_has_equal_bytes_in_any_steps() {
    let reports: Vec<Report> =
        tables().iter().map(|table| report(*table, EXACT, Some(Roundoff::SINGLE), 0..seeds())).collect();
    for (table, report) in tables().iter().zip(&reports) {
        println!("{}\n{report}", table.name);
    }
    for report in reports {
        assert_eq!(report.faults(), [] as [&str; 0]);
        assert_eq!(report.without_cases(), [] as [&str; 0]);
    }
}

/// Activations that are rounded to integers, to two terms of them, to half precision, to bf16, or to eight-bit floats. Weights that have no such product are
/// refused, and skipped.
#[test]
fn rounded_activations_have_equal_bytes_in_any_steps() {
    let requested = [
        ActivationPrecision::Int8x2,
        ActivationPrecision::Fp16,
        ActivationPrecision::Bf16,
        ActivationPrecision::Fp8E4M3,
    ];
    let requested = requested.map(PrecisionRule::Requested);
    for precision in [CpuOptions::default().precision].into_iter().chain(requested) {
        for table in tables() {
            assert_eq!(report(*table, precision, None, 0..seeds() / 4).faults(), [] as [&str; 0]);
        }
    }
}

fn sum_too_large(scores: &mut [ChunkWeights], seen: Range<usize>, cap: Option<f32>, ends: &mut [MaxSum]) {
    (portable().attend.weigh)(scores, seen, cap, ends);
    ends.iter_mut().for_each(|[_, sum]| *sum *= 1.001);
}

fn without_last_position(weights: &[ChunkWeights], at: usize, mut values: ValueBlock<'_>, sums: &mut [f32]) {
    values.positions.end -= 1;
    (portable().attend.blend)(weights, at, values, sums);
}

fn without_last_dim(q: &[f32], keys: Cells<'_>, ahead: &[u8], scores: &mut [ChunkWeights], at: usize) {
    let last = q.len() - scores.len();
    let q = [&q[..last], &vec![0.0; scores.len()]].concat();
    (portable().attend.score)(&q, keys, ahead, scores, at);
}

/// Tables with one wrong kernel each.
fn wrong_tables() -> Vec<(&'static str, Table)> {
    let decode = |band: Band<'_>, first: usize, count: usize, panels: &mut Panels| {
        (portable().matmul.decode)(band, first, count, panels);
        panels[1][0].codes[7][63] ^= 1;
    };
    let floats = |band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]| {
        (portable().matmul.floats)(band, first, &x[..x.len() - sums.len()], sums);
    };
    vec![
        ("decode", changed(|table| table.matmul.decode = decode)),
        ("floats", changed(|table| table.matmul.floats = floats)),
        ("weigh", changed(|table| table.attend.weigh = sum_too_large)),
        ("blend", changed(|table| table.attend.blend = without_last_position)),
        ("score", changed(|table| table.attend.score = without_last_dim)),
        ("join", changed(|table| table.attend.join = |_, _, _, _| {})),
        ("widen_keys", changed(|table| table.attend.widen_keys = |_, _, _, into| into.fill(0.5))),
        ("widen_values", changed(|table| table.attend.widen_values = |_, into| into.fill(0.5))),
        ("halve", changed(|table| table.attend.halve = |_, bytes| bytes.fill(0x11))),
    ]
}

#[test]
fn a_wrong_kernel_is_detected() {
    for (name, table) in wrong_tables() {
        let notices =
            |seed| !report(table, EXACT, Some(Roundoff::SINGLE), seed..seed + 1).faults().is_empty();
        assert!((0..8).any(notices), "no case detects that '{name}' is wrong");
    }
}
