//! The conformance suite on the simulated array: results are stored in bf16, sums are f32. Ops that the host computes are
//! skipped by name.

use girih_graph::description::AnyBackend;
use girih_graph::testing::{Open, Roundoff, TestedBackend, U, check};
use girih_npu::pass::{AttentionPlacement, Policy};
use girih_npu::{Npu, NpuOptions};
use girih_tensor::DType;

/// Cases of each op.
const SEEDS: u64 = 12;

/// Operands and results are bf16, whose unit roundoff is 2⁻⁸; what is between is f32.
const BF16: Roundoff = Roundoff { unit: U, stored: 1.0 / 256.0, operands: DType::BF16 };

/// The ops that the array has programs for.
const ON_THE_ARRAY: [&str; 7] = ["norm", "linear", "rope", "attend", "gate", "add", "reshape"];

fn open() -> Box<dyn AnyBackend> {
    let policy = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
    Box::new(Npu::new("toy", NpuOptions { policy, ..NpuOptions::default() }).expect("the target is there"))
}

#[test]
fn the_array_is_within_the_bounds() {
    let ways: [Open<'_>; 1] = [&open];
    let subject = TestedBackend { name: "npu:toy", ways: &ways, round: Some(BF16), skips_host_work: true };
    let report = check(subject, 0..SEEDS);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
    let skipped = report.without_cases();
    for name in ON_THE_ARRAY {
        assert!(!skipped.contains(&name), "no case of {name} ran");
    }
}
