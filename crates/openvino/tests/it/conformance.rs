//! The conformance suite: each op within its bound of the interpreter, however rows are divided into steps.

use girih_graph::testing::{EqualBytes, Open, Roundoff, TestedBackend, check};

use crate::opened::{open, processor};

/// Cases of each op, unless the variable `GIRIH_SEEDS` says more.
const SEEDS: u64 = 8;

#[test]
fn each_op_is_within_its_bound_in_any_steps() {
    let Some(choice) = processor() else { return };
    let seeds = std::env::var("GIRIH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let ways: [Open<'_>; 1] = [&|| open(&choice)];
    let subject = TestedBackend {
        equal_bytes: EqualBytes::SameSteps,
        ..TestedBackend::new("openvino", &ways, Some(Roundoff::SINGLE))
    };
    let report = check(subject, 0..seeds);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
}
