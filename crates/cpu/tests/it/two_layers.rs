//! A model of two layers, for tests of all but its numbers.

use girih_graph::backend::Input;
use girih_graph::{Act, Builder, Graph, Key, Op, OutputKind, Pairing, Runner, Span, ValueId, faults};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, cpu, on, step};

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
    let mut layers = Layers {
        builder: Builder::new(key),
        model,
        heads: HEADS,
        kv_heads: KV_HEADS,
        inner: 2 * model.width,
    };
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

/// The parts of models.
pub struct Layers {
    pub builder: Builder,
    pub model: Model,
    pub heads: usize,
    pub kv_heads: usize,
    /// The width of the feed-forward block.
    pub inner: usize,
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
        let (width, size) = (self.model.width, self.model.width / self.heads);
        let flat = self.linear(name, x, width, heads * size);
        self.builder.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &[heads, size])
    }

    fn rotated(&mut self, name: &str, x: ValueId) -> ValueId {
        let half = self.model.width / self.heads / 2;
        let frequencies = self.builder.weight("frequencies", Shape::vector(half), DType::F32);
        let op = Op::Rope {
            pairing: self.model.pairing,
            factor: (self.model.pairing == Pairing::Neighbours).then_some(1.25),
        };
        self.builder.same(&format!("{name}.rotated"), op, &[x, frequencies])
    }

    /// Adds a layer.
    pub fn layer(&mut self, name: &str, x: ValueId, span: Span) -> ValueId {
        let (width, inner, softcap) = (self.model.width, self.inner, self.model.softcap);
        let normed = self.norm(&format!("{name}.before_mixer"), x, width);
        let q = self.heads(&format!("{name}.q"), normed, self.heads);
        let q = self.rotated(&format!("{name}.q"), q);
        let k = self.heads(&format!("{name}.k"), normed, self.kv_heads);
        let k = self.rotated(&format!("{name}.k"), k);
        let v = self.heads(&format!("{name}.v"), normed, self.kv_heads);
        let group = self.builder.group(span);
        let head = [self.kv_heads, width / self.heads];
        let keys = self.builder.state(&format!("{name}.keys"), &head, self.model.state, group);
        let values = self.builder.state(&format!("{name}.values"), &head, self.model.state, group);
        self.builder.write(k, keys);
        self.builder.write(v, values);
        let op = Op::Attend { scale: 0.4, span, softcap };
        let mixed = self.builder.same(&format!("{name}.attend"), op, &[q, keys, values]);
        let mixed = self.builder.shaped(&format!("{name}.flat"), Op::Reshape, &[mixed], &[width]);
        let mixed = self.linear(&format!("{name}.o"), mixed, width, width);
        let x = self.builder.same(&format!("{name}.mixed"), Op::Add, &[x, mixed]);
        let normed = self.norm(&format!("{name}.before_ffn"), x, width);
        let gate = self.linear(&format!("{name}.gate"), normed, width, inner);
        let up = self.linear(&format!("{name}.up"), normed, width, inner);
        let gated = self.builder.same(&format!("{name}.gated"), Op::gate(Act::Silu), &[gate, up]);
        let down = self.linear(&format!("{name}.down"), gated, inner, width);
        self.builder.same(&format!("{name}.out"), Op::Add, &[x, down])
    }
}

/// A runner of a model with the best kernels and weights of a fixed seed.
pub fn runner(shape: Model, threads: usize) -> Box<dyn Runner> {
    let graph = model(shape);
    on(cpu(threads), &graph, &Source::random(&graph, &mut Random(11)), 16)
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
