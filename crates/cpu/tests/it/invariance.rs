//! Results have the same bits for any number of threads, for any division of a prompt into
//! steps, and whatever other sequences a step runs.

use girih_cpu::kernels::packed::Layout;
use girih_cpu::kernels::{Table, tables};
use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, PrecisionRule};
use girih_graph::backend::{Block, Input, Range32};
use girih_graph::{
    Act, BLOCK_POSITIONS, Builder, Graph, GroupId, Key, Op, OutputKind, Outputs, Pairing, Runner, Span,
    ValueId, faults,
};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, cpu_with, on, step};

/// A model of two layers, one with a window.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub width: usize,
    pub weights: DType,
    pub state: DType,
    pub pairing: Pairing,
    pub softcap: Option<f32>,
}

impl Default for Model {
    fn default() -> Model {
        let (weights, state) = (DType::BF16, DType::F16);
        Model { width: 32, weights, state, pairing: Pairing::Halves, softcap: None }
    }
}

const VOCABULARY: usize = 50;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const WINDOW: u32 = 20;

/// The model's graph, large enough for any test.
pub fn model(model: Model) -> Graph {
    let key = Key { rows: 512, sequences: 4, context: 512, output_rows: 512, output: OutputKind::Logits };
    let mut layers = Layers { builder: Builder::new(key), model };
    let tokens = layers.builder.input("tokens", &[], DType::I32);
    let table = layers.weight("embed.weight", VOCABULARY, model.width);
    let mut x = layers.builder.shaped("embed", Op::Embed, &[tokens, table], &[model.width]);
    for (index, span) in [Span::Window(WINDOW), Span::Full].into_iter().enumerate() {
        x = layers.layer(&format!("layers.{index}"), x, span);
    }
    let taken = layers.builder.gather("taken", x);
    let normed = layers.norm("norm", taken, model.width);
    let logits = layers.builder.shaped("logits", Op::Linear, &[normed, table], &[VOCABULARY]);
    let graph = layers.builder.finish(logits);
    assert_eq!(faults(&graph), []);
    graph
}

struct Layers {
    builder: Builder,
    model: Model,
}

impl Layers {
    fn weight(&mut self, name: &str, outputs: usize, inputs: usize) -> ValueId {
        self.builder.weight(name, Shape::matrix(outputs, inputs), self.model.weights)
    }

    fn linear(&mut self, name: &str, x: ValueId, inputs: usize, outputs: usize) -> ValueId {
        let weight = self.weight(&format!("{name}.weight"), outputs, inputs);
        self.builder.shaped(name, Op::Linear, &[x, weight], &[outputs])
    }

    fn norm(&mut self, name: &str, x: ValueId, size: usize) -> ValueId {
        let weight = self.builder.weight(&format!("{name}.weight"), Shape::vector(size), DType::F32);
        self.builder.same(name, Op::Norm { epsilon: 1e-5 }, &[x, weight])
    }

    fn heads(&mut self, name: &str, x: ValueId, heads: usize) -> ValueId {
        let width = self.model.width;
        let flat = self.linear(name, x, width, heads * width / HEADS);
        self.builder.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &[heads, width / HEADS])
    }

    fn rotated(&mut self, name: &str, x: ValueId) -> ValueId {
        let half = self.model.width / HEADS / 2;
        let frequencies = self.builder.weight("frequencies", Shape::vector(half), DType::F32);
        let op = Op::Rope {
            pairing: self.model.pairing,
            factor: (self.model.pairing == Pairing::Neighbours).then_some(1.25),
        };
        self.builder.same(&format!("{name}.rotated"), op, &[x, frequencies])
    }

    fn layer(&mut self, name: &str, x: ValueId, span: Span) -> ValueId {
        let (width, softcap) = (self.model.width, self.model.softcap);
        let normed = self.norm(&format!("{name}.before_mixer"), x, width);
        let q = self.heads(&format!("{name}.q"), normed, HEADS);
        let q = self.rotated(&format!("{name}.q"), q);
        let k = self.heads(&format!("{name}.k"), normed, KV_HEADS);
        let k = self.rotated(&format!("{name}.k"), k);
        let v = self.heads(&format!("{name}.v"), normed, KV_HEADS);
        let group = self.builder.group(span);
        let inner = [KV_HEADS, width / HEADS];
        let keys = self.builder.state(&format!("{name}.keys"), &inner, self.model.state, group);
        let values = self.builder.state(&format!("{name}.values"), &inner, self.model.state, group);
        self.builder.write(k, keys);
        self.builder.write(v, values);
        let op = Op::Attend { scale: 0.4, span, softcap };
        let mixed = self.builder.same(&format!("{name}.attend"), op, &[q, keys, values]);
        let mixed = self.builder.shaped(&format!("{name}.flat"), Op::Reshape, &[mixed], &[width]);
        let mixed = self.linear(&format!("{name}.o"), mixed, width, width);
        let x = self.builder.same(&format!("{name}.mixed"), Op::Add, &[x, mixed]);
        let normed = self.norm(&format!("{name}.before_ffn"), x, width);
        let gate = self.linear(&format!("{name}.gate"), normed, width, 2 * width);
        let up = self.linear(&format!("{name}.up"), normed, width, 2 * width);
        let gated = self.builder.same(&format!("{name}.gated"), Op::gate(Act::Silu), &[gate, up]);
        let down = self.linear(&format!("{name}.down"), gated, 2 * width, width);
        self.builder.same(&format!("{name}.out"), Op::Add, &[x, down])
    }
}

/// A prompt that ends in its fifth block and in its second chunk.
const PROMPT: usize = 300;

fn prompt(seed: u64) -> Vec<u32> {
    tokens(seed, PROMPT)
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| (random.bits() % VOCABULARY as u64) as u32).collect()
}

/// A runner of a model with the best kernels and weights of a fixed seed.
pub fn runner(shape: Model, threads: usize) -> Box<dyn Runner> {
    runner_with(tables()[0], shape, threads)
}

/// As [`runner`], with these kernels.
fn runner_with(table: Table, shape: Model, threads: usize) -> Box<dyn Runner> {
    runner_on(cpu_with(table, threads), shape)
}

fn runner_on(cpu: Cpu, shape: Model) -> Box<dyn Runner> {
    let graph = model(shape);
    on(cpu, &graph, &Source::random(&graph, &mut Random(11)), 16)
}

/// The bits of the logits of all rows, computed in steps of up to `chunk` rows.
pub fn logits(runner: &mut dyn Runner, tokens: &[u32], chunk: usize) -> Vec<u32> {
    let mut all = Vec::new();
    for (index, tokens) in tokens.chunks(chunk).enumerate() {
        let sequence = TestSequence::new(0, (index * chunk) as u32, tokens.len() as u32);
        all.extend(step(runner, Input::Ids(tokens), &[sequence]));
    }
    assert!(all.iter().all(|x: &f32| x.is_finite()), "logits are finite");
    all.iter().map(|x| x.to_bits()).collect()
}

fn models() -> Vec<Model> {
    vec![
        Model::default(),
        Model { pairing: Pairing::Neighbours, softcap: Some(2.0), state: DType::BF16, ..Model::default() },
        Model { weights: DType::Q8_0, state: DType::F32, width: 64, ..Model::default() },
        Model { weights: DType::MXFP4, ..Model::default() },
        Model { weights: DType::Q4NX, width: 40, ..Model::default() },
        Model { weights: DType::F32, softcap: Some(5.0), width: 40, ..Model::default() },
        Model { state: DType::Q8_0, width: 128, ..Model::default() },
    ]
}

/// Every table with every model.
fn combinations() -> Vec<(Table, Model)> {
    tables().iter().flat_map(|table| models().into_iter().map(|model| (*table, model))).collect()
}

#[test]
fn threads_and_chunks_change_nothing() {
    let tokens = prompt(1);
    for (table, model) in combinations() {
        let want = logits(&mut *runner_with(table, model, 1), &tokens, PROMPT);
        for threads in 1..=3 {
            for chunk in [1, 7, 64, PROMPT] {
                let got = logits(&mut *runner_with(table, model, threads), &tokens, chunk);
                assert!(got == want, "{}, {model:?}, {threads} threads, chunks of {chunk}", table.name);
            }
        }
    }
}

/// Types of weights, one for each layout, and the narrowest width that each allows.
const LAYOUTS: [(DType, usize); 6] = [
    (DType::Q4_0, 64),
    (DType::Q8_0, 64),
    (DType::Q4_K, 256),
    (DType::Q6_K, 256),
    (DType::BF16, 64),
    (DType::F16, 64),
];

/// The rows of one stream of tokens in steps of 512, 40, 16, 3 and 1 rows, which use different
/// kernels.
#[test]
fn rows_of_a_step_change_nothing_in_any_layout() {
    const FEW: usize = 40;
    let tokens = tokens(3, 512);
    for (weights, width) in LAYOUTS {
        let model = Model { weights, width, ..Model::default() };
        for table in tables() {
            let want = logits(&mut *runner_with(*table, model, 2), &tokens, 512);
            for (threads, rows) in [(1, 1), (2, 3), (3, 16), (1, 40)] {
                let got = logits(&mut *runner_with(*table, model, threads), &tokens[..FEW], rows);
                let what = format!("{}, {weights}, {threads} threads, {rows} rows", table.name);
                assert!(got == want[..FEW * VOCABULARY], "{what}");
            }
        }
    }
}

/// As above, with one precision of activations for all matmuls.
#[test]
fn rows_of_a_step_change_nothing_in_any_precision() {
    let tokens = tokens(4, 40);
    for (weights, width) in LAYOUTS {
        let model = Model { weights, width, ..Model::default() };
        let integers = Layout::of(weights).coding().is_some();
        let second = if integers { ActivationPrecision::Int8x2 } else { ActivationPrecision::Bf16 };
        let precisions = [ActivationPrecision::F32, second];
        for (table, precision) in
            tables().iter().flat_map(|table| precisions.iter().map(|precision| (*table, *precision)))
        {
            let runner = |threads| {
                let options = CpuOptions {
                    threads,
                    precision: PrecisionRule::Requested(precision),
                    ..CpuOptions::default()
                };
                runner_on(Cpu::with_table(options, table).unwrap(), model)
            };
            let want = logits(&mut *runner(1), &tokens, 40);
            for (threads, rows) in [(2, 1), (3, 3), (1, 16)] {
                let got = logits(&mut *runner(threads), &tokens, rows);
                let what = format!("{weights}, {precision:?}, {threads} threads, {rows} rows");
                assert!(got == want, "{}, {what}", table.name);
            }
        }
    }
}

/// Three sequences in one step, each at another position of its prompt.
#[test]
fn other_sequences_change_nothing() {
    let prompts: Vec<_> = (1..=3).map(prompt).collect();
    for (table, model) in combinations() {
        let expected: Vec<_> =
            prompts.iter().map(|tokens| logits(&mut *runner_with(table, model, 1), tokens, PROMPT)).collect();
        let mut runner = runner_with(table, model, 2);
        let mut at = [0; 3];
        let mut random = Random(5);
        let mut got = vec![Vec::new(); 3];
        while at.iter().any(|&at| at < PROMPT) {
            let mut tokens = Vec::new();
            let mut sequences = Vec::new();
            let rows = at.map(|at| (1 + random.bits() as usize % 90).min(PROMPT - at));
            for (sequence, &rows) in rows.iter().enumerate().filter(|(_, rows)| **rows > 0) {
                tokens.extend(&prompts[sequence][at[sequence]..at[sequence] + rows]);
                sequences.push(TestSequence::new(5 * sequence as u32, at[sequence] as u32, rows as u32));
            }
            let mut rest = &step(&mut *runner, Input::Ids(&tokens), &sequences)[..];
            for sequence in 0..3 {
                let (own, others) = rest.split_at(rows[sequence] * VOCABULARY);
                got[sequence].extend(own.iter().map(|x| x.to_bits()));
                rest = others;
                at[sequence] += rows[sequence];
            }
        }
        assert!(got == expected, "{}, {model:?}", table.name);
    }
}

/// An output row has the bits that it has if all rows are output rows, also after steps without output
/// rows, and beside sequences with other output rows.
#[test]
fn output_rows_do_not_depend_on_other_output_rows() {
    let tokens = prompt(1);
    for (table, model) in combinations() {
        let all = logits(&mut *runner_with(table, model, 1), &tokens, PROMPT);
        let mut runner = runner_with(table, model, 2);
        let mut some = |position: usize, rows: usize, outputs: [Outputs; 2]| {
            let part = &tokens[position..position + rows];
            let sequences = [0, 1].map(|sequence| TestSequence {
                outputs: outputs[sequence],
                ..TestSequence::new(5 * sequence as u32, position as u32, rows as u32)
            });
            let inputs = [part, part].concat();
            let got = step(&mut *runner, Input::Ids(&inputs), &sequences);
            let end = position + rows;
            let want = outputs.map(|output| match output {
                Outputs::None => &[][..],
                Outputs::Last => &all[(end - 1) * VOCABULARY..end * VOCABULARY],
                Outputs::LastN(count) => &all[(end - count as usize) * VOCABULARY..end * VOCABULARY],
                Outputs::All => &all[position * VOCABULARY..end * VOCABULARY],
            });
            let got: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
            assert!(got == want.concat(), "{}, {model:?}, {outputs:?} at {position}", table.name);
        };
        some(0, 100, [Outputs::None, Outputs::None]);
        some(100, 1, [Outputs::None, Outputs::Last]);
        some(101, 20, [Outputs::LastN(3), Outputs::None]);
        some(121, 100, [Outputs::All, Outputs::Last]);
        some(221, 79, [Outputs::Last, Outputs::LastN(12)]);
    }
}

/// The rows of an image attend to each other, wherever the step that contains them begins.
#[test]
fn rows_of_an_image_do_not_depend_on_steps() {
    let tokens = prompt(1);
    let image = Range32 { start: 250, end: 270 };
    let run = |cuts: &[u32], threads: usize| -> Vec<u32> {
        let mut runner = runner(Model::default(), threads);
        let mut all = Vec::new();
        for cut in cuts.windows(2) {
            let mut sequence = TestSequence::new(0, cut[0], cut[1] - cut[0]);
            if cut[0] <= image.start && image.end <= cut[1] {
                sequence.spans.push(image);
            }
            let tokens = &tokens[cut[0] as usize..cut[1] as usize];
            all.extend(step(&mut *runner, Input::Ids(tokens), &[sequence]));
        }
        all.iter().map(|x| x.to_bits()).collect()
    };
    let want = run(&[0, 300], 1);
    assert!(want != logits(&mut *runner(Model::default(), 1), &tokens, PROMPT), "a span has an effect");
    for cuts in [&[0, 250, 270, 300][..], &[0, 1, 249, 271, 272, 300], &[0, 100, 300]] {
        assert!(run(cuts, 2) == want, "{cuts:?}");
    }
}

/// Blocks contain NaN before they are written, and other blocks contain NaN.
#[test]
fn stale_state_does_not_affect_results() {
    let tokens = prompt(1);
    for model in models() {
        let want = logits(&mut *runner(model, 1), &tokens, 7);
        let mut poisoned = runner(model, 2);
        let state = poisoned.state();
        for group in [GroupId(0), GroupId(1)] {
            // NaN in f32, f16 and bf16, and as a scale of q8_0.
            let nans = vec![0xff; state.export(group, Block(0)).unwrap().len()];
            (0..16).for_each(|block| state.import(group, Block(block), &nans).unwrap());
        }
        assert!(logits(&mut *poisoned, &tokens, 7) == want, "{model:?}");
        // The window has moved on, so its first blocks are released.
        let window = GroupId(0);
        let seen = (PROMPT + 1 - WINDOW as usize) / BLOCK_POSITIONS;
        let next = |runner: &mut dyn Runner| {
            let sequence = TestSequence::new(0, PROMPT as u32, 1);
            step(runner, Input::Ids(&[3]), &[sequence]).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let want = next(&mut *poisoned);
        let nans = poisoned.state().export(window, Block(15)).unwrap();
        (0..seen as u32).for_each(|block| poisoned.state().import(window, Block(block), &nans).unwrap());
        assert!(next(&mut *poisoned) == want, "{model:?}");
    }
}
