//! The array computes the same as the interpreter, up to rounding of stored
//! values to bf16.

use girih_graph::backend::{Block, Input, Range32, Unwatched, Watch};
use girih_graph::interpret::Interpreter;
use girih_graph::{Backend as _, Graph, Output as _, Outputs, Runner, Sequence, Step, load};
use girih_npu::pass::{AttentionPlacement, Grouping, Policy};
use girih_npu::sim::EventOrder;
use girih_npu::{Npu, NpuOptions};

use crate::llama::{LlamaSizes, SMALL, key, llama};
use crate::random::RandomWeights;

/// The logits after a prompt and after each further token.
fn logits(runner: &mut dyn Runner, prompt: &[u32], more: &[u32]) -> Vec<Vec<f32>> {
    let blocks: Vec<Block> = (0..32).map(Block).collect();
    let blocks: &[&[Block]] = &[&blocks];
    let mut position = 0;
    let mut all = Vec::new();
    for tokens in std::iter::once(prompt).chain(more.chunks(1)) {
        let rows = Range32 { start: 0, end: tokens.len() as u32 };
        let sequence = Sequence { blocks, position, rows, outputs: Outputs::Last, spans: &[] };
        let inputs = &[Input::Ids(tokens)];
        runner.step(Step { inputs, sequences: &[sequence], watch: &mut Unwatched }).unwrap();
        position += tokens.len() as u32;
        all.push(runner.output().rows(0..1).unwrap().to_vec());
    }
    all
}

const PROMPT: [u32; 19] = [1, 17, 300, 4, 250, 99, 12, 13, 14, 511, 1, 0, 77, 76, 75, 74, 73, 300, 301];
const MORE: [u32; 3] = [5, 6, 500];

fn on_array(target: &str, options: NpuOptions) -> Vec<Vec<f32>> {
    let npu = Npu::new(target, options).unwrap();
    let mut runner = load(npu, &RandomWeights(7), key(24), &[32], |key| Ok(llama(&SMALL, key))).unwrap();
    logits(&mut *runner, &PROMPT, &MORE)
}

/// A bound for three layers, counted as in `girih_measure`: at most sixteen operators in a
/// row between two hidden states, each rounding to 8 bits, with a gain of two
/// and seven standard deviations.
pub fn assert_close(found: &[Vec<f32>], exact: &[Vec<f32>]) {
    let rounding = 0.424_661 * 2f64.powi(-8);
    let noise = ((1.0 + 16.0 * 3.0) * rounding * rounding).sqrt();
    for (found, exact) in found.iter().zip(exact) {
        let squares: f64 = exact.iter().map(|x| f64::from(*x).powi(2)).sum();
        let rms = (squares / exact.len() as f64).sqrt();
        let errors = found.iter().zip(exact).map(|(a, b)| f64::from(a - b).abs());
        let worst = errors.fold(0.0, f64::max);
        assert!(worst <= 7.0 * 2.0 * noise * rms, "{worst} where the root mean square is {rms}");
        assert!(worst > 0.0, "bf16 cannot be exact");
    }
}

#[test]
fn a_prompt_and_tokens_match_the_interpreter() {
    let mut exact =
        load(Interpreter, &RandomWeights(7), key(24), &[32], |key| Ok(llama(&SMALL, key))).unwrap();
    let exact = logits(&mut *exact, &PROMPT, &MORE);
    let toy = on_array("toy", NpuOptions::default());
    assert_close(&toy, &exact);
    let policy = Policy { grouping: Grouping::Unstitched, ..Policy::MLIR_AIR };
    let unstitched = on_array("toy", NpuOptions { policy, ..NpuOptions::default() });
    assert_eq!(toy, unstitched, "programs are split elsewhere, but compute the same");
    let seeded = on_array("toy", NpuOptions { order: EventOrder::Seeded(3), ..NpuOptions::default() });
    assert_eq!(toy, seeded, "any order that the locks allow computes the same");
    for attention in [AttentionPlacement::Host, AttentionPlacement::Array] {
        let policy = Policy { attention, ..Policy::MLIR_AIR };
        assert_close(&on_array("toy", NpuOptions { policy, ..NpuOptions::default() }), &exact);
    }
    assert_close(&on_array("xdna2-strix", NpuOptions::default()), &exact);
}

/// The outputs of steps of these numbers of rows on an array, which also computes attention of
/// single rows, and by the interpreter.
fn steps(sizes: &LlamaSizes, target: &str, rows: &[u32]) -> [Vec<Vec<f32>>; 2] {
    let policy = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
    let npu = Npu::new(target, NpuOptions { policy, ..NpuOptions::default() }).unwrap();
    let graph = |key| Ok(llama(sizes, key));
    let mut array = load(npu, &RandomWeights(7), key(64), &[32], graph).unwrap();
    let mut exact = load(Interpreter, &RandomWeights(7), key(64), &[32], graph).unwrap();
    [&mut array, &mut exact].map(|runner| outputs(&mut **runner, rows))
}

/// The logits after each step.
pub fn outputs(runner: &mut dyn Runner, rows: &[u32]) -> Vec<Vec<f32>> {
    watched_outputs(runner, rows, &mut Unwatched)
}

/// The logits after each step, whose values `watch` receives.
pub fn watched_outputs(runner: &mut dyn Runner, rows: &[u32], watch: &mut dyn Watch) -> Vec<Vec<f32>> {
    let blocks: Vec<Block> = (0..32).map(Block).collect();
    let blocks: &[&[Block]] = &[&blocks];
    let mut position = 0;
    let mut all = Vec::new();
    for &rows in rows {
        let tokens: Vec<u32> = (position..position + rows).map(|token| token * 37 % 61).collect();
        let range = Range32 { start: 0, end: rows };
        let sequence = Sequence { blocks, position, rows: range, outputs: Outputs::Last, spans: &[] };
        let inputs = &[Input::Ids(&tokens)];
        runner.step(Step { inputs, sequences: &[sequence], watch: &mut *watch }).unwrap();
        position += rows;
        all.push(runner.output().rows(0..1).unwrap().to_vec());
    }
    all
}

const ONE: LlamaSizes = LlamaSizes { layers: 1, width: 64, hidden: 64, vocabulary: 64, ..SMALL };

const fn heads(heads: usize, kv_heads: usize, head: usize) -> LlamaSizes {
    LlamaSizes { heads, kv_heads, head, ..ONE }
}

/// Heads of 20 and of 24 values are padded to whole groups of heads, groups of 3 and of 6 heads fill
/// the matrix unit with several positions, and blocks of heads of 256 are cut into chunks. The targets
/// are those on which a test computes each.
pub const HEADS: [(LlamaSizes, &[&str]); 6] = [
    (heads(4, 2, 20), &["toy", "xdna2-strix"]),
    (heads(6, 2, 24), &["toy"]),
    (heads(6, 1, 16), &["toy", "xdna2-strix"]),
    (heads(7, 1, 16), &["toy"]),
    (heads(2, 1, 256), &["toy"]),
    (heads(4, 1, 256), &["xdna2-strix"]),
];

#[test]
fn heads_and_groups_of_any_size_match_the_interpreter() {
    for (sizes, targets) in HEADS {
        for target in targets {
            let [array, exact] = steps(&sizes, target, &[30, 1, 40, 1]);
            assert_close(&array, &exact);
        }
    }
}

/// A row of queries that is too long for a core is rotated in parts of whole heads.
#[test]
fn queries_too_long_for_a_core_match_the_interpreter() {
    let sizes = LlamaSizes { heads: 64, kv_heads: 32, head: 64, ..ONE };
    let [array, exact] = steps(&sizes, "toy", &[3, 1]);
    assert_close(&array, &exact);
}

/// Rows of weights that are too long for a core arrive in parts, and a vocabulary that divides by
/// nothing has a last launch that is smaller.
#[test]
fn long_rows_and_odd_vocabularies_match_the_interpreter() {
    let sizes = LlamaSizes { hidden: 4096, vocabulary: 2 * 16_384 + 32 * 7, ..ONE };
    let [array, exact] = steps(&sizes, "toy", &[3, 1, 1]);
    assert_close(&array, &exact);
}

/// The chunks of a window begin at the first position that a step attends to.
#[test]
fn a_window_moves_along_the_sequence() {
    for (window, target) in [(3, "toy"), (64, "toy"), (70, "toy"), (64, "xdna2-strix")] {
        let sizes = LlamaSizes { window: Some(window), ..ONE };
        let [array, exact] = steps(&sizes, target, &[64, 62, 1, 1, 1, 64, 1, 3]);
        assert_close(&array, &exact);
    }
}

/// The bug of windows: the cores that divide the keys took blocks in turns from the first of the
/// window, so that sums depended on where a step began.
#[test]
fn chunks_of_several_rows_do_not_change_the_results() {
    for (window, target) in [(None, "toy"), (Some(70), "toy"), (Some(70), "xdna2-strix")] {
        let sizes = LlamaSizes { window, layers: 2, ..ONE };
        let [whole, _] = steps(&sizes, target, &[64, 64, 60]);
        let [parts, _] = steps(&sizes, target, &[50, 3, 61, 40, 34]);
        assert_eq!(whole.last(), parts.last(), "window {window:?} on {target}");
    }
}

/// The last steps of a context lie behind rows of padding.
#[test]
fn a_context_can_be_filled() {
    for (window, target) in [(None, "toy"), (Some(70), "toy"), (None, "xdna2-strix")] {
        let sizes = LlamaSizes { window, ..ONE };
        let policy = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
        let npu = Npu::new(target, NpuOptions { policy, ..NpuOptions::default() }).unwrap();
        let graph = |key| Ok(llama(&sizes, key));
        let largest = girih_graph::Key { context: 200, ..key(64) };
        let mut array = load(npu, &RandomWeights(7), largest, &[32], graph).unwrap();
        let mut exact = load(Interpreter, &RandomWeights(7), largest, &[32], graph).unwrap();
        let [array, exact] =
            [&mut array, &mut exact].map(|runner| outputs(&mut **runner, &[64, 64, 40, 31, 1]));
        assert_close(&array, &exact);
    }
}

/// The bug of the split head: each launch computed the values of the first, and
/// the others stayed zero. It did not appear with a vocabulary that fits one
/// launch.
#[test]
fn a_head_of_several_launches_computes_all_of_its_values() {
    let sizes = LlamaSizes { layers: 1, vocabulary: 3 * 16384, ..SMALL };
    let graph = |key| Ok(llama(&sizes, key));
    let mut exact = load(Interpreter, &RandomWeights(7), key(8), &[32], graph).unwrap();
    let exact = logits(&mut *exact, &PROMPT[..5], &[]);
    for target in ["toy", "xdna2-strix"] {
        let npu = Npu::new(target, NpuOptions::default()).unwrap();
        let mut array = load(npu, &RandomWeights(7), key(8), &[32], graph).unwrap();
        assert_close(&logits(&mut *array, &PROMPT[..5], &[]), &exact);
    }
}

/// A graph whose nodes all run on the host, because their rows are output rows.
const TAIL: &str = "graph rows 24 sequences 1 context 64 output_rows 1 -> hidden
input tokens: [rows 24] i32
weight table: [512, 32] bf16
embed: [rows 24, 32] = embed tokens, table
last: [output_rows 1, 32] = gather embed
twice: [output_rows 1, 32] = add last, last
weight tail.norm: [32] bf16
normed: [output_rows 1, 32] = norm(epsilon=1e-5) twice, tail.norm
scaled: [output_rows 1, 32] = scale(factor=0.3) last
gated: [output_rows 1, 32] = gate(act=gelu_tanh) normed, scaled
output capped: [output_rows 1, 32] = softcap(cap=0.1) gated
";

/// The bug of a sum of output rows: the plan put it on the host, which had no kernel for it.
#[test]
fn the_host_computes_output_rows_by_the_definition_of_each_op() {
    let graph: Graph = TAIL.parse().unwrap();
    let mut exact = load(Interpreter, &RandomWeights(7), graph.key, &[], |_| Ok(graph.clone())).unwrap();
    let npu = Npu::new("toy", NpuOptions::default()).unwrap();
    assert_eq!(npu.refuses(&graph), []);
    let weights = npu.load(&graph, &RandomWeights(7)).unwrap();
    let program = npu.compile(&graph, &weights).unwrap();
    let (mut state, mut output) = (npu.state(&graph, &[]).unwrap(), npu.output(&graph).unwrap());
    let rows = Range32 { start: 0, end: 19 };
    let sequences = [Sequence { blocks: &[], position: 0, rows, outputs: Outputs::Last, spans: &[] }];
    let inputs = &[Input::Ids(&PROMPT)];
    exact.step(Step { inputs, sequences: &sequences, watch: &mut Unwatched }).unwrap();
    let step = Step { inputs, sequences: &sequences, watch: &mut Unwatched };
    npu.run(&program, &weights, &mut state, &mut output, step).unwrap();
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(output.rows(0..1).unwrap()), bits(exact.output().rows(0..1).unwrap()));
    let host = npu.device().ledger.host;
    // A sum of 32 values, the norm, the scale, the gate and the softcap.
    assert_eq!(host.flops, 32 * (1 + 4 + 1 + 10 + 10));
    assert_eq!(host.bytes, 4 * 19 * 32 + 32 * (8 + 12 + 8 + 8 + 12 + 8));
    let none = [Sequence { outputs: Outputs::None, ..sequences[0] }];
    let step = Step { inputs, sequences: &none, watch: &mut Unwatched };
    npu.run(&program, &weights, &mut state, &mut output, step).unwrap();
    assert_eq!(output.rows(0..0).unwrap(), [] as [f32; 0]);
}

/// The runtime counts submissions: a prompt takes two programs per layer, one
/// before them and the head, a token one per layer, one before them and the head.
#[test]
fn submissions_and_traffic_are_counted() {
    let npu = Npu::new("toy", NpuOptions::default()).unwrap();
    let graph = |rows| llama(&SMALL, key(rows));
    let weights = npu.load(&graph(24), &RandomWeights(7)).unwrap();
    let mut state = npu.state(&graph(24), &[32]).unwrap();
    let mut output = npu.output(&graph(24)).unwrap();
    let blocks: Vec<Block> = (0..32).map(Block).collect();
    let blocks: &[&[Block]] = &[&blocks];
    let layers = SMALL.layers as u64;
    let mut position = 0;
    for (tokens, rows, want) in [(&PROMPT[..], 24, 2 * layers + 2), (&MORE[..1], 1, layers + 2)] {
        let program = npu.compile(&graph(rows), &weights).unwrap();
        let before = npu.device().ledger;
        let range = Range32 { start: 0, end: tokens.len() as u32 };
        let sequence = Sequence { blocks, position, rows: range, outputs: Outputs::Last, spans: &[] };
        let inputs = &[Input::Ids(tokens)];
        let step = Step { inputs, sequences: &[sequence], watch: &mut Unwatched };
        npu.run(&program, &weights, &mut state, &mut output, step).unwrap();
        position += tokens.len() as u32;
        let after = npu.device().ledger;
        assert_eq!(after.submissions - before.submissions, want);
        assert!(after.array_cycles > before.array_cycles);
        assert!(after.written_bytes > before.written_bytes && after.read_bytes > before.read_bytes);
        assert_eq!(after.preloaded_bytes, before.preloaded_bytes, "weights stay where they are");
    }
}
