//! Adapters, whose products are computed with those of the matrices that they change.

use girih_cpu::kernels::tables;
use girih_graph::backend::{Input, Watch};
use girih_graph::description::AnyBackend;
use girih_graph::testing::{Open, Roundoff, TestedBackend, adapters, check_cases};
use girih_graph::{Act, Builder, Graph, InputSpec, Op, ValueId, Weighed};
use girih_tensor::{DType, Random, Shape};

use crate::fixture::{Source, TestSequence, cpu, exact, finish, key, on, step_of, step_watched};

#[test]
fn adapters_are_within_the_bounds_and_have_equal_bytes_in_any_steps() {
    for table in tables() {
        let open = |threads: usize| -> Box<dyn AnyBackend> { Box::new(exact(*table, threads)) };
        let ways: [Open<'_>; 3] = [&|| open(1), &|| open(2), &|| open(5)];
        let subject = TestedBackend::new(table.name, &ways, Some(Roundoff::SINGLE));
        let cases = (0..24).map(|seed| (seed, adapters(seed, Roundoff::SINGLE)));
        let report = check_cases(subject, cases);
        println!("{}\n{report}", table.name);
        assert_eq!(report.faults(), [] as [&str; 0]);
    }
}

const WIDTH: usize = 96;
const ADAPTERS: usize = 3;

/// A matmul with adapters of this rank.
fn adapted(builder: &mut Builder, name: &str, [x, chosen]: [ValueId; 2], rank: usize) -> ValueId {
    let mut weight = |side: &str, extents: &[usize], dtype| {
        builder.weight(&format!("{name}.{side}"), Shape::new(extents).unwrap(), dtype)
    };
    let matrix = weight("weight", &[WIDTH, WIDTH], DType::Q4_0);
    let a = weight("a", &[ADAPTERS, rank, WIDTH], DType::BF16);
    let b = weight("b", &[ADAPTERS, WIDTH, rank], DType::BF16);
    let base = builder.shaped(&format!("{name}.base"), Op::Linear, &[x, matrix], &[WIDTH]);
    let op =
        Op::Experts { used: 1, act: Act::Identity, limit: None, offset: None, weighed: Weighed::Results };
    let change = builder.shaped(&format!("{name}.change"), op, &[x, chosen, a, b], &[WIDTH]);
    builder.same(name, Op::Add, &[base, change])
}

/// A gated feed-forward part, with a residual.
fn graph(rows: usize, ranks: [usize; 3]) -> Graph {
    let mut builder = Builder::new(key(rows, 64));
    let x = builder.input("x", &[WIDTH], DType::F32);
    let chosen = builder.input(InputSpec::ADAPTERS, &[ADAPTERS], DType::F32);
    let gate = adapted(&mut builder, "gate", [x, chosen], ranks[0]);
    let up = adapted(&mut builder, "up", [x, chosen], ranks[1]);
    let gated = builder.same("gated", Op::Gate { act: Act::Silu, limit: None, offset: None }, &[gate, up]);
    let down = adapted(&mut builder, "down", [gated, chosen], ranks[2]);
    let sum = builder.same("sum", Op::Add, &[down, x]);
    finish(builder, sum)
}

/// The slow twin: nodes run one by one where one of their values is watched.
#[test]
fn watched_nodes_have_the_same_bytes() {
    let mut random = Random(3);
    for (rows, ranks) in [(1, [4, 4, 16]), (8, [16, 16, 5]), (50, [6, 6, 40]), (9, [4, 8, 16])] {
        let graph = graph(rows, ranks);
        let source = Source::random(&graph, &mut random);
        let x = random.numbers(rows * WIDTH);
        let chosen: Vec<f32> = (0..rows)
            .flat_map(|row| (0..ADAPTERS).map(move |adapter| f32::from(row * 5 % 4 == adapter)))
            .collect();
        let inputs = [Input::Rows(&x), Input::Rows(&chosen)];
        let sequences = [TestSequence::new(0, 0, rows as u32)];
        let mut runner = on(cpu(2), &graph, &source, 1);
        let fused = step_of(&mut *runner, &inputs, &sequences);
        let alone: Vec<f32> = (0..rows)
            .flat_map(|row| {
                let inputs = [
                    Input::Rows(&x[row * WIDTH..][..WIDTH]),
                    Input::Rows(&chosen[row * ADAPTERS..][..ADAPTERS]),
                ];
                step_of(&mut *runner, &inputs, &[TestSequence::new(0, 0, 1)])
            })
            .collect();
        assert_eq!(bits(&fused), bits(&alone), "{rows} rows in one step and in steps of one");
        let names =
            ["base", "change"].map(|part| ["gate", "up", "down"].map(|name| format!("{name}.{part}")));
        let all = names.concat().into_iter().chain(["gate", "up", "down", "sum"].map(str::to_owned));
        for name in all {
            let mut watch = One(&name, 0);
            let result = step_watched(&mut *runner, &inputs, &sequences, &mut watch);
            assert_eq!(bits(&fused), bits(&result), "{rows} rows with {name} watched");
            assert_eq!(watch.1, rows * WIDTH, "{name} is reported");
        }
    }
}

/// Watches one value, and counts its numbers.
struct One<'a>(&'a str, usize);

impl Watch for One<'_> {
    fn wants(&self, name: &str) -> bool {
        name == self.0
    }

    fn value(&mut self, _: &str, _: &Shape, data: &[f32]) {
        self.1 += data.len();
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
