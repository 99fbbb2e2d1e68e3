//! Experts whose weights no router has chosen, and experts that run by themselves.

use girih_graph::description::AnyBackend;
use girih_graph::routed_experts::is_routed;
use girih_graph::testing::{compare_experts, draw_block};
use girih_graph::{Act, Backend, Builder, Op, Weighed};
use girih_tensor::{DType, Shape};

use crate::fixture::{cpu, finish, key};

#[test]
fn weights_that_no_router_chose_are_refused() {
    let mut builder = Builder::new(key(4, 64));
    let x = builder.input("x", &[8], DType::F32);
    let weights = builder.input("weights", &[2], DType::F32);
    let stack = Shape::new(&[2, 8, 8]).unwrap();
    let [up, down] = ["up", "down"].map(|name| builder.weight(name, stack, DType::F32));
    let y = builder.shaped(
        "y",
        Op::Experts { used: 1, act: Act::Silu, limit: None, offset: None, weighed: Weighed::Results },
        &[x, weights, up, down],
        &[8],
    );
    let graph = finish(builder, y);
    let objections = cpu(1).objections(&graph);
    assert_eq!(objections[0].reason, "its weights are no choice of 1 experts by 'route'");
}

#[test]
fn experts_by_themselves_have_the_bits_of_the_whole_graph() {
    let mut compared = 0;
    for seed in 0..60 {
        let case = draw_block(seed);
        let has_experts = case.graph.nodes.iter().any(|node| is_routed(&case.graph, node));
        let [whole, alone] = [1, 3].map(|threads| Box::new(cpu(threads)) as Box<dyn AnyBackend>);
        if !has_experts || !whole.refuses(&case.graph).is_empty() {
            continue;
        }
        let built = |key| Ok(case.graph_at(key));
        let mut whole = whole.load(&case.weights, case.graph.key, &case.blocks(), &built).unwrap();
        let nodes = compare_experts(&mut *whole, alone, &case);
        compared += nodes.unwrap_or_else(|sentence| panic!("seed {seed}: {sentence}"));
    }
    assert!(compared > 5, "{compared} nodes");
}
