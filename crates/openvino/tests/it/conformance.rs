//! The conformance suite: each op within its bound of the interpreter, however rows are divided into steps.

use girih_graph::OpName;
use girih_graph::testing::{
    EqualBytes, GeluForm, Open, Roundoff, TestedBackend, U, check, check_cases, draw,
};

use crate::opened::{fixed, open, processor, wrapped};

/// Cases of each op, unless the variable `GIRIH_SEEDS` says more.
const SEEDS: u64 = 8;

/// Single precision with OpenVINO's functions. GELU's tanh form cancels. In the tail `Q(t)` of the other form, the exponent
/// −t²/2 is rounded twice, which is an error of `t² · Q(t)` units, below 0.17 for any `t`, and of twice as much of `erf`.
/// Subnormal numbers may be taken for zero; operands of the cases multiply each other by less than 64.
const FUNCTIONS: Roundoff = Roundoff {
    gelu: GeluForm::Tanh,
    erf: 2.0 * 0.17 * U,
    least: 64.0 * f32::MIN_POSITIVE as f64,
    ..Roundoff::SINGLE
};

/// Models of fixed extents: the same bounds, however a step is filled up. Their calls are of one sequence each.
#[test]
fn each_op_is_within_its_bound_in_steps_that_are_filled_up() {
    let Some(choice) = fixed() else { return };
    let ways: [Open<'_>; 1] = [&|| open(&choice)];
    let subject = TestedBackend {
        equal_bytes: EqualBytes::SameSteps,
        ..TestedBackend::new("openvino, fixed", &ways, Some(FUNCTIONS))
    };
    let ops = [
        (OpName::Attend, 6),
        (OpName::Experts, 2),
        (OpName::Gather, 1),
        (OpName::Linear, 1),
        (OpName::Pool, 1),
        (OpName::Rope, 1),
        (OpName::Route, 2),
        (OpName::ShortConv, 2),
        (OpName::Splice, 1),
        (OpName::Temper, 1),
        (OpName::Write, 2),
    ];
    let cases =
        ops.into_iter().flat_map(|(op, seeds)| (0..seeds).map(move |seed| (seed, draw(op, seed, FUNCTIONS))));
    let report = check_cases(subject, cases);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert!(report.skipped().iter().any(|reason| reason.contains("fill it up")), "{report}");
}

/// The same through OpenVINO's wrapper of NPUs, for the ops with state and those that read matrices.
#[test]
fn ops_are_within_their_bounds_through_the_wrapper_of_npus() {
    let Some(choice) = wrapped() else { return };
    let ways: [Open<'_>; 1] = [&|| open(&choice)];
    let subject = TestedBackend {
        equal_bytes: EqualBytes::SameSteps,
        ..TestedBackend::new("openvino, NPUW", &ways, Some(FUNCTIONS))
    };
    let cases = [(OpName::Attend, 1), (OpName::Attend, 4), (OpName::Linear, 0), (OpName::Embed, 0)]
        .into_iter()
        .chain([0, 1, 2].into_iter().flat_map(|seed| [(OpName::Route, seed), (OpName::Experts, seed)]));
    let cases = cases.map(|(op, seed)| (seed, draw(op, seed, FUNCTIONS)));
    let report = check_cases(subject, cases);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
}

#[test]
fn each_op_is_within_its_bound_in_any_steps() {
    let Some(choice) = processor() else { return };
    // More of the ops that read matrices, so that each format is among the cases.
    let seeds = std::env::var("GIRIH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let ways: [Open<'_>; 1] = [&|| open(&choice)];
    let subject = TestedBackend {
        equal_bytes: EqualBytes::SameSteps,
        ..TestedBackend::new("openvino", &ways, Some(FUNCTIONS))
    };
    let of_matrices = (seeds..seeds + 40)
        .flat_map(|seed| [OpName::Embed, OpName::Linear].map(|op| (seed, draw(op, seed, FUNCTIONS))));
    // More routers, as they have more constants than other ops have.
    let of_experts = (seeds..seeds + 12)
        .flat_map(|seed| [OpName::Experts, OpName::Route].map(|op| (seed, draw(op, seed, FUNCTIONS))));
    let cases = of_matrices.chain(of_experts);
    for report in [check(subject, 0..seeds), check_cases(subject, cases)] {
        println!("{report}");
        assert_eq!(report.faults(), [] as [&str; 0]);
    }
}
