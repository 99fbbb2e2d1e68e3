//! Windows that move around the slots of their objects several times: values, and what the host writes.

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::interpret::Interpreter;
use girih_graph::{Backend as _, Key, Outputs, Runner, Sequence, Step, load};
use girih_npu::driver::{Compiler, KeyUse, Runtime, Scenario, estimate_step, time_programs};
use girih_npu::form::groups::TensorKind;
use girih_npu::pass::{AttentionPlacement, Grouping, NoDump, Policy};
use girih_npu::{Npu, NpuOptions, Target};

use crate::llama::{LlamaSizes, SMALL, key, llama};
use crate::random::RandomWeights;
use crate::values::assert_close;

/// A window whose blocks move around in 192 positions.
const ONE: LlamaSizes =
    LlamaSizes { layers: 1, width: 64, hidden: 64, vocabulary: 64, window: Some(70), ..SMALL };

/// Blocks of state of a sequence of up to 1024 positions.
const BLOCKS: u32 = 16;

fn largest() -> Key {
    Key { context: 1024, ..key(64) }
}

fn policy(grouping: Grouping) -> Policy {
    Policy { grouping, attention: AttentionPlacement::Array }
}

fn on_array(target: &str, grouping: Grouping, keys: KeyUse) -> Box<dyn Runner> {
    let runtime = Runtime { keys, ..Runtime::default() };
    let options = NpuOptions { policy: policy(grouping), runtime, ..NpuOptions::default() };
    let npu = Npu::new(target, options).unwrap();
    load(npu, &RandomWeights(7), largest(), &[2 * BLOCKS], |key| Ok(llama(&ONE, key))).unwrap()
}

/// The logits after rows of a sequence, whose tokens follow from their positions and `seed`. The sequence has
/// the blocks of state from `first` on.
fn step(runner: &mut dyn Runner, first: u32, position: u32, rows: u32, seed: u32) -> Vec<f32> {
    let blocks: Vec<Block> = (first..first + BLOCKS).map(Block).collect();
    let tokens: Vec<u32> = (position..position + rows).map(|at| (at * 37 + at / 61 + seed) % 64).collect();
    let (blocks, rows): (&[&[Block]], _) = (&[&blocks], Range32 { start: 0, end: rows });
    let sequence = Sequence { blocks, position, rows, outputs: Outputs::Last, spans: &[] };
    let inputs = &[Input::Ids(&tokens)];
    runner.step(Step { inputs, sequences: &[sequence], watch: &mut Unwatched }).unwrap();
    runner.output().rows(0..1).unwrap().to_vec()
}

/// The logits after each of these numbers of rows of a sequence.
fn steps(runner: &mut dyn Runner, rows: impl IntoIterator<Item = u32>) -> Vec<Vec<f32>> {
    let mut position = 0;
    let each = rows.into_iter().map(|rows| {
        position += rows;
        step(runner, 0, position - rows, rows, 0)
    });
    each.collect()
}

/// Tokens that programs append and tokens that the host writes, with and without resident keys, have the same
/// bits, and are near those of the interpreter.
#[test]
fn tokens_are_right_while_a_window_moves_around() {
    let rows = || [64, 33].into_iter().chain([1; 640]);
    let mut exact =
        load(Interpreter, &RandomWeights(7), largest(), &[2 * BLOCKS], |key| Ok(llama(&ONE, key))).unwrap();
    let exact = steps(&mut *exact, rows());
    let array = |target, grouping, keys| steps(&mut *on_array(target, grouping, keys), rows());
    let appended = array("toy", Grouping::Resident, KeyUse::Kept);
    assert_close(&appended, &exact);
    assert!(appended == array("toy", Grouping::Joined, KeyUse::Kept), "written by the host");
    assert!(appended == array("toy", Grouping::Resident, KeyUse::Gathered), "gathered in each step");
    assert_close(&array("xdna2-strix", Grouping::Resident, KeyUse::Kept), &exact);
}

/// Chunks of several rows, as of a prompt or of drafts, have the same bits however they are cut.
#[test]
fn chunks_are_right_while_a_window_moves_around() {
    let whole = steps(&mut *on_array("toy", Grouping::Resident, KeyUse::Kept), [64; 13]);
    for chunk in [50, 13, 4] {
        let starts = (0..13 * 64).step_by(chunk as usize);
        let cut: Vec<u32> = starts.map(|start| chunk.min(13 * 64 - start)).collect();
        let found = steps(&mut *on_array("toy", Grouping::Resident, KeyUse::Kept), cut);
        assert!(found.last() == whole.last(), "chunks of {chunk}");
    }
}

/// A sequence that goes back to before its window began again at the first slot, goes on with other tokens.
/// Another sequence uses the slots in between.
#[test]
fn a_sequence_goes_back_while_a_window_moves_around() {
    for grouping in [Grouping::Resident, Grouping::Joined] {
        let mut fresh = on_array("toy", grouping, KeyUse::Kept);
        let mut used = on_array("toy", grouping, KeyUse::Kept);
        let first = |runner: &mut dyn Runner| steps(runner, [64; 3].into_iter().chain([1; 160]));
        assert!(first(&mut *fresh) == first(&mut *used));
        // The window began again in position 261 or after, and in 453 or after.
        for back in [350, 470, 300, 455, 452, 449, 263, 257] {
            (back..back + 60).for_each(|at| drop(step(&mut *used, 0, at, 1, 5)));
            let other = step(&mut *used, BLOCKS, 0, 40, 9);
            assert!(other.iter().all(|logit| logit.is_finite()));
            let again = (back..back + 60).map(|at| step(&mut *used, 0, at, 1, 0));
            let again: Vec<Vec<f32>> = again.collect();
            let want: Vec<Vec<f32>> = (back..back + 60).map(|at| step(&mut *fresh, 0, at, 1, 0)).collect();
            assert!(again == want, "{grouping:?} from {back}");
        }
    }
}

/// For a token, the host writes at most one block of each layer besides those to which it adds a row, and the
/// addresses that move. An estimate counts the same.
#[test]
fn a_token_writes_at_most_one_block_of_a_layer_while_a_window_moves_around() {
    let target = Target::named("toy").unwrap();
    let sizes = LlamaSizes { layers: 2, ..ONE };
    let graph = llama(&sizes, Key { context: 1024, ..key(1) });
    for grouping in [Grouping::Resident, Grouping::Joined] {
        let policy = policy(grouping);
        let npu = Npu::new("toy", NpuOptions { policy, hazards: false, ..NpuOptions::default() }).unwrap();
        let weights = npu.load(&graph, &RandomWeights(7)).unwrap();
        let mut state = npu.state(&graph, &[BLOCKS]).unwrap();
        let program = npu.compile(&graph, &weights).unwrap();
        let compiled = Compiler::new(target.clone(), policy, None).compile(&graph, &mut NoDump).unwrap();
        let programs = time_programs(&compiled, &target).unwrap();
        let chunks = compiled.groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Chunks);
        let block = chunks.map(|tensor| tensor.block_bytes()).max().unwrap();
        let mut output = npu.output(&graph).unwrap();
        let blocks: Vec<Block> = (0..BLOCKS).map(Block).collect();
        let blocks: &[&[Block]] = &[&blocks];
        let mut copied = 0;
        for position in 0..700 {
            let before = npu.device().ledger;
            let rows = Range32 { start: 0, end: 1 };
            let sequence = Sequence { blocks, position, rows, outputs: Outputs::Last, spans: &[] };
            let step = Step {
                inputs: &[Input::Ids(&[position % 64])],
                sequences: &[sequence],
                watch: &mut Unwatched,
            };
            npu.run(&program, &weights, &mut state, &mut output, step).unwrap();
            let after = npu.device().ledger;
            let scene = Scenario { sequences: 1, position, rows: 1, runtime: Runtime::default() };
            let found = estimate_step(&graph, &compiled, &target, programs.clone(), scene).ledger;
            let written = after.written_bytes - before.written_bytes;
            assert_eq!(written, found.written_bytes, "{grouping:?} at {position}");
            assert_eq!(after.syncs - before.syncs, found.syncs, "{grouping:?} at {position}");
            if position > 1 {
                let words = after.list_words - before.list_words;
                assert_eq!(words, found.list_words, "{grouping:?} at {position}");
            }
            // Where the host writes all rows, it writes the blocks that grow, too.
            let growing = if grouping == Grouping::Joined { 2 } else { 0 };
            let others = written / block - growing;
            assert!(others <= 2, "{grouping:?} at {position}: {others} blocks");
            copied += others;
        }
        assert!((10..=24).contains(&copied), "{grouping:?} copied {copied} blocks");
    }
}
