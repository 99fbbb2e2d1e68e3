//! Watches: the reported times of nodes and the amounts of work, and values that are watched.

use std::time::{Duration, Instant};

use girih_cpu::kernels::tables;
use girih_graph::backend::{Block, Input, NodeTime, Range32, Unwatched};
use girih_graph::{Graph, Op, Outputs, Pairing, Runner, Sequence, Step, Watch};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, cpu, cpu_with, on};
use crate::two_layers::{Model, model};

/// What was reported of a node: name, operator, rows, bytes, operations, time.
type Report = (String, &'static str, usize, u64, u64, Duration);

/// Watches every value, and keeps their bits.
#[derive(Default)]
pub struct Everything(pub Vec<(String, Vec<u32>)>);

impl Watch for Everything {
    fn wants(&self, _: &str) -> bool {
        true
    }

    fn value(&mut self, name: &str, _: &Shape, data: &[f32]) {
        self.0.push((name.to_owned(), data.iter().map(|x| x.to_bits()).collect()));
    }
}

/// Watches one value, and keeps its bits.
struct One<'a>(&'a str, Vec<u32>);

impl Watch for One<'_> {
    fn wants(&self, name: &str) -> bool {
        name == self.0
    }

    fn value(&mut self, _: &str, _: &Shape, data: &[f32]) {
        self.1.extend(data.iter().map(|x| x.to_bits()));
    }
}

/// Requests times, if `asks` is set.
struct Clock {
    asks: bool,
    reported: Vec<Report>,
}

impl Watch for Clock {
    fn wants(&self, _: &str) -> bool {
        false
    }

    fn value(&mut self, name: &str, _: &Shape, _: &[f32]) {
        panic!("'{name}' is not watched");
    }

    fn clocks(&self) -> bool {
        self.asks
    }

    fn took(&mut self, node: &NodeTime<'_>) {
        let NodeTime { name, op, variant, rows, bytes, operations, time } = *node;
        assert!(!variant.is_empty(), "'{name}' reports its variant");
        self.reported.push((name.to_owned(), op, rows, bytes, operations, time));
    }
}

/// Runs 30 tokens of a sequence, the last of which is an output row; returns the bits of its logits.
fn watched(graph: &Graph, runner: &mut dyn Runner, watch: &mut dyn Watch) -> Vec<u32> {
    let (tokens, blocks) = ([7; 30], [Block(0)]);
    let blocks = vec![&blocks[..]; graph.groups.len()];
    let rows = Range32 { start: 0, end: 30 };
    let sequence = Sequence { blocks: &blocks, position: 0, rows, outputs: Outputs::Last, spans: &[] };
    runner.step(Step { inputs: &[Input::Ids(&tokens)], sequences: &[sequence], watch }).unwrap();
    runner.output().rows(0..1).unwrap().iter().map(|x| x.to_bits()).collect()
}

fn run(graph: &Graph, runner: &mut dyn Runner, asks: bool) -> (Vec<Report>, Duration) {
    let mut clock = Clock { asks, reported: Vec::new() };
    let begun = Instant::now();
    watched(graph, runner, &mut clock);
    (clock.reported, begun.elapsed())
}

/// Fused nodes are computed one by one for a watch, with the same bits, and every value is reported.
#[test]
fn watching_changes_no_bit() {
    let half = Model { pairing: Pairing::Neighbours, weights: DType::Q8_0, ..Model::default() };
    for (width, state) in [(32, DType::F32), (32, DType::F16), (32, DType::BF16), (128, DType::Q8_0)] {
        for shape in [Model { width, state, ..Model::default() }, Model { width, state, ..half }] {
            let graph = model(shape);
            let source = Source::random(&graph, &mut Random(1));
            for &table in tables() {
                let mut runner = on(cpu_with(table, 2), &graph, &source, 2);
                let unseen = watched(&graph, &mut *runner, &mut Unwatched);
                let mut seen = Everything::default();
                assert_eq!(watched(&graph, &mut *runner, &mut seen), unseen, "{} {shape:?}", table.name);
                for node in graph.nodes.iter().filter(|node| node.op != Op::Write) {
                    let name = &graph.value(node.output).name;
                    assert_eq!(seen.0.iter().filter(|seen| seen.0 == *name).count(), 1, "'{name}'");
                }
            }
        }
    }
}

/// A value watched alone has the bits that it has if all are watched.
#[test]
fn a_value_watched_alone_has_the_same_bits() {
    let graph = model(Model::default());
    let mut runner = on(cpu(2), &graph, &Source::random(&graph, &mut Random(1)), 2);
    let mut all = Everything::default();
    let output = watched(&graph, &mut *runner, &mut all);
    for (name, bits) in &all.0 {
        let mut one = One(name, Vec::new());
        assert_eq!(watched(&graph, &mut *runner, &mut one), output, "'{name}'");
        assert_eq!(one.1, *bits, "'{name}'");
    }
}

#[test]
fn times_are_reported_on_request() {
    let graph = model(Model::default());
    let mut runner = on(cpu(2), &graph, &Source::random(&graph, &mut Random(1)), 2);
    assert_eq!(run(&graph, &mut *runner, false).0, []);
    let (reported, wall) = run(&graph, &mut *runner, true);
    // The gather is sunk, so its value is not one of the graph's.
    let nodes = reported.iter().filter(|report| report.1 != "pack" && !report.0.ends_with(".gathered"));
    // Matmuls of one value are reported as one node, at the position of the first.
    let first = |report: &Report| report.0.split('+').next().map(str::to_owned);
    let order: Vec<_> = nodes
        .map(|report| {
            graph.nodes.iter().position(|node| Some(&graph.value(node.output).name) == first(report).as_ref())
        })
        .collect();
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{reported:?}");
    assert!(reported.iter().map(|report| report.5).sum::<Duration>() <= wall);

    let of = |op| reported.iter().filter(move |report| report.1 == op);
    let layer = |index: usize| {
        ["q+k+v", "o+mixed", "gate+up+gated", "down+out"].map(|name| format!("layers.{index}.{name}"))
    };
    let tasks: Vec<&str> = of("linear").map(|report| report.0.as_str()).collect();
    assert_eq!(tasks, [&layer(0)[..], &layer(1), &["logits".to_owned()]].concat());
    // All matmuls: 30 rows of each, but 1 row of the output matrix and of the matmuls after the last
    // attention: o, gate, up and down.
    let linear = graph.nodes.iter().filter(|node| node.op == Op::Linear);
    let sizes: Vec<u64> = linear.map(|node| graph.value(node.inputs[1]).shape.elements() as u64).collect();
    let (others, last) = sizes.split_at(sizes.len() - 5);
    let operations = 2 * (30 * others.iter().sum::<u64>() + last.iter().sum::<u64>());
    assert_eq!(of("linear").map(|report| report.4).sum::<u64>(), operations);
    let least = sizes.iter().sum::<u64>() * DType::BF16.block_bytes() as u64;
    assert!(of("linear").map(|report| report.3).sum::<u64>() >= least);
    // Layer 0 sees 20 positions back, layer 1 all: 4 query heads of 8 values,
    // and 2 heads each of keys and values in f16, the rows of values padded
    // to 16.
    let windowed: u64 = (1..=30).map(|seen: u64| seen.min(20)).sum();
    let attended: Vec<_> = of("attend").map(|report| (report.2, report.3, report.4)).collect();
    let bytes = 30 * 2 * (8 + 16) * 2;
    assert_eq!(attended, [(30, bytes, 2 * windowed * 4 * 16), (30, bytes, 2 * 465 * 4 * 16)]);
}
