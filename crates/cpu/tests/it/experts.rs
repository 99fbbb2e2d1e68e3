//! Experts: the interpreter's numbers within a bound, and equal bits whatever the threads and the other rows of
//! a step.

use girih_cpu::kernels::tables;
use girih_graph::backend::Input;
use girih_graph::interpret::Interpreter;
use girih_graph::{Act, Backend, Builder, ExpertGroups, GateRule, Graph, Op, Router, RouterScore};
use girih_tensor::{DType, Shape, reference};

use crate::case::finish;
use crate::fixture::{
    Random, Source, TestSequence, cpu, cpu_with, disagreement, exact, gamma, key, on, step,
};

/// The sizes and the formats of a node.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    experts: usize,
    used: u32,
    width: usize,
    inner: usize,
    dtype: DType,
    has_gate: bool,
    has_biases: bool,
}

impl Sizes {
    /// That of gpt-oss, with a lower limit, for experts with biases.
    fn gate_rule(&self) -> GateRule {
        match self.has_gate && self.has_biases {
            true => GateRule { act: Act::QuickGelu, limit: Some(0.5), offset: Some(1.0) },
            false => Act::Silu.into(),
        }
    }
}

/// Inner sizes around a band, a width that is no whole group, and more experts than threads.
const SIZES: [Sizes; 6] = [
    Sizes { experts: 5, used: 2, width: 33, inner: 40, dtype: DType::F32, has_gate: true, has_biases: true },
    Sizes { experts: 1, used: 1, width: 8, inner: 32, dtype: DType::F32, has_gate: true, has_biases: false },
    Sizes {
        experts: 7,
        used: 3,
        width: 20,
        inner: 70,
        dtype: DType::F32,
        has_gate: false,
        has_biases: false,
    },
    Sizes {
        experts: 16,
        used: 4,
        width: 64,
        inner: 96,
        dtype: DType::BF16,
        has_gate: true,
        has_biases: false,
    },
    Sizes {
        experts: 9,
        used: 4,
        width: 64,
        inner: 64,
        dtype: DType::Q4_0,
        has_gate: true,
        has_biases: false,
    },
    Sizes {
        experts: 6,
        used: 2,
        width: 256,
        inner: 256,
        dtype: DType::Q6_K,
        has_gate: true,
        has_biases: true,
    },
];

const ROUTER: Router =
    Router { score: RouterScore::Softmax, used: 0, normalized: Some(0.0), groups: None, factor: Some(1.5) };

fn graph(sizes: Sizes, rows: usize) -> Graph {
    let Sizes { experts, used, width, inner, dtype, has_gate, has_biases } = sizes;
    let mut builder = Builder::new(key(rows, 1024));
    let x = builder.input("x", &[width], DType::F32);
    let router = builder.weight("router", Shape::matrix(experts, width), DType::F32);
    let scores = builder.shaped("scores", Op::Linear, &[x, router], &[experts]);
    let Router { score, used: _, normalized, groups, factor } = ROUTER;
    let route = Op::Route { score, used, normalized, groups, factor };
    let weights = builder.same("weights", route, &[scores]);
    let stack = |extents: [usize; 3]| Shape::new(&extents).unwrap();
    let up = builder.weight("up", stack([experts, inner, width]), dtype);
    let down = builder.weight("down", stack([experts, width, inner]), dtype);
    let mut operands = vec![x, weights, up, down];
    if has_gate {
        operands.push(builder.weight("gate", stack([experts, inner, width]), dtype));
    }
    if has_biases {
        for (name, columns) in [("gate_bias", inner), ("up_bias", inner), ("down_bias", width)] {
            operands.push(builder.weight(name, Shape::matrix(experts, columns), DType::F32));
        }
    }
    let GateRule { act, limit, offset } = sizes.gate_rule();
    let op = Op::Experts { used, act, limit, offset };
    let y = builder.shaped("y", op, &operands, &[width]);
    finish(builder, y)
}

fn run(backend: impl Backend + 'static, graph: &Graph, source: &Source, x: &[f32], rows: usize) -> Vec<f32> {
    step(&mut *on(backend, graph, source, 8), Input::Rows(x), &[TestSequence::new(0, 0, rows as u32)])
}

/// The weights of one kind.
struct Stack {
    numbers: Vec<f32>,
    rows: usize,
    columns: usize,
    biases: Option<Vec<f32>>,
}

impl Stack {
    fn of(graph: &Graph, source: &Source, name: &str) -> Option<Stack> {
        let value = graph.value(graph.find(name)?);
        let (rows, columns) = (value.shape.extents()[1], value.shape.columns());
        let numbers = source.numbers(name, value.dtype, value.shape.rows(), columns);
        let bias = format!("{name}_bias");
        let bias = graph.find(&bias).map(|id| {
            source.numbers(&bias, DType::F32, graph.value(id).shape.rows(), graph.value(id).shape.columns())
        });
        Some(Stack { numbers, rows, columns, biases: bias })
    }

    /// Each result of an expert with its error, and the sum of the sizes of its terms, of rows with an error.
    fn of_row(&self, expert: usize, x: &[(f64, f64)]) -> Vec<(f64, f64)> {
        (0..self.rows)
            .map(|row| {
                let at = expert * self.rows + row;
                let weights = &self.numbers[at * self.columns..][..self.columns];
                let bias = self.biases.as_ref().map_or(0.0, |biases| f64::from(biases[at]));
                let (mut sum, mut size, mut error) = (bias, bias.abs(), 0.0);
                for (weight, (x, of_x)) in weights.iter().zip(x) {
                    let weight = f64::from(*weight);
                    (sum, size, error) =
                        (sum + weight * x, size + (weight * x).abs(), error + weight.abs() * of_x);
                }
                (sum, error + gamma(self.columns + 2) * (size + error))
            })
            .collect()
    }
}

/// The bound of each value of a kernel that does not round activations: errors are carried from the rows of `x`
/// to those of the result.
fn bounds(sizes: Sizes, graph: &Graph, source: &Source, x: &[f32]) -> Vec<f64> {
    let router = source.numbers("router", DType::F32, sizes.experts, sizes.width);
    let [up, down, gate] = ["up", "down", "gate"].map(|name| Stack::of(graph, source, name));
    let (up, down) = (up.unwrap(), down.unwrap());
    let rule = Router { used: sizes.used, ..ROUTER };
    let mut bounds = Vec::new();
    for x in x.chunks_exact(sizes.width) {
        let dots: Vec<_> = router.chunks_exact(sizes.width).map(|row| reference::dot(x, row)).collect();
        let scores: Vec<f32> = dots.iter().map(|dot| dot.sum as f32).collect();
        let of_score = dots.iter().map(|dot| dot.bound(sizes.width + 1)).fold(0.0, f64::max);
        assert!(rule.uncertain(&scores, None, of_score).is_empty(), "a choice of the test is a tie");
        let weights = rule.weights(&scores, None);
        // Of a share: twice the error of the scores, and the roundings of the sums and of exponentials.
        let of_weight = 2.0 * of_score + gamma(2 * sizes.experts + 40);
        let row: Vec<(f64, f64)> = x.iter().map(|x| (f64::from(*x), 0.0)).collect();
        let mut sums = vec![(0.0, 0.0, 0.0); sizes.width];
        for (expert, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
            let up = up.of_row(expert, &row);
            let GateRule { act, limit, offset } = sizes.gate_rule();
            let limit = f64::from(limit.unwrap_or(f32::INFINITY));
            let slope = if act == Act::QuickGelu { 1.702 } else { 1.0 };
            let silu = |x: f64| x / (1.0 + (-slope * x).exp());
            // The slope of both activations is at most 1.1. Two roundings of the exponential's argument count as
            // often as it is large. A limit makes no error larger.
            let activated = |(x, error): (f64, f64)| {
                assert!(x.abs() < 20.0, "the gate of a test is {x}");
                let x = x.min(limit);
                (silu(x), 1.1 * error + gamma(24 + 2 * 35) * (silu(x).abs() + error))
            };
            let inner: Vec<(f64, f64)> = match &gate {
                None => up.into_iter().map(activated).collect(),
                Some(gate) => gate
                    .of_row(expert, &row)
                    .into_iter()
                    .map(activated)
                    .zip(up)
                    .map(|((a, of_a), (b, of_b))| {
                        let b = b.clamp(-limit, limit) + f64::from(offset.unwrap_or(0.0));
                        let of_b = of_b + gamma(1) * b.abs();
                        let error = of_a * (b.abs() + of_b) + a.abs() * of_b;
                        (a * b, error + gamma(2) * ((a * b).abs() + error))
                    })
                    .collect(),
            };
            let weight = f64::from(*weight);
            for ((sum, size, error), (y, of_y)) in sums.iter_mut().zip(down.of_row(expert, &inner)) {
                *sum += weight * y;
                *size += (weight * y).abs();
                *error += weight * (of_y + of_weight * (y.abs() + of_y));
            }
        }
        let floor = f64::from(f32::MIN_POSITIVE);
        bounds.extend(
            sums.iter()
                .map(|(_, size, error)| error + gamma(sizes.used as usize + 3) * (size + error) + floor),
        );
    }
    bounds
}

#[test]
fn every_table_agrees_with_the_interpreter_within_the_bound() {
    let mut random = Random(5);
    for sizes in SIZES {
        for rows in [1, 2, 40] {
            let graph = graph(sizes, rows);
            let source = Source::random(&graph, &mut random);
            let x = random.numbers(rows * sizes.width);
            let want = run(Interpreter, &graph, &source, &x, rows);
            let bounds = bounds(sizes, &graph, &source, &x);
            for table in tables() {
                let got = run(exact(*table, 2), &graph, &source, &x, rows);
                assert_eq!(disagreement(&got, &want, &bounds), None, "{} {sizes:?} {rows} rows", table.name);
            }
            let mut wrong = want.clone();
            wrong[sizes.width - 1] += 1.5 * bounds[sizes.width - 1] as f32;
            wrong[sizes.width - 1] += f32::EPSILON * wrong[sizes.width - 1].abs();
            assert!(disagreement(&wrong, &want, &bounds).is_some(), "the bound notices a wrong value");
        }
    }
}

/// Also with activations that are rounded to integers.
#[test]
fn a_row_has_the_same_bits_alone_and_among_others_whatever_the_threads() {
    let mut random = Random(11);
    for sizes in SIZES {
        let rows = 40;
        let graph = graph(sizes, rows);
        let source = Source::random(&graph, &mut random);
        let x = random.numbers(rows * sizes.width);
        for threads in [1, 2, 5] {
            for table in tables() {
                let got = run(cpu_with(*table, threads), &graph, &source, &x, rows);
                let one_thread = run(cpu_with(*table, 1), &graph, &source, &x, rows);
                assert_eq!(got, one_thread, "{} with {threads} threads, {sizes:?}", table.name);
            }
            let alone = |first: usize, count: usize| {
                let x = &x[first * sizes.width..(first + count) * sizes.width];
                run(cpu(threads), &graph, &source, x, count)
            };
            let whole = run(cpu(threads), &graph, &source, &x, rows);
            for (first, count) in [(0, 1), (7, 1), (3, 8), (39, 1), (10, 20)] {
                let want = &whole[first * sizes.width..(first + count) * sizes.width];
                assert_eq!(alone(first, count), want, "rows {first} to {} of {sizes:?}", first + count);
            }
        }
    }
}

/// All rows choose one expert, whose group then has all of them.
#[test]
fn rows_that_choose_alike_share_an_expert() {
    let sizes = Sizes { experts: 4, used: 1, ..SIZES[0] };
    let (rows, mut random) = (30, Random(3));
    let graph = graph(sizes, rows);
    let mut source = Source::random(&graph, &mut random);
    let router: Vec<f32> =
        (0..4).flat_map(|expert| vec![if expert == 2 { 1.0 } else { -1.0 }; sizes.width]).collect();
    source.0.insert("router".to_owned(), router.iter().flat_map(|x| x.to_le_bytes()).collect());
    let x: Vec<f32> = random.numbers(rows * sizes.width).iter().map(|x| x.abs()).collect();
    let bounds = bounds(sizes, &graph, &source, &x);
    let want = run(Interpreter, &graph, &source, &x, rows);
    let got = run(exact(tables()[0], 2), &graph, &source, &x, rows);
    assert_eq!(disagreement(&got, &want, &bounds), None);
}

/// The kernel and the definition of every kind of router.
#[test]
fn routers_choose_as_defined() {
    let mut random = Random(17);
    let groups = Some(ExpertGroups { count: 4, used: 2 });
    let routers = [
        Router { score: RouterScore::Softmax, used: 3, normalized: None, groups: None, factor: None },
        Router { score: RouterScore::Softmax, used: 1, normalized: Some(0.0), groups, factor: None },
        Router { score: RouterScore::Sigmoid, used: 4, normalized: Some(1e-6), groups, factor: Some(2.5) },
        Router { score: RouterScore::Sigmoid, used: 16, normalized: None, groups: None, factor: None },
    ];
    for (router, has_bias) in routers.into_iter().flat_map(|router| [(router, false), (router, true)]) {
        let (rows, experts) = (50, 16);
        let mut builder = Builder::new(key(rows, 1024));
        let scores = builder.input("scores", &[experts], DType::F32);
        let mut operands = vec![scores];
        if has_bias {
            operands.push(builder.weight("bias", Shape::vector(experts), DType::F32));
        }
        let Router { score, used, normalized, groups, factor } = router;
        let y = builder.same("y", Op::Route { score, used, normalized, groups, factor }, &operands);
        let graph = finish(builder, y);
        let source = Source::random(&graph, &mut random);
        let mut scores: Vec<f32> = random.numbers(rows * experts).iter().map(|x| x * 5.0).collect();
        scores[..experts].fill(1.0);
        scores[experts + 5] = f32::NAN;
        let want = run(Interpreter, &graph, &source, &scores, rows);
        for table in tables() {
            let got = run(cpu_with(*table, 2), &graph, &source, &scores, rows);
            for (got, want) in got.iter().zip(&want) {
                let both_nan = got.is_nan() && want.is_nan();
                let near =
                    (f64::from(*got) - f64::from(*want)).abs() <= gamma(4 * experts) * f64::from(want.abs());
                assert!(both_nan || near, "{} {router:?}: {got} {want}", table.name);
            }
        }
    }
}

#[test]
fn weights_that_no_router_chose_are_refused() {
    let mut builder = Builder::new(key(4, 64));
    let x = builder.input("x", &[8], DType::F32);
    let weights = builder.input("weights", &[2], DType::F32);
    let stack = Shape::new(&[2, 8, 8]).unwrap();
    let [up, down] = ["up", "down"].map(|name| builder.weight(name, stack, DType::F32));
    let y = builder.shaped(
        "y",
        Op::Experts { used: 1, act: Act::Silu, limit: None, offset: None },
        &[x, weights, up, down],
        &[8],
    );
    let graph = finish(builder, y);
    let objections = cpu(1).objections(&graph);
    assert_eq!(objections[0].reason, "its weights are no choice of 1 experts by 'route'");
}
