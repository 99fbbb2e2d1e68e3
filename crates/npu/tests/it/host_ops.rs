//! Ops that the array has no program for: the interpreter computes them between two programs.

use std::sync::{Arc, Mutex};

use girih_graph::backend::{GivenRows, Input, Range32, Unwatched};
use girih_graph::interpret::Interpreter;
use girih_graph::{Backend, Error, Graph, Key, OutputKind, Outputs, Runner, Sequence, Step, faults, load};
use girih_npu::driver::WarningSink;
use girih_npu::pass::{AttentionPlacement, Policy};
use girih_npu::{Npu, NpuOptions};

use crate::random::RandomWeights;
use crate::values::assert_close;

const KEY: Key = Key { rows: 24, sequences: 2, context: 64, output_rows: 1, output: OutputKind::Pooled };

/// An encoder: given rows, attention to all rows, layer norms, gelu, and pooled rows with a matmul. A scale and a
/// cap stand among the matmuls.
fn encoder(key: Key) -> Graph {
    let Key { rows, sequences, context, output_rows, .. } = key;
    let text = format!(
        "graph rows {rows} sequences {sequences} context {context} output_rows {output_rows} -> pooled
        input x: [rows {rows}, 64] f32
        input given: [rows {rows}, 64] f32
        spliced: [rows {rows}, 64] = splice x, given
        weight q.weight: [64, 64] bf16
        weight q.bias: [64] bf16
        q: [rows {rows}, 64] = linear spliced, q.weight, q.bias
        weight k.weight: [64, 64] bf16
        k: [rows {rows}, 64] = linear spliced, k.weight
        weight v.weight: [64, 64] bf16
        v: [rows {rows}, 64] = linear spliced, v.weight
        q.heads: [rows {rows}, 4, 16] = reshape q
        k.heads: [rows {rows}, 4, 16] = reshape k
        v.heads: [rows {rows}, 4, 16] = reshape v
        mixed.heads: [rows {rows}, 4, 16] = attend(scale=0.25 span=all) q.heads, k.heads, v.heads
        mixed: [rows {rows}, 64] = reshape mixed.heads
        weight o.weight: [64, 64] bf16
        o: [rows {rows}, 64] = linear mixed, o.weight
        scaled: [rows {rows}, 64] = scale(factor=0.5) o
        sum: [rows {rows}, 64] = add spliced, scaled
        weight norm.weight: [64] bf16
        weight norm.bias: [64] bf16
        normed: [rows {rows}, 64] = layer_norm(epsilon=1e-5) sum, norm.weight, norm.bias
        weight up.weight: [176, 64] bf16
        up: [rows {rows}, 176] = linear normed, up.weight
        active: [rows {rows}, 176] = activate(act=gelu) up
        gated: [rows {rows}, 176] = gate(act=gelu) up, active
        weight down.weight: [64, 176] bf16
        down: [rows {rows}, 64] = linear gated, down.weight
        capped: [rows {rows}, 64] = softcap(cap=8.0) down
        last: [rows {rows}, 64] = add normed, capped
        pooled: [sequences {sequences}, 64] = pool(how=mean) last
        weight dense.weight: [64, 64] bf16
        output dense: [sequences {sequences}, 64] = linear pooled, dense.weight"
    );
    let graph: Graph = text.parse().unwrap();
    assert_eq!(faults(&graph), []);
    graph
}

/// The pooled rows of sequences that end at these rows. Two rows are given.
fn pooled(runner: &mut dyn Runner, ends: &[u32]) -> Vec<Vec<f32>> {
    let rows = ends.last().copied().unwrap();
    let x: Vec<f32> = (0..rows * 64).map(|index| (index * 37 % 61) as f32 / 30.0 - 1.0).collect();
    let values: Vec<f32> = (0..2 * 64).map(|index| (index * 11 % 17) as f32 / 8.0 - 1.0).collect();
    let sequence = |start, end| Sequence {
        blocks: &[],
        position: 0,
        rows: Range32 { start, end },
        outputs: Outputs::None,
        spans: &[],
    };
    let starts = [0].iter().chain(ends);
    let sequences: Vec<_> = starts.zip(ends).map(|(&start, &end)| sequence(start, end)).collect();
    let given = [GivenRows { first_row: 15, values: &values }];
    let inputs = &[Input::Rows(&x), Input::Given(&given)];
    runner.step(Step { inputs, sequences: &sequences, watch: &mut Unwatched }).unwrap();
    runner.output().rows(0..ends.len()).unwrap().chunks(64).map(<[f32]>::to_vec).collect()
}

fn loaded<B: Backend>(backend: B, key: Key) -> Result<Box<dyn Runner>, Error> {
    load(backend, &RandomWeights(7), key, &[], |key| Ok(encoder(key)))
}

#[test]
fn an_encoder_matches_the_interpreter_and_names_what_the_host_computes() {
    let exact = pooled(&mut *loaded(Interpreter, KEY).unwrap(), &[13, 20]);
    for target in ["toy", "xdna2-strix"] {
        let warned = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&warned);
        let sink = WarningSink::new(move |sentence| sink.lock().unwrap().push(sentence.to_owned()));
        let npu = Npu::new(target, NpuOptions::default()).unwrap().with_warnings(sink);
        assert_close(&pooled(&mut *loaded(npu, KEY).unwrap(), &[13, 20]), &exact);
        let ops = ["'splice'", "'scale'", "'activate' of gelu"];
        let ops = ops.iter().chain(&["a gate of gelu", "'softcap'", "'pool'"]);
        let sentences = ops.map(|op| {
            format!(
                "the array has no program for {op}: the interpreter computes 1 node of a step on the host"
            )
        });
        assert_eq!(*warned.lock().unwrap(), sentences.collect::<Vec<_>>());
    }
}

/// Attention to all rows runs on the array if they are of one sequence; rows of padding are not seen, and the rows of a
/// shorter step are padding of the program.
#[test]
fn rows_of_one_sequence_attend_to_all_others_on_the_array() {
    let key = Key { rows: 150, sequences: 1, context: 256, ..KEY };
    let all = |backend: &mut dyn Runner| [150, 65, 20].map(|rows| pooled(backend, &[rows]));
    let exact = all(&mut *loaded(Interpreter, key).unwrap());
    let policy = Policy { attention: AttentionPlacement::Array, ..Policy::BY_COST };
    for target in ["toy", "xdna2-strix"] {
        let npu = Npu::new(target, NpuOptions { policy, ..NpuOptions::default() }).unwrap();
        assert!(npu.host_work(&encoder(key)).iter().all(|work| work.op != "attend"));
        for (rows, exact) in all(&mut *loaded(npu, key).unwrap()).iter().zip(&exact) {
            assert_close(rows, exact);
        }
    }
}

#[test]
fn a_strict_array_refuses_an_encoder() {
    let npu = Npu::new("toy", NpuOptions { is_strict: true, ..NpuOptions::default() }).unwrap();
    let error = loaded(npu, KEY).map(drop).unwrap_err();
    let sentence = "the npu backend does not run 'spliced': the array has no program for 'splice'";
    assert_eq!(error.to_string(), sentence);
}
