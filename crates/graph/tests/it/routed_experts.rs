//! Routed experts as a graph of their own, and a graph without their weights.

use girih_graph::description::AnyBackend;
use girih_graph::host_experts::HostExpertsBackend;
use girih_graph::interpret::Interpreter;
use girih_graph::routed_experts::{ExpertsGraph, has_no_weights, is_routed, without_weights};
use girih_graph::testing::{Case, compare_experts, draw_block};
use girih_graph::{Role, faults};

/// Layers with routed experts, and layers without.
fn mixtures() -> impl Iterator<Item = (u64, Case)> {
    let cases = (0..60).map(|seed| (seed, draw_block(seed)));
    cases.filter(|(_, case)| case.graph.nodes.iter().any(|node| is_routed(&case.graph, node)))
}

#[test]
fn experts_by_themselves_have_the_bits_of_the_whole_graph() {
    let mut compared = 0;
    for (seed, case) in mixtures() {
        let built = |key| Ok(case.graph_at(key));
        let whole = Box::new(Interpreter).load(&case.weights, case.graph.key, &case.blocks(), &built);
        let nodes = compare_experts(&mut *whole.unwrap(), Box::new(Interpreter), &case);
        compared += nodes.unwrap_or_else(|sentence| panic!("seed {seed}: {sentence}"));
    }
    assert!(compared > 10, "{compared} nodes");
}

#[test]
fn the_two_graphs_have_all_weights_of_the_whole() {
    for (seed, case) in mixtures() {
        let experts = ExpertsGraph::of(&case.graph).unwrap();
        assert_eq!(faults(&experts.graph), [], "seed {seed}: {}", experts.graph);
        let rest = without_weights(&case.graph);
        let left = rest.nodes.iter().filter(|node| has_no_weights(node)).count();
        assert_eq!((left, rest.nodes.len()), (experts.nodes.len(), case.graph.nodes.len()), "seed {seed}");
        let names = |graph: &girih_graph::Graph| -> Vec<String> {
            graph.weights().map(|(_, value)| value.name.clone()).collect()
        };
        let mut both = [names(&experts.graph), names(&rest)].concat();
        let mut whole = names(&case.graph);
        both.sort();
        whole.sort();
        assert_eq!(both, whole, "seed {seed}");
        let states = |graph: &girih_graph::Graph| {
            graph.ids().filter(|(_, value)| matches!(value.role, Role::State(_))).count()
        };
        assert_eq!(states(&rest), states(&case.graph));
    }
}

#[test]
fn what_cannot_leave_experts_is_refused_by_name() {
    let both = HostExpertsBackend::new(Box::new(Interpreter), Box::new(Interpreter));
    let sentence = both.err().expect("the interpreter computes them").to_string();
    assert_eq!(sentence, "the interpreter backend computes experts itself: remove cpu-experts");
    let dense =
        (0..).map(draw_block).find(|case| !case.graph.nodes.iter().any(|node| is_routed(&case.graph, node)));
    let clause = ExpertsGraph::of(&dense.unwrap().graph).unwrap_err();
    assert_eq!(clause, "it has no routed experts");
}
