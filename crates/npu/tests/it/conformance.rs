//! The conformance suite on the simulated array. Results are stored in bf16, and sums are f32. Ops without a program
//! run on the host, and the report counts them by reason.

use girih_graph::description::AnyBackend;
use girih_graph::testing::{
    Case, EqualBytes, GeluForm, Open, Report, Roundoff, TestedBackend, U, check, check_cases, draw,
};
use girih_graph::{Act, OpName};
use girih_npu::pass::{AttentionPlacement, Policy};
use girih_npu::{Npu, NpuOptions};
use girih_tensor::DType;

/// Cases of each op.
const SEEDS: u64 = 16;

/// Cases of attention and of gates. The array computes few of them: attention without sinks, and gates
/// by two activations.
const RARE_SEEDS: u64 = 320;

/// Operands and results are bf16, whose unit roundoff is 2⁻⁸ and whose smallest number is 2⁻¹³³. What is between is
/// f32.
const BF16: Roundoff = Roundoff {
    unit: U,
    stored: 1.0 / 256.0,
    operands: DType::BF16,
    least: 1.0 / (1u128 << 127) as f64 / 64.0,
    gelu: GeluForm::Tanh,
    erf: 0.0,
};

/// The ops that the host computes in all cases.
const ON_THE_HOST: [&str; 26] = [
    "attend_latent",
    "clamp",
    "concat",
    "delta_rule",
    "embed",
    "experts",
    "gate_heads",
    "gather",
    "hadamard",
    "linear_heads",
    "match_rms",
    "mix_heads",
    "pool",
    "route",
    "scale",
    "scale_columns",
    "select_keys",
    "shift_columns",
    "short_conv",
    "softcap",
    "sparsify",
    "splice",
    "ssm_scan",
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

/// Runs cases with programs of two sizes, and with more: for 16 rows, and for 128 positions.
fn report(cases: impl Fn(TestedBackend<'_>) -> Report) -> Report {
    let ways: [Open<'_>; 2] = [&|| open(&[], &[]), &|| open(&[16], &[128])];
    let own = TestedBackend::new("npu:toy", &ways, Some(BF16));
    let report = cases(TestedBackend { equal_bytes: EqualBytes::SeveralRows, host_cases: 2, ..own });
    println!("{report}");
    report
}

#[test]
fn the_array_is_within_the_bounds_and_names_what_the_host_computes() {
    let report = report(|subject| check(subject, 0..SEEDS));
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert_eq!(report.without_cases(), [] as [&str; 0]);
    // Few cases of attention, gates and rotations are on the array; the tests below have these.
    let is_rare = |op: &&str| ["attend", "gate", "rope"].contains(op);
    let on_the_host: Vec<_> = report.only_on_host().into_iter().filter(|op| !is_rare(op)).collect();
    assert_eq!(on_the_host, ON_THE_HOST);
}

/// The cases of an op that the array computes.
fn on_array(op: OpName, seeds: u64) -> Vec<(u64, Case)> {
    let cases = (0..seeds).map(|seed| (seed, draw(op, seed, BF16)));
    let is_host = |case: &Case| open(&[], &[]).host_work(&case.graph).iter().any(|work| work.op == case.of);
    cases.filter(|(_, case)| !is_host(case)).collect()
}

#[test]
fn rotations_on_the_array_are_within_the_bounds() {
    let cases = on_array(OpName::Rope, 32 * SEEDS);
    let report = report(|subject| check_cases(subject, cases.iter().cloned()));
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert!(cases.len() > 4, "{} cases of rotations", cases.len());
}

#[test]
fn attention_on_the_array_is_within_the_bounds() {
    let cases = on_array(OpName::Attend, RARE_SEEDS);
    for what in ["span: All", "span: Full", "span: Past", "span: Window"] {
        assert!(cases.iter().any(|(_, case)| case.name.contains(what)), "no case has {what}");
    }
    assert!(cases.iter().any(|(_, case)| case.graph.key.sequences > 1), "no case has several sequences");
    let report = report(|subject| check_cases(subject, cases.iter().cloned()));
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert!(report.ops["attend"].cases >= 6, "too few cases are on the array");
    assert_eq!(report.skipped().len(), 0);
}

#[test]
fn gates_on_the_array_are_within_the_bounds() {
    let cases = on_array(OpName::Gate, RARE_SEEDS);
    for act in [Act::Silu, Act::GeluTanh] {
        let has_act = |(_, case): &(u64, Case)| case.name.contains(&format!("act: {act:?}, "));
        assert!(cases.iter().any(has_act), "no case has {act:?}");
    }
    let report = report(|subject| check_cases(subject, cases.iter().cloned()));
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert_eq!(report.skipped().len(), 0);
}

/// Programs for heads that end within a word broke a rule of memory. The host computes them.
#[test]
fn heads_of_an_odd_number_of_values_have_no_program() {
    let text = "graph rows 8 sequences 1 context 8 output_rows 8 -> hidden
        input x: [rows 8, 3, 15] f32
        weight w: [15] bf16
        y: [rows 8, 3, 15] = norm(epsilon=1e-5) x, w
        output z: [output_rows 8, 3, 15] = gather y";
    let even = text.replace("15]", "16]");
    let reasons = |text: &str| -> Vec<String> {
        let work = open(&[], &[]).host_work(&text.parse().expect("the graph has no faults"));
        work.into_iter().filter(|work| work.op == "norm").map(|work| work.reason).collect()
    };
    assert_eq!(reasons(text), ["the array has no program for heads of an odd number of values"]);
    assert_eq!(reasons(&even), [] as [&str; 0]);
}
