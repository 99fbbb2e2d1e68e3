//! The conformance suite itself: the interpreter passes it, and some case notices each broken op.

use girih_graph::description::AnyBackend;
use girih_graph::interpret::Interpreter;
use girih_graph::testing::{Roundoff, TestedBackend, check, undetected};

/// Cases of each op.
const SEEDS: u64 = 32;

#[test]
fn the_interpreter_passes_whatever_the_steps() {
    let open: &dyn Fn() -> Box<dyn AnyBackend> = &|| Box::new(Interpreter);
    let round = Some(Roundoff::SINGLE);
    let report = check(TestedBackend::new("interpreter", &[open], round), 0..SEEDS);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert_eq!(report.without_cases(), [] as [&str; 0]);
}

#[test]
fn a_case_notices_each_broken_twin() {
    assert_eq!(undetected(0..SEEDS), [] as [&str; 0]);
}
