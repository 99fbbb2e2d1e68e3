//! A small encoder: ids of two kinds, given rows, attention to all rows of a sequence without state,
//! pooled results.

use std::collections::HashMap;
use std::slice;

use girih_cpu::kernels::{Table, tables};
use girih_graph::backend::{GivenRows, Input};
use girih_graph::interpret::Interpreter;
use girih_graph::{
    Act, Backend, Builder, Graph, Key, Node, Op, OutputKind, Outputs, Pooling, Role, Runner, Span, Value,
    ValueId, faults,
};
use girih_tensor::{DType, Shape, reference};

use crate::clocks::Everything;
use crate::fixture::{
    Random, Source, TestSequence, U, cpu_with, disagreement, exact, finish, gamma, on, step_of, step_watched,
};

const VOCABULARY: usize = 50;
/// Fewer than tokens, so that an id of one input is none of the other.
const TYPES: usize = 2;
/// The largest size of weights, so that attention is neither even nor all on one row.
const WEIGHT_MAX: f32 = 0.2;

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    heads: usize,
    /// Values in a head.
    size: usize,
    ffn: usize,
    layers: usize,
    pooling: Pooling,
}

/// Heads of 12 values, and no width that is a multiple of 16.
pub const NARROW_HEADS: Encoder = Encoder { heads: 3, size: 12, ffn: 70, layers: 2, pooling: Pooling::Mean };
const WIDE_HEADS: Encoder = Encoder { heads: 2, size: 64, ffn: 256, layers: 1, pooling: Pooling::First };

/// The graph of an encoder, large enough for any test.
pub fn encoder(sizes: Encoder) -> Graph {
    let key = Key { rows: 700, sequences: 8, context: 512, output_rows: 1, output: OutputKind::Pooled };
    let width = sizes.heads * sizes.size;
    let mut layers = Blocks { builder: Builder::new(key), sizes, width };
    let embedded = ["tokens", "types"].map(|name| {
        let ids = layers.builder.input(name, &[], DType::I32);
        let rows = if name == "tokens" { VOCABULARY } else { TYPES };
        let table = layers.builder.weight(&format!("{name}.table"), Shape::matrix(rows, width), DType::F32);
        layers.builder.shaped(&format!("{name}.rows"), Op::Embed, &[ids, table], &[width])
    });
    let given = layers.builder.input("given", &[width], DType::F32);
    let spliced = layers.builder.same("spliced", Op::Splice, &[embedded[0], given]);
    let sum = layers.builder.same("sum", Op::Add, &[spliced, embedded[1]]);
    let mut x = layers.norm("norm", sum);
    for index in 0..sizes.layers {
        x = layers.layer(&format!("layers.{index}"), x);
    }
    let pooled = layers.builder.pool("pooled", sizes.pooling, x);
    let graph = layers.builder.finish(pooled);
    assert_eq!(faults(&graph), []);
    graph
}

struct Blocks {
    builder: Builder,
    sizes: Encoder,
    width: usize,
}

impl Blocks {
    fn linear(&mut self, name: &str, x: ValueId, inputs: usize, outputs: usize) -> ValueId {
        let weight =
            self.builder.weight(&format!("{name}.weight"), Shape::matrix(outputs, inputs), DType::F32);
        let bias = self.builder.weight(&format!("{name}.bias"), Shape::vector(outputs), DType::F32);
        self.builder.shaped(name, Op::Linear, &[x, weight, bias], &[outputs])
    }

    fn norm(&mut self, name: &str, x: ValueId) -> ValueId {
        let [weight, bias] = ["weight", "bias"].map(|part| {
            self.builder.weight(&format!("{name}.{part}"), Shape::vector(self.width), DType::F32)
        });
        self.builder.same(name, Op::LayerNorm { epsilon: 1e-12 }, &[x, weight, bias])
    }

    fn layer(&mut self, name: &str, x: ValueId) -> ValueId {
        let (Encoder { heads, size, ffn, .. }, width) = (self.sizes, self.width);
        let [q, k, v] = ["q", "k", "v"].map(|part| {
            let flat = self.linear(&format!("{name}.{part}"), x, width, width);
            self.builder.shaped(&format!("{name}.{part}.heads"), Op::Reshape, &[flat], &[heads, size])
        });
        let op = Op::Attend { scale: 1.0 / (size as f32).sqrt(), span: Span::All, softcap: None };
        let mixed = self.builder.same(&format!("{name}.attend"), op, &[q, k, v]);
        let mixed = self.builder.shaped(&format!("{name}.flat"), Op::Reshape, &[mixed], &[width]);
        let mixed = self.linear(&format!("{name}.o"), mixed, width, width);
        let mixed = self.builder.same(&format!("{name}.mixed"), Op::Add, &[x, mixed]);
        let x = self.norm(&format!("{name}.after_mixer"), mixed);
        let up = self.linear(&format!("{name}.up"), x, width, ffn);
        let up = self.builder.same(&format!("{name}.activated"), Op::Activate { act: Act::Gelu }, &[up]);
        let down = self.linear(&format!("{name}.down"), up, ffn, width);
        let sum = self.builder.same(&format!("{name}.sum"), Op::Add, &[x, down]);
        self.norm(&format!("{name}.after_ffn"), sum)
    }
}

/// Random weights of at most [`WEIGHT_MAX`]; those of norms and of tables are near one.
pub fn weights(graph: &Graph) -> Source {
    let mut random = Random(11);
    let numbers = |name: &str, count: usize, random: &mut Random| {
        let is_near_one = name.contains("norm.weight") || name.contains("after_") && name.ends_with("weight");
        let factor = if name.ends_with("table") { 1.0 } else { WEIGHT_MAX };
        let numbers =
            random.numbers(count).into_iter().map(|x| factor * x + f32::from(u8::from(is_near_one)));
        numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
    };
    let each = graph.weights();
    Source(each.map(|(_, w)| (w.name.clone(), numbers(&w.name, w.shape.elements(), &mut random))).collect())
}

/// The tokens of a sequence, and their types.
fn ids(seed: u64, length: usize) -> [Vec<u32>; 2] {
    let mut random = Random(seed);
    [VOCABULARY, TYPES].map(|bound| (0..length).map(|_| random.bits() as u32 % bound as u32).collect())
}

/// Sequences of these numbers of rows.
fn sequences(lengths: &[usize]) -> Vec<TestSequence> {
    let sequence = |length: &usize| TestSequence::new(0, 0, *length as u32);
    lengths.iter().map(|length| TestSequence { outputs: Outputs::None, ..sequence(length) }).collect()
}

/// The bits of the pooled rows of some sequences in one step.
fn pooled(runner: &mut dyn Runner, batch: &[[Vec<u32>; 2]]) -> Vec<u32> {
    let [tokens, types] =
        [0, 1].map(|kind| batch.iter().flat_map(|ids| ids[kind].clone()).collect::<Vec<_>>());
    let lengths: Vec<usize> = batch.iter().map(|ids| ids[0].len()).collect();
    let inputs = [Input::Ids(&tokens), Input::Ids(&types), Input::Given(&[])];
    step_of(runner, &inputs, &sequences(&lengths)).iter().map(|x| x.to_bits()).collect()
}

/// The value of each node, by name.
type NodeValues = HashMap<String, Vec<f32>>;

/// One node of a graph, with operands from a step of the whole graph.
struct NodeCase<'a> {
    graph: &'a Graph,
    node: &'a Node,
    source: &'a Source,
    values: &'a NodeValues,
}

impl NodeCase<'_> {
    fn name(&self, id: ValueId) -> &str {
        &self.graph.value(id).name
    }

    /// The graph of this node alone: what other nodes compute is an input.
    fn alone(&self) -> Graph {
        let is_pool = matches!(self.node.op, Op::Pool { .. });
        let key = Key { output_rows: self.graph.key.rows, ..self.graph.key };
        let output = if is_pool { OutputKind::Pooled } else { OutputKind::Hidden };
        let mut builder = Builder::new(Key { output, ..key });
        let operands: Vec<ValueId> = (self.node.inputs.iter().map(|id| self.graph.value(*id)))
            .map(|value| match value.role {
                Role::Weight => builder.weight(&value.name, value.shape, value.dtype),
                _ => builder.input(&value.name, &value.shape.extents()[1..], value.dtype),
            })
            .collect();
        let Value { name, shape, .. } = self.graph.value(self.node.output);
        if let Op::Pool { how } = self.node.op {
            let pooled = builder.pool(name, how, operands[0]);
            return builder.finish(pooled);
        }
        let result = builder.shaped(name, self.node.op, &operands, &shape.extents()[1..]);
        finish(builder, result)
    }

    /// The result by the definition of the op.
    fn defined(&self, inputs: &[(&str, Input<'_>)], sequences: &[TestSequence]) -> Vec<f32> {
        let graph = self.alone();
        let input = |name: &str| {
            let given = inputs.iter().find(|(other, _)| *other == name).map(|(_, input)| *input);
            given.unwrap_or_else(|| Input::Rows(&self.values[name]))
        };
        let inputs: Vec<Input<'_>> = graph.inputs().map(|(_, value)| input(&value.name)).collect();
        let all = |sequence: &TestSequence| TestSequence { outputs: Outputs::All, ..sequence.clone() };
        let sequences: Vec<TestSequence> = sequences.iter().map(all).collect();
        step_of(&mut *on(Interpreter, &graph, self.source, 1), &inputs, &sequences)
    }

    fn max(&self, operand: usize) -> f64 {
        let values = &self.values[self.name(self.node.inputs[operand])];
        values.iter().fold(0.0, |max, x| max.max(f64::from(x.abs())))
    }

    fn weight(&self, operand: usize) -> Vec<f32> {
        let value = self.graph.value(self.node.inputs[operand]);
        self.source.numbers(&value.name, value.dtype, value.shape.rows(), value.shape.columns())
    }

    /// The largest difference from the definition allowed for each value; see the tests of the ops.
    fn bounds(&self, defined: &[f32]) -> Vec<f64> {
        let columns = self.graph.value(self.node.inputs[0]).shape.columns();
        let x = self.values.get(self.name(self.node.inputs[0]));
        match self.node.op {
            Op::Linear => {
                let weight = self.weight(1);
                let sizes =
                    weight.chunks_exact(columns).map(|row| row.iter().map(|w| f64::from(w.abs())).sum());
                let size = self.max(0) * sizes.fold(0.0, f64::max) + f64::from(WEIGHT_MAX);
                vec![gamma(columns + 3) * size; defined.len()]
            }
            Op::LayerNorm { epsilon } => {
                let (weight, bias) = (self.weight(1), self.weight(2));
                let rows = x.expect("an op computes it").chunks_exact(columns);
                rows.flat_map(|row| exact_layer_norm(row, [Some(&weight[..]), Some(&bias[..])], epsilon))
                    .map(|(expected, bound)| bound + U * expected.abs())
                    .collect()
            }
            Op::Activate { .. } => {
                x.expect("an op computes it").iter().map(|x| gamma(14) * f64::from(x.abs())).collect()
            }
            // An error of a score is one of its weight and of the sum of weights. The last term is what
            // exponentials and at most three chunks add.
            Op::Attend { scale, .. } => {
                let size = f64::from(scale) * columns as f64 * self.max(0) * self.max(1);
                let weight = gamma(columns + 4) * size + 8.0 * U * size + 24.0 * U;
                vec![(2.0 * weight + 2.0 * gamma(520)).exp_m1() * self.max(2); defined.len()]
            }
            // Copies, sums of two values, and means in the order of the definition.
            _ => vec![0.0; defined.len()],
        }
    }
}

/// A normalized row, and the bounds of a kernel's errors.
///
/// The mean has an error of gamma(n) of the mean size of terms; it is added to each distance, and its
/// square to the variance, because distances from the exact mean add up to zero. The sum of squares has
/// one rounding per term and two for the square of a rounded distance, and the root halves their error.
/// A quotient, epsilon, the root, the quotient, a distance, two products and the sum with the bias follow.
fn exact_layer_norm(x: &[f32], [weight, bias]: [Option<&[f32]>; 2], epsilon: f32) -> Vec<(f64, f64)> {
    let count = x.len();
    let (mean, root) = reference::mean_and_deviation(x, f64::from(epsilon));
    let size = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / count as f64;
    let mean_error = gamma(count + 1) * size;
    let relative = gamma(count + 4) / 2.0 + (mean_error / root).powi(2) / 2.0 + gamma(7);
    let value = |index: usize| {
        let weight = weight.map_or(1.0, |weight| f64::from(weight[index])) / root;
        let (distance, bias) =
            ((f64::from(x[index]) - mean) * weight, bias.map_or(0.0, |bias| f64::from(bias[index])));
        // A tenth more for products of errors.
        let error = 1.1 * (mean_error * weight.abs() + relative * distance.abs()) + U * bias.abs();
        (distance + bias, error + 2f64.powi(-148))
    };
    (0..count).map(value).collect()
}

/// Every node has the values that the interpreter computes from the same operands, within the bound of
/// its op, and the result is that of the step in which nothing is watched.
#[test]
fn every_node_of_an_encoder_agrees_with_the_interpreter() {
    let lengths = [1, 65, 2, 130, 64];
    let sequences = sequences(&lengths);
    for sizes in [NARROW_HEADS, WIDE_HEADS, Encoder { pooling: Pooling::Last, ..NARROW_HEADS }] {
        let graph = encoder(sizes);
        let source = weights(&graph);
        let [tokens, types] = ids(3, lengths.iter().sum());
        let given = Random(4).numbers(3 * sizes.heads * sizes.size);
        let given = [GivenRows { first_row: 60, values: &given }];
        let inputs = [Input::Ids(&tokens), Input::Ids(&types), Input::Given(&given)];
        let named = [("tokens", inputs[0]), ("types", inputs[1]), ("given", inputs[2])];
        for table in tables() {
            let mut runner = on(exact(*table, 2), &graph, &source, 1);
            let mut seen = Everything::default();
            let result = step_watched(&mut *runner, &inputs, &sequences, &mut seen);
            let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
            let values: NodeValues = seen.0.into_iter().map(|(name, bits)| (name, floats(bits))).collect();
            for node in &graph.nodes {
                let case = NodeCase { graph: &graph, node, source: &source, values: &values };
                let (got, want) = (&values[case.name(node.output)], case.defined(&named, &sequences));
                let disagreement = disagreement(got, &want, &case.bounds(&want));
                assert_eq!(disagreement, None, "{} of {}, {sizes:?}", case.name(node.output), table.name);
            }
            assert_eq!(result, values["pooled"]);
            assert_eq!(step_of(&mut *runner, &inputs, &sequences), result, "{}, {sizes:?}", table.name);
        }
    }
}

fn runner(table: Table, sizes: Encoder, threads: usize) -> Box<dyn Runner> {
    let graph = encoder(sizes);
    on(cpu_with(table, threads), &graph, &weights(&graph), 1)
}

/// The results of a sequence alone, among others, after other steps, and with any number of threads.
#[test]
fn a_sequence_has_the_same_bits_in_every_step() {
    let lengths = [1, 64, 3, 65, 300, 128, 2];
    let batch: Vec<[Vec<u32>; 2]> = (5..).zip(lengths).map(|(seed, length)| ids(seed, length)).collect();
    for table in tables() {
        for sizes in [NARROW_HEADS, WIDE_HEADS] {
            let alone: Vec<u32> = batch
                .iter()
                .flat_map(|ids| pooled(&mut *runner(*table, sizes, 1), slice::from_ref(ids)))
                .collect();
            for threads in 1..=3 {
                let mut runner = runner(*table, sizes, threads);
                let what = format!("{}, {sizes:?}, {threads} threads", table.name);
                assert!(pooled(&mut *runner, &batch) == alone, "{what}");
                let again = batch.iter().rev().flat_map(|ids| pooled(&mut *runner, slice::from_ref(ids)));
                let width = sizes.heads * sizes.size;
                let reversed = alone.chunks_exact(width).rev().flatten().copied();
                assert!(again.eq(reversed), "one after another, {what}");
            }
        }
    }
}

/// Keys and values of earlier steps remain in memory, here as NaN.
#[test]
fn values_of_earlier_steps_do_not_affect_results() {
    let batch = [ids(5, 70), ids(6, 3), ids(7, 130)];
    for table in tables() {
        let mut runner = runner(*table, NARROW_HEADS, 2);
        let want = pooled(&mut *runner, &batch);
        let zeros = vec![0; 700];
        let nans = vec![f32::NAN; zeros.len() * NARROW_HEADS.heads * NARROW_HEADS.size];
        let given = [GivenRows { first_row: 0, values: &nans }];
        let inputs = [Input::Ids(&zeros), Input::Ids(&zeros), Input::Given(&given)];
        let results = step_of(&mut *runner, &inputs, &sequences(&[300, 400]));
        assert!(results.iter().all(|x| x.is_nan()), "{}", table.name);
        assert!(pooled(&mut *runner, &batch) == want, "{}", table.name);
    }
}

/// Given rows that are rows of the table have the effect of their tokens.
#[test]
fn given_rows_yield_the_bits_of_equal_embedding_rows() {
    let graph = encoder(NARROW_HEADS);
    let source = weights(&graph);
    let width = NARROW_HEADS.heads * NARROW_HEADS.size;
    let table = source.numbers("tokens.table", DType::F32, VOCABULARY, width);
    let [tokens, types] = ids(9, 90);
    for kernels in tables() {
        let mut runner = on(cpu_with(*kernels, 2), &graph, &source, 1);
        let mut run = |tokens: &[u32], given: &[GivenRows<'_>]| {
            let inputs = [Input::Ids(tokens), Input::Ids(&types), Input::Given(given)];
            let results = step_of(&mut *runner, &inputs, &sequences(&[70, 20]));
            results.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let want = run(&tokens, &[]);
        let mut replaced = tokens.clone();
        let runs = [3..4, 60..75, 89..90];
        runs.iter().cloned().for_each(|run| replaced[run].iter_mut().for_each(|id| *id = (*id + 1) % 50));
        assert_ne!(run(&replaced, &[]), want, "tokens have an effect");
        let values = runs.clone().map(|run| {
            let row = |id: &u32| &table[*id as usize * width..][..width];
            tokens[run].iter().flat_map(row).copied().collect::<Vec<_>>()
        });
        let given: Vec<_> = runs
            .iter()
            .zip(&values)
            .map(|(run, values)| GivenRows { first_row: run.start as u32, values })
            .collect();
        assert_eq!(run(&replaced, &given), want, "{}", kernels.name);
    }
}

/// The keys and values of a step are part of the planned memory.
#[test]
fn the_plan_has_the_keys_and_values_of_a_step() {
    let cpu = cpu_with(tables()[0], 1);
    let plan = |sizes| cpu.plan(&encoder(sizes), &[]).host.scratch;
    let scratch = plan(WIDE_HEADS);
    // Layers share them.
    assert_eq!(plan(Encoder { layers: 2, ..WIDE_HEADS }), scratch);
    // 700 rows of 8 sequences take up to 18 blocks of 64 keys and values of 128 numbers.
    assert!(scratch > 18 * 64 * 2 * 128 * 4);
}
