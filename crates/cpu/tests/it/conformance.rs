//! The conformance suite on every kernel table: each op within its bound of the interpreter, and with equal bytes
//! for any number of threads and any steps.

use girih_cpu::kernels::{Table, tables};
use girih_graph::description::AnyBackend;
use girih_graph::testing::{Open, Report, Roundoff, Subject, check};

use crate::fixture::{cpu_with, exact};

/// Cases of each op, unless the variable `GIRIH_SEEDS` says more.
const SEEDS: u64 = 16;

fn seeds() -> u64 {
    std::env::var("GIRIH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// Runs the suite with some numbers of threads, without rounding of activations or with that of the table.
fn report(table: Table, round: Option<Roundoff>) -> Report {
    let open = |threads: usize| -> Box<dyn AnyBackend> {
        match round {
            Some(_) => Box::new(exact(table, threads)),
            None => Box::new(cpu_with(table, threads)),
        }
    };
    let ways: [Open<'_>; 3] = [&|| open(1), &|| open(2), &|| open(5)];
    check(Subject { name: table.name, ways: &ways, round, skips_host_work: false }, 0..seeds())
}

#[test]
fn every_table_is_within_the_bounds_and_has_equal_bytes_in_any_steps() {
    for table in tables() {
        let report = report(*table, Some(Roundoff::SINGLE));
        println!("{}\n{report}", table.name);
        assert_eq!(report.faults(), [] as [&str; 0]);
        assert_eq!(report.without_cases(), []);
    }
}

/// Activations that are rounded to integers or to bf16.
#[test]
fn rounded_activations_have_equal_bytes_in_any_steps() {
    for table in tables() {
        let report = report(*table, None);
        assert_eq!(report.faults(), [] as [&str; 0]);
    }
}
