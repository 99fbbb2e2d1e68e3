//! Compares every operator in every format with the interpreter; each value must lie within a bound
//! derived from the roundings that the kernels may make.

use std::ops::Range;

use girih_cpu::kernels::attend::{Cells, ChunkWeights, ValueBlock};
use girih_cpu::kernels::packed::{Band, Panels, Sums};
use girih_cpu::kernels::{Table, tables};
use girih_graph::{Act, Builder, GateRule, Key, Node, Op, OutputKind, Outputs, Pairing, Pooling, Xielu};
use girih_tensor::{DType, Shape, reference};

use crate::attention;
use crate::case::{Case, TestInput, finish};
use crate::fixture::{Random, Source, TestSequence, U, changed, exact, gamma, key, portable};
use crate::row_paths::exact_xielu;
use crate::rows::{exact_gate, exact_layer_norm};

/// The row widths to test for a format: whole blocks, and widths that are not whole groups if the format
/// allows them.
fn widths(dtype: DType) -> Vec<usize> {
    match dtype.tile() {
        (1, 1) => vec![1, 2, 7, 8, 33, 70],
        (1, columns) => vec![columns, 3 * columns],
        (_, columns) => vec![1, 70, columns, columns + 33],
    }
}

fn linear(dtype: DType, inputs: usize, outputs: usize, rows: usize, random: &mut Random) -> Case {
    let mut builder = Builder::new(key(rows, 64));
    let x = builder.input("x", &[inputs], DType::F32);
    let weight = builder.weight("weight", Shape::matrix(outputs, inputs), dtype);
    let with_bias = outputs % 2 == 1;
    let bias = with_bias.then(|| builder.weight("bias", Shape::vector(outputs), DType::BF16));
    let operands: Vec<_> = [x, weight].into_iter().chain(bias).collect();
    let y = builder.shaped("y", Op::Linear, &operands, &[outputs]);
    let graph = finish(builder, y);
    let source = Source::random(&graph, random);
    let embeddings = random.numbers(rows * inputs);
    let weights = source.numbers("weight", dtype, outputs, inputs);
    let biases = match bias {
        Some(_) => source.numbers("bias", DType::BF16, 1, outputs),
        None => vec![0.0; outputs],
    };
    let mut bounds = Vec::new();
    for x in embeddings.chunks_exact(inputs) {
        for (weights, &bias) in weights.chunks_exact(inputs).zip(&biases) {
            let mut exact = reference::dot(x, weights);
            exact.sum += f64::from(bias);
            exact.size += f64::from(bias.abs());
            // The bias is one more term; the interpreter rounds once.
            bounds.push(exact.bound(inputs + 1) + U * exact.sum.abs());
        }
    }
    let name = format!("linear {dtype} [{outputs}, {inputs}] of {rows} rows");
    let sequences = vec![TestSequence::new(0, 0, rows as u32)];
    Case { name, graph, source, inputs: vec![TestInput::Rows(embeddings)], sequences, bounds }
}

fn linears(random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        for inputs in widths(dtype) {
            for (outputs, rows) in [(1, 1), (3, 17), (4, 2), (17, 3), (50, 1), (37, 5)] {
                cases.push(linear(dtype, inputs, outputs, rows, random));
            }
        }
    }
    cases.extend((1..=17).map(|rows| linear(DType::BF16, 24, 9, rows, random)));
    cases
}

fn embeds(random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        for width in widths(dtype) {
            let tokens = vec![49, 0, 33, 31, 32, 7, 7];
            let mut builder = Builder::new(key(tokens.len(), 64));
            let x = builder.input("tokens", &[], DType::I32);
            let table = builder.weight("table", Shape::matrix(50, width), dtype);
            let y = builder.shaped("y", Op::Embed, &[x, table], &[width]);
            let graph = finish(builder, y);
            let source = Source::random(&graph, random);
            cases.push(Case {
                name: format!("embed {dtype} of width {width}"),
                bounds: vec![0.0; tokens.len() * width],
                sequences: vec![TestSequence::new(0, 0, tokens.len() as u32)],
                graph,
                source,
                inputs: vec![TestInput::Ids(tokens)],
            });
        }
    }
    cases
}

/// A case of one operator on embeddings of `inner` and a vector of weights, if the operator has one.
/// `bound` gets the operand's and the vector's numbers.
fn one(
    op: Op,
    inner: &[usize],
    vector: Option<(usize, DType)>,
    random: &mut Random,
    bound: impl Fn(&[f32], &[f32]) -> Vec<f64>,
) -> Case {
    let rows = 5;
    let mut builder = Builder::new(key(rows, 200_000));
    let x = builder.input("x", inner, DType::F32);
    let weight = vector.map(|(len, dtype)| builder.weight("weight", Shape::vector(len), dtype));
    let operands: Vec<_> = std::iter::once(x).chain(weight).collect();
    let y = match op {
        // The operand itself and, after a reshape, scaled.
        Op::Gate { .. } | Op::Add => {
            let flat = builder.shaped("flat", Op::Reshape, &[x], &[inner.iter().product()]);
            let twice = builder.same("twice", Op::Scale { factor: -2.0 }, &[flat]);
            let shaped = builder.shaped("shaped", Op::Reshape, &[twice], inner);
            builder.same("y", op, &[x, shaped])
        }
        // Every graph ends with it.
        Op::Gather => x,
        _ => builder.same("y", op, &operands),
    };
    let graph = finish(builder, y);
    let source = Source::random(&graph, random);
    let numbers = vector.map_or(Vec::new(), |(len, dtype)| source.numbers("weight", dtype, 1, len));
    let embeddings: Vec<f32> = random.numbers(rows * inner.iter().product::<usize>());
    let embeddings: Vec<f32> = embeddings.iter().map(|x| x * 4.0).collect();
    let mut sequences = vec![TestSequence::new(0, 3, 2), TestSequence::new(4, 131_070, 3)];
    if op == Op::Gather {
        sequences[0].outputs = Outputs::Last;
        sequences[1].outputs = Outputs::LastN(2);
    }
    let bounds = bound(&embeddings, &numbers);
    let name = format!("{op:?} of {inner:?} with {vector:?}");
    Case { name, graph, source, inputs: vec![TestInput::Rows(embeddings)], sequences, bounds }
}

fn norms(random: &mut Random) -> Vec<Case> {
    let epsilon = 1e-5;
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        for size in widths(dtype).into_iter().filter(|size| size % dtype.tile().1 == 0 || dtype.tile().0 > 1)
        {
            let case = one(Op::Norm { epsilon }, &[3, size], Some((size, dtype)), random, |x, weight| {
                norm_bound(x, weight, epsilon)
            });
            cases.push(case);
        }
    }
    for size in [1, 8, 33, 384] {
        cases.push(one(Op::Norm { epsilon }, &[2, size], None, random, |x, _| {
            norm_bound(x, &vec![1.0; size], epsilon)
        }));
    }
    cases
}

/// The sum of squares has an error of gamma(size + 1) of itself, which the root halves; the mean, epsilon,
/// the root, the quotient, two products and the interpreter's rounding add theirs.
fn norm_bound(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let size = weight.len();
    let relative = gamma(size + 1) / 2.0 + gamma(8);
    let rows = x.chunks_exact(size);
    rows.flat_map(|row| {
        let root = reference::root_mean_square(row, f64::from(epsilon));
        let values = row.iter().zip(weight);
        values.map(move |(&x, &w)| (f64::from(x) / root * f64::from(w)).abs() * relative)
    })
    .collect()
}

/// Layer norms of heads and of rows, with and without a weight and a bias.
fn layer_norms(random: &mut Random) -> Vec<Case> {
    let (epsilon, rows) = (1e-12, 5);
    let mut cases = Vec::new();
    let vectors = [[false, false], [true, false], [true, true]];
    for (inner, [with_weight, with_bias]) in
        [[3, 1], [1, 7], [2, 33], [1, 384]].into_iter().flat_map(|inner| vectors.map(|with| (inner, with)))
    {
        let size = inner[1];
        let mut builder = Builder::new(key(rows, 64));
        let x = builder.input("x", &inner, DType::F32);
        let weight = with_weight.then(|| builder.weight("weight", Shape::vector(size), DType::F32));
        let bias = with_bias.then(|| builder.weight("bias", Shape::vector(size), DType::BF16));
        let operands: Vec<_> = [x].into_iter().chain(weight).chain(bias).collect();
        let y = builder.same("y", Op::LayerNorm { epsilon }, &operands);
        let graph = finish(builder, y);
        let source = Source::random(&graph, random);
        let x: Vec<f32> = random.numbers(rows * inner[0] * size).iter().map(|x| 4.0 * x + 3.0).collect();
        let weight = weight.map(|_| source.numbers("weight", DType::F32, 1, size));
        let bias = bias.map(|_| source.numbers("bias", DType::BF16, 1, size));
        // The interpreter rounds once.
        let bound = |(expected, bound): (f64, f64)| bound + U * expected.abs();
        let rows_of = x.chunks_exact(size);
        let bounds = rows_of
            .flat_map(|row| exact_layer_norm(row, [weight.as_deref(), bias.as_deref()], epsilon))
            .map(bound);
        cases.push(Case {
            name: format!("layer_norm of {inner:?}, weight: {with_weight}, bias: {with_bias}"),
            bounds: bounds.collect(),
            graph,
            source,
            inputs: vec![TestInput::Rows(x)],
            sequences: vec![TestSequence::new(0, 0, rows as u32)],
        });
    }
    cases
}

/// Rows that are given replace others, without rounding: none, some, runs side by side, all.
fn splices(random: &mut Random) -> Vec<Case> {
    let (rows, width) = (7, 9);
    let mut cases = Vec::new();
    for runs in [&[][..], &[(0, 1)], &[(2, 3), (5, 1)], &[(1, 1), (6, 1)], &[(0, 7)]] {
        let mut builder = Builder::new(key(rows, 64));
        let x = builder.input("x", &[width], DType::F32);
        let given = builder.input("given", &[width], DType::F32);
        let y = builder.same("y", Op::Splice, &[x, given]);
        let graph = finish(builder, y);
        let x = TestInput::Rows(random.numbers(rows * width));
        let given = runs.iter().map(|&(first, count)| (first, random.numbers(count * width)));
        cases.push(Case {
            name: format!("splice of {runs:?}"),
            bounds: vec![0.0; rows * width],
            inputs: vec![x, TestInput::Given(given.collect())],
            sequences: vec![TestSequence::new(0, 0, 3), TestSequence::new(1, 0, 4)],
            source: Source::default(),
            graph,
        });
    }
    cases
}

/// Sequences of several lengths, pooled without a difference: the sums have the interpreter's order.
fn pools(random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for (&how, width) in Pooling::ALL.iter().flat_map(|how| [1, 64, 100].map(|width| (how, width))) {
        let lengths = [1, 5, 130, 2];
        let rows: u32 = lengths.iter().sum();
        let mut builder = Builder::new(Key { output: OutputKind::Pooled, ..key(rows as usize, 256) });
        let x = builder.input("x", &[width], DType::F32);
        let y = builder.pool("y", how, x);
        let graph = builder.finish(y);
        let sequence = |length| TestSequence { outputs: Outputs::None, ..TestSequence::new(0, 0, length) };
        cases.push(Case {
            name: format!("pool {how:?} of rows of {width}"),
            bounds: vec![0.0; lengths.len() * width],
            inputs: vec![TestInput::Rows(random.numbers(rows as usize * width))],
            sequences: lengths.map(sequence).to_vec(),
            source: Source::default(),
            graph,
        });
    }
    cases
}

fn ropes(random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        for (half, kept, factor) in
            [(1, 0, None), (4, 0, Some(1.3)), (17, 0, None), (3, 5, Some(0.7)), (8, 16, None)]
        {
            let (op, size) = (Op::Rope { pairing, factor }, 2 * half + kept);
            cases.push(one(op, &[3, size], Some((half, DType::F32)), random, move |x, _| {
                // Sine, cosine, two products and a sum are rounded, and the interpreter's result; no term
                // exceeds the sizes of the pair, times the factor. Components behind the pairs are exact.
                let bound = f64::from(factor.unwrap_or(1.0)) * gamma(4);
                let heads = x.chunks_exact(size);
                heads
                    .flat_map(|head| {
                        (0..size).map(move |i| {
                            let (a, b) = match pairing {
                                Pairing::Halves => (i % half, i % half + half),
                                Pairing::Neighbours => (i / 2 * 2, i / 2 * 2 + 1),
                            };
                            if i < 2 * half { bound * f64::from(head[a].abs() + head[b].abs()) } else { 0.0 }
                        })
                    })
                    .collect()
            }));
        }
    }
    cases
}

/// Operators whose values are one exact operation each, rounded once, and functions. The interpreter rounds
/// a gate and an activation once. The tanh of a
/// capped value has an error of six roundings; a quotient, a product and the interpreter's follow.
fn elements(random: &mut Random) -> Vec<Case> {
    let exact = |x: &[f32], _: &[f32]| vec![0.0; x.len()];
    let inner = [2, 7];
    let taken = |_: &[f32], _: &[f32]| vec![0.0; 3 * 14];
    let bound = |(expected, bound): (f64, f64)| bound + U * expected.abs();
    let mut cases = vec![
        one(Op::Add, &inner, None, random, exact),
        one(Op::Scale { factor: 0.3 }, &inner, None, random, exact),
        one(Op::Reshape, &inner, None, random, exact),
        one(Op::Gather, &inner, None, random, taken),
        one(Op::Softcap { cap: 1.5 }, &inner, None, random, |x, _| vec![gamma(9) * 1.5; x.len()]),
        // More than one piece.
        one(Op::Add, &[5, 2000], None, random, exact),
    ];
    let xielu = Xielu { positive: 0.8, negative: 1.3, beta: 0.5, epsilon: -1e-6 };
    let Xielu { positive, negative, beta, epsilon } = xielu;
    cases.push(one(Op::Xielu { positive, negative, beta, epsilon }, &inner, None, random, |x, _| {
        x.iter().map(|&x| bound(exact_xielu(xielu, x))).collect()
    }));
    for &act in Act::ALL {
        for (limit, offset) in [(None, None), (Some(1.5), None), (Some(1.5), Some(1.0))] {
            let rule = GateRule { act, limit, offset };
            cases.push(one(Op::Gate { act, limit, offset }, &inner, None, random, |x, _| {
                x.iter().map(|&x| bound(exact_gate(rule, x, -2.0 * x))).collect()
            }));
        }
        cases.push(one(Op::Activate { act }, &inner, None, random, |x, _| {
            x.iter().map(|&x| bound(exact_gate(act.into(), x, 1.0))).collect()
        }));
    }
    cases
}

fn cases() -> Vec<Case> {
    let mut random = Random(7);
    let families = [linears, embeds, norms, layer_norms, splices, pools, ropes, elements, attention::cases];
    families.into_iter().flat_map(|family| family(&mut random)).collect()
}

#[test]
fn every_operator_agrees_with_the_interpreter() {
    for table in tables() {
        for case in cases() {
            assert_eq!(case.disagreement(exact(*table, 2)), None, "{}", table.name);
        }
    }
}

fn sum_too_large(scores: &mut ChunkWeights, seen: Range<usize>, cap: Option<f32>) -> [f32; 2] {
    let [top, sum] = (portable().attend.weigh)(scores, seen, cap);
    [top, sum * 1.001]
}

fn without_last_position(weights: &[ChunkWeights], at: usize, mut values: ValueBlock<'_>, sums: &mut [f32]) {
    values.positions.end -= 1;
    (portable().attend.blend)(weights, at, values, sums);
}

fn without_last_dim(q: &[f32], keys: Cells<'_>, ahead: &[u8], scores: &mut [ChunkWeights], at: usize) {
    let last = q.len() - scores.len();
    let q = [&q[..last], &vec![0.0; scores.len()]].concat();
    (portable().attend.score)(&q, keys, ahead, scores, at);
}

/// Tables with one wrong kernel each.
fn wrong_tables() -> Vec<(&'static str, Table)> {
    let decode = |band: Band<'_>, first: usize, count: usize, panels: &mut Panels| {
        (portable().matmul.decode)(band, first, count, panels);
        panels[1][0].codes[7][63] ^= 1;
    };
    let floats = |band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]| {
        (portable().matmul.floats)(band, first, &x[..x.len() - sums.len()], sums);
    };
    vec![
        ("decode", changed(|table| table.matmul.decode = decode)),
        ("floats", changed(|table| table.matmul.floats = floats)),
        ("weigh", changed(|table| table.attend.weigh = sum_too_large)),
        ("blend", changed(|table| table.attend.blend = without_last_position)),
        ("score", changed(|table| table.attend.score = without_last_dim)),
        ("join", changed(|table| table.attend.join = |_, _, _, _| {})),
        ("widen_keys", changed(|table| table.attend.widen_keys = |_, _, into| into.fill(0.5))),
        ("widen_values", changed(|table| table.attend.widen_values = |_, into| into.fill(0.5))),
        ("halve", changed(|table| table.attend.halve = |_, bytes| bytes.fill(0x11))),
    ]
}

/// A change of some nodes of a graph.
type Change = fn(&mut Node);

/// Ops that compute something slightly different.
fn wrong_ops() -> Vec<(&'static str, Change)> {
    fn silu(node: &mut Node) {
        if let Op::Gate { act, .. } | Op::Activate { act } = &mut node.op {
            *act = Act::Silu;
        }
    }
    vec![
        ("norm", |node| {
            if let Op::Norm { epsilon } = &mut node.op {
                *epsilon += 1e-3;
            }
        }),
        ("layer_norm", |node| {
            if let Op::LayerNorm { epsilon } = &mut node.op {
                *epsilon += 1e-3;
            }
        }),
        ("rope", |node| {
            if let Op::Rope { pairing, .. } = &mut node.op {
                *pairing = Pairing::Halves;
            }
        }),
        ("gate", silu),
        ("activate", silu),
        ("xielu", |node| {
            if let Op::Xielu { beta, .. } = &mut node.op {
                *beta += 1e-3;
            }
        }),
        ("add", |node| {
            if node.op == Op::Add {
                node.op = Op::gate(Act::Gelu);
            }
        }),
        ("scale", |node| {
            if let Op::Scale { factor } = &mut node.op {
                *factor *= 1.0 + f32::EPSILON;
            }
        }),
        ("softcap", |node| {
            if let Op::Softcap { cap } = &mut node.op {
                *cap += 1e-3;
            }
        }),
    ]
}

#[test]
fn a_wrong_kernel_is_detected() {
    let cases = cases();
    for (name, table) in wrong_tables() {
        let caught = cases.iter().any(|case| case.disagreement(exact(table, 2)).is_some());
        assert!(caught, "no case detects that '{name}' is wrong");
    }
}

/// A backend whose op is wrong is one whose graph has another op.
#[test]
fn a_wrong_op_is_detected() {
    let cases = cases();
    for (name, change) in wrong_ops() {
        let caught = cases.iter().any(|case| {
            let mut graph = case.graph.clone();
            graph.nodes.iter_mut().for_each(change);
            case.disagreement_of(exact(portable(), 2), &graph).is_some()
        });
        assert!(caught, "no case detects that '{name}' is wrong");
    }
}
