//! The conformance suite on the simulated array. Results are stored in bf16, and sums are f32. Ops without a program
//! run on the host, and the report counts them by reason.

use girih_graph::description::AnyBackend;
use girih_graph::testing::{GeluForm, Open, Roundoff, TestedBackend, U, check};
use girih_npu::pass::{AttentionPlacement, Policy};
use girih_npu::{Npu, NpuOptions};
use girih_tensor::DType;

/// Cases of each op.
const SEEDS: u64 = 12;

/// Operands and results are bf16, whose unit roundoff is 2⁻⁸ and whose smallest number is 2⁻¹³³. What is between is
/// f32.
const BF16: Roundoff = Roundoff {
    unit: U,
    stored: 1.0 / 256.0,
    operands: DType::BF16,
    least: 1.0 / (1u128 << 127) as f64 / 64.0,
    gelu: GeluForm::Tanh,
};

/// The ops that the host computes in all cases.
const ON_THE_HOST: [&str; 15] = [
    "activate",
    "embed",
    "experts",
    "gate_heads",
    "gather",
    "layer_norm",
    "pool",
    "route",
    "scale",
    "short_conv",
    "softcap",
    "splice",
    "temper",
    "write",
    "xielu",
];

fn open(lengths: &[u32], contexts: &[u32]) -> Box<dyn AnyBackend> {
    let policy = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
    let (lengths, contexts) = (lengths.to_vec(), contexts.to_vec());
    let options = NpuOptions { policy, lengths, contexts, ..NpuOptions::default() };
    Box::new(Npu::new("toy", options).expect("the target is there"))
}

#[test]
fn the_array_is_within_the_bounds() {
    let ways: [Open<'_>; 2] = [&|| open(&[], &[]), &|| open(&[16], &[128])];
    let refusals = &["attention on the array does not support rows that attend to each other both ways"];
    let subject = TestedBackend {
        name: "npu:toy",
        ways: &ways,
        round: Some(BF16),
        one_row_differs: true,
        host_cases: 2,
        refusals,
    };
    let seeds = std::env::var("GIRIH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let report = check(subject, 0..seeds);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert_eq!(report.without_cases(), [] as [&str; 0]);
    assert_eq!(report.only_on_host(), ON_THE_HOST);
}
