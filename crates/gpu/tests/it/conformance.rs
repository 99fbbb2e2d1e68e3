//! The conformance suite: each op within its bound of the interpreter, with equal bytes in any steps.

use girih_graph::OpName;
use girih_graph::testing::{Open, Roundoff, TestedBackend, check, check_cases, draw};

use crate::opened::{adapter, open, open_with};

/// Cases of each op, unless the variable `GIRIH_SEEDS` says more.
const SEEDS: u64 = 12;

/// Single precision without subnormal numbers, which a GPU may take for zero; NVIDIA's do. Operands of the cases multiply
/// each other by less than 64.
const FLUSHING: Roundoff = Roundoff { least: 64.0 * f32::MIN_POSITIVE as f64, ..Roundoff::SINGLE };

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
    let ways: [Open<'_>; 1] = [&|| open_with(name, &[("act-precision", "f32")])];
    let subject = TestedBackend::new(name, &ways, Some(FLUSHING));
    // Few cases of the delta rule share several heads of keys between neighbours.
    let more = (seeds()..2 * seeds()).map(|seed| (seed, draw(OpName::DeltaRule, seed, Roundoff::SINGLE)));
    for report in [check(subject, 0..seeds()), check_cases(subject, more)] {
        println!("{report}");
        assert_eq!(report.faults(), [] as [&str; 0]);
    }
}

/// Activations that are rounded to integers before products.
#[test]
fn rounded_activations_have_equal_bytes_in_any_steps() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let _open = open(name);
    let ways: [Open<'_>; 1] = [&|| open(name)];
    let ops = [OpName::Linear, OpName::LinearHeads, OpName::Experts];
    let cases = (0..seeds()).flat_map(|seed| ops.map(|op| (seed, draw(op, seed, Roundoff::SINGLE))));
    let report = check_cases(TestedBackend::new(name, &ways, None), cases);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
}
