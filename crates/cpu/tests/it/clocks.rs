//! The times of nodes: told to whom asks, of work that was done.

use std::time::{Duration, Instant};

use girih_cpu::kernels::tables;
use girih_graph::backend::{Block, Inputs, NodeTime, Range32, Unwatched};
use girih_graph::{Graph, Op, Outputs, Pairing, Runner, Sequence, Step, Watch};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, cpu, cpu_with, on};
use crate::invariance::{Model, model};

/// What a node told: name, operator, rows, bytes, operations, time.
type Told = (String, &'static str, usize, u64, u64, Duration);

/// Wants every value, and keeps their bits.
#[derive(Default)]
struct Everything(Vec<(String, Vec<u32>)>);

impl Watch for Everything {
    fn wants(&self, _: &str) -> bool {
        true
    }

    fn value(&mut self, name: &str, _: &Shape, data: &[f32]) {
        self.0.push((name.to_owned(), data.iter().map(|x| x.to_bits()).collect()));
    }
}

/// Wants one value, and keeps its bits.
struct One<'a>(&'a str, Vec<u32>);

impl Watch for One<'_> {
    fn wants(&self, name: &str) -> bool {
        name == self.0
    }

    fn value(&mut self, _: &str, _: &Shape, data: &[f32]) {
        self.1.extend(data.iter().map(|x| x.to_bits()));
    }
}

/// Asks for times, or does not.
struct Clock {
    asks: bool,
    told: Vec<Told>,
}

impl Watch for Clock {
    fn wants(&self, _: &str) -> bool {
        false
    }

    fn value(&mut self, name: &str, _: &Shape, _: &[f32]) {
        panic!("'{name}' was not wanted");
    }

    fn clocks(&self) -> bool {
        self.asks
    }

    fn took(&mut self, node: &NodeTime<'_>) {
        let NodeTime { name, op, variant, rows, bytes, operations, time } = *node;
        assert!(!variant.is_empty(), "'{name}' says which way it was computed");
        self.told.push((name.to_owned(), op, rows, bytes, operations, time));
    }
}

/// Runs 30 tokens of a sequence, whose last is an output row: the bits of its logits.
fn watched(graph: &Graph, runner: &mut dyn Runner, watch: &mut dyn Watch) -> Vec<u32> {
    let (tokens, blocks) = ([7; 30], [Block(0)]);
    let blocks = vec![&blocks[..]; graph.groups.len()];
    let rows = Range32 { start: 0, end: 30 };
    let sequence = Sequence { blocks: &blocks, position: 0, rows, outputs: Outputs::Last, spans: &[] };
    let mut output = vec![0.0; runner.width()];
    runner
        .step(Step { inputs: Inputs::Tokens(&tokens), sequences: &[sequence], output: &mut output, watch })
        .unwrap();
    output.into_iter().map(f32::to_bits).collect()
}

fn run(graph: &Graph, runner: &mut dyn Runner, asks: bool) -> (Vec<Told>, Duration) {
    let mut clock = Clock { asks, told: Vec::new() };
    let begun = Instant::now();
    watched(graph, runner, &mut clock);
    (clock.told, begun.elapsed())
}

/// What is computed together for nobody who watches is computed one by one for
/// who wants to see it, with the same bits; and every value is shown.
#[test]
fn who_watches_changes_no_bit() {
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

/// A value alone is what it is among others.
#[test]
fn each_value_is_shown_by_itself_as_with_all() {
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
fn nodes_tell_what_they_did_to_whom_asks() {
    let graph = model(Model::default());
    let mut runner = on(cpu(2), &graph, &Source::random(&graph, &mut Random(1)), 2);
    assert_eq!(run(&graph, &mut *runner, false).0, []);
    let (told, wall) = run(&graph, &mut *runner, true);
    // What is taken early is no value of the graph.
    let nodes = told.iter().filter(|told| told.1 != "arrange" && !told.0.ends_with(".gathered"));
    // Products of one value are told of as one, where the first of them stands.
    let first = |told: &Told| told.0.split('+').next().map(str::to_owned);
    let order: Vec<_> = nodes
        .map(|told| {
            graph.nodes.iter().position(|node| Some(&graph.value(node.output).name) == first(told).as_ref())
        })
        .collect();
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{told:?}");
    assert!(told.iter().map(|told| told.5).sum::<Duration>() <= wall);

    let of = |op| told.iter().filter(move |told| told.1 == op);
    let layer = |index: usize| {
        ["q+k+v", "o+mixed", "gate+up+gated", "down+out"].map(|name| format!("layers.{index}.{name}"))
    };
    let tasks: Vec<&str> = of("linear").map(|told| told.0.as_str()).collect();
    assert_eq!(tasks, [&layer(0)[..], &layer(1), &["logits".to_owned()]].concat());
    // All products with a matrix: 30 rows of each, but 1 of the head and of what
    // stands between it and the last attention: o, gate, up and down.
    let linear = graph.nodes.iter().filter(|node| node.op == Op::Linear);
    let sizes: Vec<u64> = linear.map(|node| graph.value(node.inputs[1]).shape.elements() as u64).collect();
    let (others, last) = sizes.split_at(sizes.len() - 5);
    let operations = 2 * (30 * others.iter().sum::<u64>() + last.iter().sum::<u64>());
    assert_eq!(of("linear").map(|told| told.4).sum::<u64>(), operations);
    let least = sizes.iter().sum::<u64>() * DType::BF16.block_bytes() as u64;
    assert!(of("linear").map(|told| told.3).sum::<u64>() >= least);
    // Layer 0 sees 20 positions back, layer 1 all: 4 query heads of 8 values,
    // and 2 heads each of keys and values in halves, the rows of values filled
    // up to 16.
    let windowed: u64 = (1..=30).map(|seen: u64| seen.min(20)).sum();
    let attended: Vec<_> = of("attend").map(|told| (told.2, told.3, told.4)).collect();
    let bytes = 30 * 2 * (8 + 16) * 2;
    assert_eq!(attended, [(30, bytes, 2 * windowed * 4 * 16), (30, bytes, 2 * 465 * 4 * 16)]);
}
