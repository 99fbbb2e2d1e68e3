//! Scratch plans: values with overlapping lifetimes share no memory, placements are aligned, and
//! the total is within bounds.

use girih_graph::{Builder, Graph, Key, Op, OutputKind, Placement, Role, ScratchPlan};
use girih_tensor::DType;

use crate::forms::{EMBEDDINGS, ENCODER, TOKENS, parse};
use crate::random;

#[test]
fn values_that_live_together_share_no_memory() {
    check(&parse(TOKENS));
    check(&parse(EMBEDDINGS));
    check(&parse(ENCODER));
    (0..300).for_each(|seed| check(&random::graph(seed)));
}

/// One placement for each range of memory: reshaped values share theirs.
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
    scratch.filter(own).map(|index| plan.placements[index].expect("scratch has a placement")).collect()
}

fn check(graph: &Graph) {
    let plan = ScratchPlan::of(graph);
    let placements = distinct(graph, &plan);
    for (index, a) in placements.iter().enumerate() {
        assert_eq!(a.offset % ScratchPlan::PLACEMENT_ALIGNMENT, 0, "{a:?} is aligned");
        for b in &placements[index + 1..] {
            let together = a.first <= b.last && b.first <= a.last;
            let overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
            assert!(!(together && overlap), "{a:?} and {b:?} share memory and time in\n{graph}");
        }
    }
    lives_reach_from_writer_to_last_reader(graph, &plan);
    let live =
        |node: usize| placements.iter().filter(move |placed| (placed.first..=placed.last).contains(&node));
    let peak = (0..graph.nodes.len()).map(|node| live(node).map(|placed| placed.bytes).sum::<usize>()).max();
    let sum: usize = placements.iter().map(|placed| placed.bytes).sum();
    assert!(
        (peak.unwrap_or(0)..=sum).contains(&plan.bytes),
        "{} bytes, {peak:?} live, {sum} in all",
        plan.bytes
    );
}

fn lives_reach_from_writer_to_last_reader(graph: &Graph, plan: &ScratchPlan) {
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().chain([&node.output]) {
            let value = graph.value(*id);
            let placement = plan.placements[id.0 as usize];
            assert_eq!(
                placement.is_some(),
                value.role == Role::Scratch,
                "only scratch has a placement: {}",
                value.name
            );
            let Some(placed) = placement else { continue };
            assert!((placed.first..=placed.last).contains(&at), "{} lives at node {at}", value.name);
            assert!(placed.bytes >= value.shape.elements() * 4, "{} has room", value.name);
        }
    }
}

#[test]
fn reshaped_values_have_the_placement_of_their_operand() {
    let graph = parse(TOKENS);
    let plan = ScratchPlan::of(&graph);
    let placement = |name: &str| plan.placements[graph.find(name).expect("the form has it").0 as usize];
    assert_eq!(placement("layers.0.q"), placement("layers.0.q.heads"));
    assert_eq!(placement("layers.1.mixed"), placement("layers.1.flat"));
    // The last reader of the reshaped value is the rotation.
    let rope = graph.nodes.iter().position(|node| Some(node.output) == graph.find("layers.0.q.rotated"));
    assert_eq!(placement("layers.0.q").map(|placed| placed.last), rope);
    // The input is not scratch, so its reshaped value cannot share its memory.
    assert_eq!(placement("tokens"), None);
}

#[test]
fn a_deep_chain_takes_two_buffers() {
    let key = Key { rows: 16, sequences: 1, context: 64, output_rows: 16, output: OutputKind::Logits };
    let mut graph = Builder::new(key);
    let mut x = graph.input("x", &[16], DType::F32);
    for layer in 0..1000 {
        x = graph.same(&format!("x.{layer}"), Op::Scale { factor: 2.0 }, &[x]);
    }
    let last = graph.gather("last", x);
    let plan = ScratchPlan::of(&graph.finish(last));
    assert_eq!(plan.bytes, 2 * 16 * 16 * 4);
}
