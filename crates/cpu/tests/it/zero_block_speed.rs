//! Measures whole tokens and prompts of the shape of Llama-3.2-1B whose matrices have blocks of zeros, beside the same
//! model with its zeros packed like other blocks. All of them run in turns, and logits must have equal bits.
//!
//! ```text
//! cargo test --release --locked -p girih-cpu --test it zero_block_speed -- --ignored --nocapture
//! ```
//! Layers are Q4_0, the head is Q6_K, as `quantize --type q4_0` writes them.

use std::time::Instant;

use girih_cpu::{Cpu, CpuOptions, EqualWeights, ZeroBlocks};
use girih_graph::backend::Input;
use girih_graph::{Builder, Error, Graph, Key, Op, OutputKind, Outputs, Runner, Span, WeightSource, load};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, TestSequence, step, stored_values};
use crate::two_layers::{Layers, Model};

pub const WIDTH: usize = 2048;
const VOCABULARY: usize = 128_256;
pub const PROMPT: usize = 512;
const REPLY: usize = 16;
const ROUNDS: usize = 5;

pub fn llama() -> Graph {
    let key =
        Key { rows: PROMPT as u32, sequences: 1, context: 640, output_rows: 1, output: OutputKind::Logits };
    let model = Model { width: WIDTH, weights: DType::Q4_0, ..Model::default() };
    let mut layers = Layers { builder: Builder::new(key), model, heads: 32, kv_heads: 8, inner: 4 * WIDTH };
    let mut x = layers.builder.input("embed", &[WIDTH], DType::F32);
    for index in 0..16 {
        x = layers.layer(&format!("layers.{index}"), x, Span::Full);
    }
    let taken = layers.builder.gather("taken", x);
    let head = layers.builder.weight("head", Shape::matrix(VOCABULARY, WIDTH), DType::Q6_K);
    let logits = layers.builder.shaped("logits", Op::Linear, &[taken, head], &[VOCABULARY]);
    layers.builder.finish(logits)
}

/// Random weights; each band of 32 rows keeps a share of its blocks.
struct Pruned {
    graph: Graph,
    /// Some blocks of Q4_0 and of Q6_K.
    blocks: [Vec<u8>; 2],
    layers: f64,
    head: f64,
}

impl WeightSource for Pruned {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let (_, weight) =
            self.graph.weights().find(|(_, weight)| weight.name == name).expect("it has the weight");
        let (blocks, density) = match weight.dtype {
            DType::Q4_0 => (&self.blocks[0], self.layers),
            DType::Q6_K => (&self.blocks[1], self.head),
            _ => {
                into.chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&0.1_f32.to_le_bytes()));
                return Ok(());
            }
        };
        let (each, across) = (weight.dtype.block_bytes(), weight.shape.columns() / weight.dtype.tile().1);
        let kept = (density * across as f64).round() as usize;
        let first = offset as usize / each;
        for (index, block) in (first..).zip(into.chunks_exact_mut(each)) {
            // An odd factor maps the blocks of a band, a power of two, one to one.
            let is_kept = (index % across * 37 + index / across / 32 * 11) % across < kept;
            let from = index * 7919 % (blocks.len() / each) * each;
            if is_kept { block.copy_from_slice(&blocks[from..from + each]) } else { block.fill(0) }
        }
        Ok(())
    }
}

/// Seconds of a token and of a prompt, and the bits of the last logits of each.
pub fn measure(runner: &mut dyn Runner, rows: &[f32]) -> ([f64; 2], Vec<u32>) {
    let mut run = |rows: &[f32], position: usize| -> Vec<u32> {
        let outputs = Outputs::LastN(1);
        let sequence =
            TestSequence { outputs, ..TestSequence::new(0, position as u32, (rows.len() / WIDTH) as u32) };
        step(&mut *runner, Input::Rows(rows), &[sequence]).into_iter().map(f32::to_bits).collect()
    };
    let begun = Instant::now();
    let prompt = run(rows, 0);
    let prompt_seconds = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut token = Vec::new();
    for (index, row) in rows.chunks_exact(WIDTH).take(REPLY).enumerate() {
        token = run(row, PROMPT + index);
    }
    let seconds = [begun.elapsed().as_secs_f64() / REPLY as f64, prompt_seconds];
    (seconds, [prompt, token].concat())
}

#[test]
#[ignore = "a measurement; takes minutes on an idle machine in a release build"]
fn zero_block_speed() {
    let rows = Random(1).numbers(PROMPT * WIDTH);
    let stored = |dtype, seed| stored_values(dtype, &Shape::matrix(256, 2048), &mut Random(seed));
    let cases = [(1.0, 1.0), (0.75, 1.0), (0.5, 1.0), (0.25, 1.0), (0.5, 0.5)];
    let mut runners = Vec::new();
    for (layers, head) in cases {
        let blocks = [stored(DType::Q4_0, 3), stored(DType::Q6_K, 4)];
        let source = Pruned { graph: llama(), blocks, layers, head };
        runners.push([ZeroBlocks::Keep, ZeroBlocks::Skip].map(|zero_blocks| {
            // All layers have the same weights here, and each its own memory, as in a real model.
            let equal_weights = EqualWeights::Keep;
            let options = CpuOptions { threads: 2, zero_blocks, equal_weights, ..CpuOptions::default() };
            let cpu = Cpu::new(options).unwrap();
            let blocks = vec![16; source.graph.groups.len()];
            load(cpu, &source, source.graph.key, &blocks, |_| Ok(source.graph.clone())).unwrap()
        }));
    }
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..=ROUNDS {
        for (runners, times) in runners.iter_mut().zip(&mut times) {
            let [keep, skip] = runners.each_mut().map(|runner| measure(&mut **runner, &rows));
            assert!(keep.1 == skip.1, "logits have equal bits");
            if round > 0 {
                times.push([keep.0, skip.0]);
            }
        }
    }
    for ((layers, head), times) in cases.iter().zip(&times) {
        print!("layers {layers}, head {head}:");
        for (part, name) in ["token", "prompt of 512"].iter().enumerate() {
            let mut ratios: Vec<f64> = times.iter().map(|[keep, skip]| keep[part] / skip[part]).collect();
            ratios.sort_by(f64::total_cmp);
            let best = |way: usize| times.iter().map(|round| round[way][part]).fold(f64::INFINITY, f64::min);
            print!(
                "  {name} {:.1} ms, {:.1} with all blocks, {:.2} times as fast ({:.2} to {:.2})",
                1e3 * best(1),
                1e3 * best(0),
                ratios[ratios.len() / 2],
                ratios[0],
                ratios[ratios.len() - 1]
            );
        }
        println!();
    }
}
