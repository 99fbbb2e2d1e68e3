//! Experts that another backend computes in the middle of a step: their rows cross both ways without a change of a bit.

use girih_graph::description::AnyBackend;
use girih_graph::host_experts::HostExpertsBackend;
use girih_graph::interpret::Interpreter;
use girih_graph::routed_experts::is_routed;
use girih_graph::testing::{Case, Open, TestedBackend, check_cases, compare_experts, draw_block};

use crate::opened::{adapter, open};

/// The number of cases.
const CASES: usize = 6;

/// Layers with routed experts, in formats that the GPU reads.
fn cases(open: Open<'_>) -> Vec<(u64, Case)> {
    let cases = (0..48).map(|seed| (seed, draw_block(seed)));
    let has_experts = |case: &Case| case.graph.nodes.iter().any(|node| is_routed(&case.graph, node));
    cases
        .filter(|(_, case)| has_experts(case) && open().refuses(&case.graph).is_empty())
        .take(CASES)
        .collect()
}

#[test]
fn experts_beside_a_gpu_have_the_bits_of_their_backend_and_equal_bytes_in_any_steps() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    // Keeps the device, with its compiled kernels, open for all cases.
    let _open = open(name);
    let both = || -> Box<dyn AnyBackend> {
        let both = HostExpertsBackend::new(open(name), Box::new(Interpreter));
        Box::new(both.expect("the GPU leaves experts"))
    };
    let cases = cases(&both);
    assert_eq!(cases.len(), CASES);
    for (seed, case) in &cases {
        let built = |key| Ok(case.graph_at(key));
        let runner = both().load(&case.weights, case.graph.key, &case.blocks(), &built);
        let mut runner = runner.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let compared = compare_experts(&mut *runner, Box::new(Interpreter), case);
        assert!(compared.is_ok_and(|nodes| nodes > 0), "seed {seed}");
    }
    let ways: [Open<'_>; 1] = [&both];
    let report = check_cases(TestedBackend::new(name, &ways, None), cases.into_iter());
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
}

/// Weights that the device has no room for are no longer its business.
#[test]
fn a_device_that_leaves_experts_has_none_of_their_weights() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let case =
        (0..).map(draw_block).find(|case| case.graph.nodes.iter().any(|node| is_routed(&case.graph, node)));
    let graph = case.expect("some seed has experts").graph;
    let mut backend = open(name);
    let device =
        |backend: &dyn AnyBackend| backend.plan(&graph, &[1; 8]).device.expect("it has memory").bytes;
    let whole = device(&*backend).weights;
    backend.leave_experts().expect("the GPU leaves experts");
    assert!(device(&*backend).weights < whole);
}
