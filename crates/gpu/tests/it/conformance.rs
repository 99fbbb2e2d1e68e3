//! The conformance suite: each op within its bound of the interpreter, with equal bytes in any steps.

use girih_graph::testing::{Open, Roundoff, TestedBackend, check};

use crate::opened::{adapter, open};

/// Cases of each op, unless the variable `GIRIH_SEEDS` says more.
const SEEDS: u64 = 12;

fn seeds() -> u64 {
    std::env::var("GIRIH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn each_op_is_within_its_bound_and_has_equal_bytes_in_any_steps() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    // Keeps the device, with its compiled kernels, open for all cases.
    let _open = open(name);
    let ways: [Open<'_>; 1] = [&|| open(name)];
    let report = check(TestedBackend::new(name, &ways, Some(Roundoff::SINGLE)), 0..seeds());
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
}
