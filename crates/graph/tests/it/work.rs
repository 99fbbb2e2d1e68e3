//! The work of nodes: what they read, and what they compute.

use girih_graph::backend::Range32;
use girih_graph::{Graph, MAX_OPERANDS, NodeWork, Outputs, ReadPositions, Reads, Sequence};

use crate::forms::parse;

const GRAPH: &str = "\
graph rows 8 sequences 2 context 64 output_rows 2 -> logits
group full span full
group window_3 span window:3
input tokens: [rows 8] i32
weight table: [10, 4] f32
embed: [rows 8, 4] = embed tokens, table
weight up: [8, 4] f32
weight up.bias: [8] f32
wide: [rows 8, 8] = linear embed, up, up.bias
q: [rows 8, 4, 2] = reshape wide
kv: [rows 8, 2, 2] = reshape embed
state keys: [context 64, 2, 2] f16 in full
keys = write kv
state near: [context 64, 2, 2] f16 in window_3
near = write kv
all: [rows 8, 4, 2] = attend(scale=1.0 span=full) q, keys, keys
last: [rows 8, 4, 2] = attend(scale=1.0 span=window:3) q, near, near
sum: [rows 8, 4, 2] = add all, last
taken: [output_rows 2, 4, 2] = gather sum
flat: [output_rows 2, 8] = reshape taken
weight head: [10, 8] f32
output logits: [output_rows 2, 10] = linear flat, head
";

/// A sequence of `count` rows from `row` and `position` on.
fn sequence(row: u32, count: u32, position: u32, outputs: Outputs) -> Sequence<'static> {
    let rows = Range32 { start: row, end: row + count };
    Sequence { blocks: &[], position, rows, outputs, spans: &[] }
}

/// The work of the node that makes a value.
fn work(graph: &Graph, name: &str, sequences: &[Sequence<'_>]) -> NodeWork {
    let value = graph.find(name).expect("the graph has the value");
    let node = graph.nodes.iter().find(|node| node.output == value);
    graph.work(node.expect("a node makes the value"), sequences)
}

#[test]
fn rows_are_those_of_the_step() {
    let graph = parse(GRAPH);
    let sequences = [sequence(0, 5, 0, Outputs::None), sequence(5, 1, 9, Outputs::Last)];
    let of = |name: &str| work(&graph, name, &sequences);
    let [all, one] = [Reads::All, Reads::Rows(1)];
    let reads = |first: &[Reads]| {
        let mut reads = [Reads::Nothing; MAX_OPERANDS];
        reads[..first.len()].copy_from_slice(first);
        NodeWork { reads, ..NodeWork::default() }
    };
    assert_eq!(of("embed"), reads(&[all, Reads::Rows(6)]));
    let linear = NodeWork { multiply_adds: 6 * 32, other_operations: 6 * 8, ..reads(&[all; 3]) };
    assert_eq!(of("wide"), linear);
    assert_eq!(of("keys").reads[0], all);
    assert_eq!((of("sum").multiply_adds, of("sum").other_operations), (0, 6 * 8));
    assert_eq!(of("taken"), reads(&[one]));
    assert_eq!(of("logits").multiply_adds, 80);
    // A chunk without output rows does not read the head.
    assert_eq!(work(&graph, "logits", &sequences[..1]), NodeWork::default());
}

/// Four experts of 2 × (3 · 2) and 2 · 3 numbers, of which a row chooses two.
#[test]
fn experts_are_read_as_far_as_they_are_chosen() {
    let graph = parse(
        "graph rows 8 sequences 1 context 64 output_rows 8 -> hidden\n\
         input x: [rows 8, 2] f32\nweight router: [4, 2] f32\nscores: [rows 8, 4] = linear x, router\n\
         weights: [rows 8, 4] = route(score=softmax used=2) scores\nweight up: [4, 3, 2] f32\n\
         weight down: [4, 2, 3] f32\nweight gate: [4, 3, 2] f32\n\
         y: [rows 8, 2] = experts(used=2 act=silu) x, weights, up, down, gate\n\
         output z: [output_rows 8, 2] = gather y\n",
    );
    let of = |rows: u32| work(&graph, "y", &[sequence(0, rows, 0, Outputs::All)]);
    let rows = |experts: u64| [Reads::Rows(experts * 3), Reads::Rows(experts * 2), Reads::Rows(experts * 3)];
    assert_eq!((of(1).reads[2..5].to_vec(), of(1).multiply_adds), (rows(2).to_vec(), 2 * 18));
    assert_eq!((of(8).reads[2..5].to_vec(), of(8).multiply_adds), (rows(4).to_vec(), 8 * 2 * 18));
}

#[test]
fn positions_are_counted_once_and_by_row() {
    let graph = parse(GRAPH);
    let reads = |name: &str, sequences: &[Sequence<'_>]| {
        let work = work(&graph, name, sequences);
        let Reads::Positions(ReadPositions { distinct, by_row }) = work.reads[1] else {
            panic!("attention reads positions")
        };
        assert_eq!((work.reads[0], work.reads[2]), (Reads::All, work.reads[1]));
        // Each of four heads has two numbers in its query and in its result.
        assert_eq!(work.multiply_adds, by_row * 16);
        (distinct, by_row)
    };
    let one = |count, position| [sequence(0, count, position, Outputs::Last)];
    assert_eq!(reads("all", &one(4, 0)), (4, 10));
    assert_eq!(reads("all", &one(1, 49)), (50, 50));
    assert_eq!(reads("last", &one(1, 49)), (3, 3));
    assert_eq!(reads("last", &one(3, 0)), (3, 6));
    assert_eq!(reads("last", &one(4, 10)), (6, 12));
    let two = [sequence(0, 4, 0, Outputs::None), sequence(4, 1, 49, Outputs::Last)];
    assert_eq!(reads("all", &two), (54, 60));
    // Rows of a mutual span read each other.
    let spans = [Range32 { start: 1, end: 3 }];
    assert_eq!(reads("all", &[Sequence { spans: &spans, ..one(4, 0)[0] }]), (4, 11));
}
