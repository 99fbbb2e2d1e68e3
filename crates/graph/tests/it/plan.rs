//! Placements: apart while both live, aligned, and not much more than needed.

use girih_graph::{Builder, Graph, Key, Op, Placement, Role, ScratchPlan, Variant};
use girih_tensor::DType;

use crate::forms::{EMBEDDINGS, TOKENS, parse};
use crate::random;

#[test]
fn plans_of_all_graphs_are_sound() {
    check(&parse(TOKENS));
    check(&parse(EMBEDDINGS));
    (0..300).for_each(|seed| check(&random::graph(seed)));
}

/// One placement for each stretch of memory: reshaped values share theirs.
fn distinct(graph: &Graph, plan: &ScratchPlan) -> Vec<Placement> {
    let written = |index: usize| {
        let node = graph.nodes.iter().find(|node| node.output.0 as usize == index);
        node.expect("scratch is written")
    };
    let own = |index: &usize| {
        let node = written(*index);
        node.op != Op::Reshape || graph.value(node.inputs[0]).role != Role::Scratch
    };
    let scratch = (0..graph.values.len()).filter(|&index| graph.values[index].role == Role::Scratch);
    scratch.filter(own).map(|index| plan.places[index].expect("scratch has a place")).collect()
}

fn check(graph: &Graph) {
    let plan = ScratchPlan::of(graph);
    let places = distinct(graph, &plan);
    for (index, a) in places.iter().enumerate() {
        assert_eq!(a.offset % ScratchPlan::ALIGNMENT, 0, "{a:?} is aligned");
        for b in &places[index + 1..] {
            let together = a.first <= b.last && b.first <= a.last;
            let overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
            assert!(!(together && overlap), "{a:?} and {b:?} share memory and time in\n{graph}");
        }
    }
    lives_reach_from_writer_to_last_reader(graph, &plan);
    let live = |node: usize| places.iter().filter(move |place| (place.first..=place.last).contains(&node));
    let most = (0..graph.nodes.len()).map(|node| live(node).map(|place| place.bytes).sum::<usize>()).max();
    let sum: usize = places.iter().map(|place| place.bytes).sum();
    assert!(
        (most.unwrap_or(0)..=sum).contains(&plan.bytes),
        "{} bytes, {most:?} live, {sum} in all",
        plan.bytes
    );
}

fn lives_reach_from_writer_to_last_reader(graph: &Graph, plan: &ScratchPlan) {
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().chain([&node.output]) {
            let value = graph.value(*id);
            let place = plan.places[id.0 as usize];
            assert_eq!(
                place.is_some(),
                value.role == Role::Scratch,
                "only scratch has a place: {}",
                value.name
            );
            let Some(place) = place else { continue };
            assert!((place.first..=place.last).contains(&at), "{} lives at node {at}", value.name);
            assert!(place.bytes >= value.shape.elements() * 4, "{} has room", value.name);
        }
    }
}

#[test]
fn reshaped_values_have_the_place_of_their_operand() {
    let graph = parse(TOKENS);
    let plan = ScratchPlan::of(&graph);
    let place = |name: &str| plan.places[graph.find(name).expect("the form has it").0 as usize];
    assert_eq!(place("layers.0.q"), place("layers.0.q.heads"));
    assert_eq!(place("layers.1.mixed"), place("layers.1.flat"));
    // The last reader of the reshaped value is the rotation.
    let rope = graph.nodes.iter().position(|node| Some(node.output) == graph.find("layers.0.q.rotated"));
    assert_eq!(place("layers.0.q").map(|place| place.last), rope);
    // Input is not scratch, and so lends its place to nobody.
    assert_eq!(place("tokens"), None);
}

#[test]
fn a_deep_chain_takes_two_buffers() {
    let key = Key { rows: 16, sequences: 1, context: 64, output_rows: 16, variant: Variant::GENERATE };
    let mut graph = Builder::new(key);
    let mut x = graph.input("x", &[16], DType::F32);
    for layer in 0..1000 {
        x = graph.same(&format!("x.{layer}"), Op::Scale { factor: 2.0 }, &[x]);
    }
    let taken = graph.gather("taken", x);
    let plan = ScratchPlan::of(&graph.finish(taken));
    assert_eq!(plan.bytes, 2 * 16 * 16 * 4);
}
