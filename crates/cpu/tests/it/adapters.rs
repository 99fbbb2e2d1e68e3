//! Adapters, whose products are computed with those of the matrices that they change.

use girih_cpu::kernels::tables;
use girih_graph::backend::{Input, Watch};
use girih_graph::{Act, Builder, Graph, InputSpec, Op, ValueId, Weighed};
use girih_tensor::{DType, Random, Shape};

use crate::fixture::{
    Source, TestSequence, cpu, disagreement, exact, finish, gamma, key, on, step_of, step_watched,
};

const WIDTH: usize = 96;
const ADAPTERS: usize = 3;

/// The largest number of parts of a row of A, whose sums are added.
const NARROW: usize = 8;

/// A matmul with adapters of this rank.
fn adapted(
    builder: &mut Builder,
    name: &str,
    [x, chosen]: [ValueId; 2],
    (rank, formats): (usize, [DType; 2]),
) -> ValueId {
    let mut weight = |side: &str, extents: &[usize], dtype| {
        builder.weight(&format!("{name}.{side}"), Shape::new(extents).unwrap(), dtype)
    };
    let matrix = weight("weight", &[WIDTH, WIDTH], formats[0]);
    let a = weight("a", &[ADAPTERS, rank, WIDTH], formats[1]);
    let b = weight("b", &[ADAPTERS, WIDTH, rank], formats[1]);
    let base = builder.shaped(&format!("{name}.base"), Op::Linear, &[x, matrix], &[WIDTH]);
    let op =
        Op::Experts { used: 1, act: Act::Identity, limit: None, offset: None, weighed: Weighed::Results };
    let change = builder.shaped(&format!("{name}.change"), op, &[x, chosen, a, b], &[WIDTH]);
    builder.same(name, Op::Add, &[base, change])
}

/// The formats of the matrix and of adapters.
const FORMATS: [DType; 2] = [DType::Q4_0, DType::BF16];

/// A gated feed-forward part, with a residual.
fn graph(rows: usize, ranks: [usize; 3]) -> Graph {
    let mut builder = Builder::new(key(rows, 64));
    let x = builder.input("x", &[WIDTH], DType::F32);
    let chosen = builder.input(InputSpec::ADAPTERS, &[ADAPTERS], DType::F32);
    let gate = adapted(&mut builder, "gate", [x, chosen], (ranks[0], FORMATS));
    let up = adapted(&mut builder, "up", [x, chosen], (ranks[1], FORMATS));
    let gated = builder.same("gated", Op::Gate { act: Act::Silu, limit: None, offset: None }, &[gate, up]);
    let down = adapted(&mut builder, "down", [gated, chosen], (ranks[2], FORMATS));
    let sum = builder.same("sum", Op::Add, &[down, x]);
    finish(builder, sum)
}

/// Which adapter each row chose, or none.
fn chosen(rows: usize) -> Vec<f32> {
    let of_row =
        |row: usize| (0..ADAPTERS).map(move |adapter| if row * 5 % 4 == adapter { 0.75 } else { 0.0 });
    (0..rows).flat_map(of_row).collect()
}

/// Every kernel table, with the products in f64 for comparison. The order of a sum's terms is not stated, so each sum of `n`
/// terms has up to `n` roundings.
#[test]
fn results_are_within_the_bound_of_their_sums() {
    let mut random = Random(5);
    for (rows, rank, dtype) in
        [(1, 16, DType::F32), (9, 5, DType::BF16), (30, 40, DType::F16), (8, 1, DType::F32)]
    {
        let mut builder = Builder::new(key(rows, 64));
        let x = builder.input("x", &[WIDTH], DType::F32);
        let of_rows = builder.input(InputSpec::ADAPTERS, &[ADAPTERS], DType::F32);
        let y = adapted(&mut builder, "y", [x, of_rows], (rank, [DType::F32, dtype]));
        let graph = finish(builder, y);
        let source = Source::random(&graph, &mut random);
        let (x, chosen) = (random.numbers(rows * WIDTH), chosen(rows));
        let weight = source.numbers("y.weight", DType::F32, WIDTH, WIDTH);
        let a = source.numbers("y.a", dtype, ADAPTERS * rank, WIDTH);
        let b = source.numbers("y.b", dtype, ADAPTERS * WIDTH, rank);
        let (mut exact_values, mut bounds) = (Vec::new(), Vec::new());
        for (x, factors) in x.chunks_exact(WIDTH).zip(chosen.chunks_exact(ADAPTERS)) {
            let adapter = factors.iter().position(|factor| *factor != 0.0);
            for output in 0..WIDTH {
                let (mut value, mut size) = product(&weight[output * WIDTH..], x);
                let mut bound = gamma(WIDTH + 4) * size;
                if let Some(adapter) = adapter {
                    let b = &b[(adapter * WIDTH + output) * rank..][..rank];
                    for (index, b) in b.iter().enumerate() {
                        let (t, of_t) = product(&a[(adapter * rank + index) * WIDTH..], x);
                        let scale = f64::from(factors[adapter]) * f64::from(*b);
                        (value, size) = (value + scale * t, scale.abs() * of_t);
                        bound += gamma(WIDTH + NARROW + rank + 4) * size;
                    }
                }
                exact_values.push(value as f32);
                bounds.push(bound + f64::from(f32::EPSILON) * value.abs());
            }
        }
        let inputs = [Input::Rows(&x), Input::Rows(&chosen)];
        for table in tables() {
            let mut runner = on(exact(*table, 2), &graph, &source, 1);
            let got = step_of(&mut *runner, &inputs, &[TestSequence::new(0, 0, rows as u32)]);
            assert_eq!(
                disagreement(&got, &exact_values, &bounds),
                None,
                "{} {rows} {rank} {dtype}",
                table.name
            );
        }
    }
}

/// The sum of the products of as many numbers as `x` has, and that of their sizes.
fn product(weights: &[f32], x: &[f32]) -> (f64, f64) {
    let terms = weights.iter().zip(x).map(|(weight, x)| f64::from(*weight) * f64::from(*x));
    (terms.clone().sum(), terms.map(f64::abs).sum())
}

/// The slow twin: nodes run one by one where one of their values is watched.
#[test]
fn watched_nodes_have_the_same_bytes() {
    let mut random = Random(3);
    for (rows, ranks) in [(1, [4, 4, 16]), (8, [16, 16, 5]), (50, [6, 6, 40]), (9, [4, 8, 16])] {
        let graph = graph(rows, ranks);
        let source = Source::random(&graph, &mut random);
        let x = random.numbers(rows * WIDTH);
        let chosen = chosen(rows);
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
