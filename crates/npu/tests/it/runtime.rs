//! The runtime: no choice changes a byte of the result, and a run counts what
//! the estimate counts from shapes.

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{Backend as _, Error, Key, Outputs, Role, Runner, Sequence, Step, WeightSource, load};
use girih_npu::driver::{
    Compiler, Dispatch, KeyUse, Ledger, ListUse, Runtime, Scenario, ValueUse, WeightUse, estimate_step,
    host_spread, time_programs,
};
use girih_npu::form::groups::{ArrayTensor, Groups, StepAction as Part, TensorKind};
use girih_npu::form::schedule::{DmaAddress, Schedule};
use girih_npu::pass::{AttentionPlacement, Grouping, NoDump, Policy};
use girih_npu::{Npu, NpuOptions, Target};
use girih_tensor::DType;

use crate::llama::{LlamaSizes, SMALL, key, llama};

/// Weights that are sine waves whose wavelength depends on the name.
struct Waves;

impl WeightSource for Waves {
    fn read(&self, name: &str, _: u64, into: &mut [u8]) -> Result<(), Error> {
        if name.starts_with("rope") {
            let values: Vec<f32> = (0..into.len() / 4).map(|i| 0.1f32.powi(i as i32)).collect();
            DType::F32.pack(&values, into);
            return Ok(());
        }
        let length = name.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 97;
        let pace = 0.37 + length as f32 / 41.0;
        let norm = name.contains("norm") || name.contains("before");
        let value = |i: usize| {
            let wave = (i as f32 * pace).sin();
            if norm { 1.0 + 0.2 * wave } else { 0.25 * wave }
        };
        let values: Vec<f32> = (0..into.len() / 2).map(value).collect();
        DType::BF16.pack(&values, into);
        Ok(())
    }
}

const PROMPT: [u32; 19] = [1, 17, 300, 4, 250, 99, 12, 13, 14, 511, 1, 0, 77, 76, 75, 74, 73, 300, 301];
const MORE: [u32; 3] = [5, 6, 500];

/// The logits after these tokens, of the sequence that has these blocks of
/// state and already `position` tokens.
fn after(runner: &mut dyn Runner, blocks: std::ops::Range<u32>, position: u32, tokens: &[u32]) -> Vec<f32> {
    let blocks: Vec<Block> = blocks.map(Block).collect();
    let blocks: &[&[Block]] = &[&blocks];
    let rows = Range32 { start: 0, end: tokens.len() as u32 };
    let sequence = Sequence { blocks, position, rows, outputs: Outputs::Last, spans: &[] };
    let inputs = &[Input::Ids(tokens)];
    runner.step(Step { inputs, sequences: &[sequence], watch: &mut Unwatched }).unwrap();
    runner.output().rows(0..1).unwrap().to_vec()
}

/// The logits after each of these chunks of tokens of one sequence.
fn logits(runner: &mut dyn Runner, chunks: &[&[u32]]) -> Vec<Vec<f32>> {
    let mut position = 0;
    let each = chunks.iter().map(|tokens| {
        position += tokens.len() as u32;
        after(runner, 0..32, position - tokens.len() as u32, tokens)
    });
    each.collect()
}

fn with(options: NpuOptions, largest: Key, chunks: &[&[u32]]) -> Vec<Vec<f32>> {
    let npu = Npu::new("toy", options).unwrap();
    let mut runner = load(npu, &Waves, largest, &[32], |key| Ok(llama(&SMALL, key))).unwrap();
    logits(&mut *runner, chunks)
}

/// Options without a ladder: one program for a single row, and one for the
/// largest step.
fn plain() -> NpuOptions {
    NpuOptions { lengths: Vec::new(), contexts: Vec::new(), hazards: false, ..NpuOptions::default() }
}

/// The prompt, then single tokens.
fn story() -> Vec<&'static [u32]> {
    std::iter::once(&PROMPT[..]).chain(MORE.chunks(1)).collect()
}

#[test]
fn no_length_and_no_context_changes_a_byte() {
    let largest = Key { context: 512, ..key(64) };
    let padded = with(plain(), largest, &story());
    assert!(padded.iter().flatten().all(|logit| logit.is_finite()));
    let short = Key { context: 512, ..key(24) };
    assert_eq!(with(plain(), short, &story()), padded, "compiled for fewer rows");
    let ladder = NpuOptions { lengths: vec![8, 16, 24], contexts: vec![64, 128], ..plain() };
    assert_eq!(with(ladder.clone(), largest, &story()), padded, "the smallest program that holds the step");
    let array = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
    let padded = with(NpuOptions { policy: array, ..plain() }, largest, &story());
    assert_eq!(with(NpuOptions { policy: array, ..ladder }, largest, &story()), padded, "tokens, too");
}

/// A prompt longer than the longest program runs in chunks. A chunk of one row
/// would use the program for one token, whose sums have another order.
#[test]
fn no_chunk_size_changes_a_byte() {
    let whole = with(plain(), Key { context: 512, ..key(24) }, &story());
    let ladder = || NpuOptions { lengths: vec![8], contexts: vec![64], ..plain() };
    for chunk in [8, 11, 16] {
        let mut chunks: Vec<&[u32]> = PROMPT.chunks(chunk).collect();
        let skipped = chunks.len() - 1;
        chunks.extend(MORE.chunks(1));
        let found = with(ladder(), Key { context: 512, ..key(chunk as u32) }, &chunks);
        assert_eq!(found[skipped..], whole[..], "chunks of {chunk}");
    }
}

#[test]
fn no_choice_of_the_runtime_changes_a_byte() {
    let largest = Key { context: 512, ..key(24) };
    let usual = with(plain(), largest, &story());
    let array = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
    let usual_array = with(NpuOptions { policy: array, ..plain() }, largest, &story());
    let base = Runtime { weights: WeightUse::EachCall, ..Runtime::MLIR_AIR };
    let others = Runtime::default().departures().into_iter().map(|(_, runtime)| runtime);
    for runtime in others.chain([Runtime::MLIR_AIR, base]) {
        assert_eq!(with(NpuOptions { runtime, ..plain() }, largest, &story()), usual, "{runtime:?}");
        let policy = NpuOptions { runtime, policy: array, ..plain() };
        assert_eq!(with(policy, largest, &story()), usual_array, "{runtime:?}");
    }
}

/// The logits of two sequences that alternate, with attention on the array. The longer one outgrows contexts,
/// and single tokens follow prompts in it.
fn two_sequences(sizes: &LlamaSizes, grouping: Grouping, keys: KeyUse, contexts: Vec<u32>) -> Vec<Vec<f32>> {
    let policy = Policy { grouping, attention: AttentionPlacement::Array };
    let runtime = Runtime { keys, ..Runtime::default() };
    let npu = Npu::new("toy", NpuOptions { policy, runtime, contexts, ..plain() }).unwrap();
    let largest = Key { context: 512, ..key(24) };
    let mut runner = load(npu, &Waves, largest, &[32], |key| Ok(llama(sizes, key))).unwrap();
    let (long, short) = (0..8, 8..16);
    let tokens: Vec<u32> = (0..160).map(|i| i * 37 % 512).collect();
    let mut said = Vec::new();
    for chunk in 0..5 {
        let at = chunk * 24;
        said.push(after(&mut *runner, long.clone(), at, &tokens[at as usize..][..24]));
    }
    for at in 120..132 {
        said.push(after(&mut *runner, long.clone(), at, &tokens[at as usize..][..1]));
    }
    said.push(after(&mut *runner, short.clone(), 0, &tokens[40..60]));
    said.push(after(&mut *runner, short.clone(), 20, &tokens[60..61]));
    said.push(after(&mut *runner, long.clone(), 132, &tokens[132..133]));
    said.push(after(&mut *runner, short, 21, &tokens[61..62]));
    // A prompt that continues after tokens, and another token at a position that already had one.
    said.push(after(&mut *runner, long.clone(), 133, &tokens[100..110]));
    said.push(after(&mut *runner, long.clone(), 143, &tokens[3..4]));
    said.push(after(&mut *runner, long, 143, &tokens[7..8]));
    said
}

/// A sequence that outgrows a context continues in the next; a second sequence
/// alternates with it.
#[test]
fn resident_keys_belong_to_their_sequence() {
    let say = |keys, contexts| two_sequences(&SMALL, Grouping::Stitched, keys, contexts);
    let gathered = say(KeyUse::Gathered, Vec::new());
    assert_eq!(say(KeyUse::Kept, Vec::new()), gathered);
    assert_eq!(say(KeyUse::Kept, vec![64, 128, 256]), gathered, "promoted at 128 positions");
}

/// Whether the host writes keys and values before attention or a program appends them changes no byte, with
/// a window that moves by a block, too.
#[test]
fn appended_keys_are_those_that_the_host_writes() {
    let one = LlamaSizes { layers: 1, ..SMALL };
    for sizes in [SMALL, LlamaSizes { window: Some(70), ..one }] {
        let written = two_sequences(&sizes, Grouping::Joined, KeyUse::Kept, Vec::new());
        for keys in [KeyUse::Kept, KeyUse::Gathered] {
            let appended = two_sequences(&sizes, Grouping::Resident, keys, vec![64, 128, 256]);
            assert_eq!(appended, written, "{keys:?}, a window of {:?}", sizes.window);
        }
    }
}

/// The token whose row of the table of embeddings is NaN.
const NAN_TOKEN: u32 = 500;

/// [`Waves`] with that row.
struct WavesWithNan;

impl WeightSource for WavesWithNan {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Waves.read(name, offset, into)?;
        if name == "embed.table" {
            let row = SMALL.width as u64 * 2;
            let end = offset + into.len() as u64;
            let begin = u64::from(NAN_TOKEN) * row;
            for at in (begin.max(offset)..(begin + row).min(end)).step_by(2) {
                DType::BF16.pack(&[f32::NAN], &mut into[(at - offset) as usize..][..2]);
            }
        }
        Ok(())
    }
}

/// Attention multiplies the values behind the last position by 0, so a row that was appended there and taken
/// back, such as a rejected draft, must not stay: 0 times NaN is NaN.
#[test]
fn a_row_that_was_taken_back_does_not_stay_among_the_appended() {
    let say = |grouping| {
        let policy = Policy { grouping, attention: AttentionPlacement::Array };
        let npu = Npu::new("toy", NpuOptions { policy, ..plain() }).unwrap();
        let largest = Key { context: 128, ..key(24) };
        let mut runner = load(npu, &WavesWithNan, largest, &[32], |key| Ok(llama(&SMALL, key))).unwrap();
        let mut say = |position, token| after(&mut *runner, 0..2, position, &[token]);
        let before = [say(0, 3), say(1, 4)];
        assert!(say(2, NAN_TOKEN).iter().any(|logit| logit.is_nan()));
        let logits = [before, [say(1, 5), say(2, 6)]].concat();
        for logits in &logits {
            assert!(logits[..NAN_TOKEN as usize].iter().all(|logit| logit.is_finite()), "{grouping:?}");
        }
        logits.iter().flatten().map(|logit| logit.to_bits()).collect::<Vec<u32>>()
    };
    assert_eq!(say(Grouping::Resident), say(Grouping::Joined));
}

/// Nor may it stay in a slot that a shorter sequence does not use, although other rows stay there.
#[test]
fn rows_of_another_sequence_stay_only_if_they_are_finite() {
    for grouping in [Grouping::Resident, Grouping::Joined] {
        let policy = Policy { grouping, attention: AttentionPlacement::Array };
        let begin = || {
            let npu = Npu::new("toy", NpuOptions { policy, ..plain() }).unwrap();
            let largest = Key { context: 256, ..key(64) };
            load(npu, &WavesWithNan, largest, &[32], |key| Ok(llama(&SMALL, key))).unwrap()
        };
        let said = |runner: &mut dyn Runner| -> Vec<u32> {
            let logits = [after(runner, 8..12, 0, &PROMPT), after(runner, 8..12, 19, &MORE[..1])].concat();
            let finite = logits.chunks(SMALL.vocabulary).flat_map(|row| &row[..NAN_TOKEN as usize]);
            assert!(finite.clone().all(|logit| logit.is_finite()), "{grouping:?}");
            finite.map(|logit| logit.to_bits()).collect()
        };
        let want = said(&mut *begin());
        for last in [3, NAN_TOKEN] {
            let mut runner = begin();
            [0, 64].into_iter().for_each(|position| drop(after(&mut *runner, 0..4, position, &[5; 64])));
            after(&mut *runner, 0..4, 128, &[last]);
            assert!(said(&mut *runner) == want, "{grouping:?} after {last}");
        }
    }
}

/// The cost of a step without the array's cycles.
fn counts(ledger: Ledger) -> Ledger {
    Ledger {
        array_cycles: 0,
        configure_cycles: 0,
        polled_cycles: 0,
        preloaded_bytes: 0,
        load_copied_bytes: 0,
        ..ledger
    }
}

fn since(before: Ledger, after: Ledger) -> Ledger {
    let mut difference = counts(after);
    difference.submissions -= before.submissions;
    difference.calls -= before.calls;
    difference.launches -= before.launches;
    difference.list_words -= before.list_words;
    difference.written_bytes -= before.written_bytes;
    difference.read_bytes -= before.read_bytes;
    difference.syncs -= before.syncs;
    difference.copied_bytes -= before.copied_bytes;
    difference.host.flops -= before.host.flops;
    difference.host.bytes -= before.host.bytes;
    difference
}

/// A run and an estimate from shapes count the same for a step.
#[test]
fn estimates_and_runs_count_the_same() {
    let target = Target::named("toy").unwrap();
    let all = Runtime::default().departures().into_iter().map(|(_, runtime)| runtime);
    for runtime in all.chain([Runtime::default(), Runtime::MLIR_AIR]) {
        let array = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
        let resident = Policy { grouping: Grouping::Resident, ..array };
        let cases = [
            (&PROMPT[..], 24, Policy::MLIR_AIR),
            (&MORE[..1], 1, Policy::MLIR_AIR),
            (&MORE[..1], 1, array),
            (&MORE[..1], 1, resident),
        ];
        for (tokens, rows, policy) in cases {
            let graph = llama(&SMALL, Key { context: 256, ..key(rows) });
            let npu = Npu::new("toy", NpuOptions { runtime, policy, ..plain() }).unwrap();
            let weights = npu.load(&graph, &Waves).unwrap();
            let copied = npu.device().ledger.load_copied_bytes;
            let mut state = npu.state(&graph, &[32]).unwrap();
            let program = npu.compile(&graph, &weights).unwrap();
            let blocks: Vec<Block> = (0..32).map(Block).collect();
            let blocks: &[&[Block]] = &[&blocks];
            let mut output = npu.output(&graph).unwrap();
            let range = Range32 { start: 0, end: tokens.len() as u32 };
            let mut before = Ledger::default();
            for position in [40 - tokens.len() as u32, 40] {
                before = npu.device().ledger;
                let sequence = Sequence { blocks, position, rows: range, outputs: Outputs::Last, spans: &[] };
                let inputs = &[Input::Ids(tokens)];
                let step = Step { inputs, sequences: &[sequence], watch: &mut Unwatched };
                npu.run(&program, &weights, &mut state, &mut output, step).unwrap();
            }
            let found = since(before, npu.device().ledger);
            let compiler = Compiler::new(target.clone(), policy, None);
            let compiled = compiler.compile(&graph, &mut NoDump).unwrap();
            let scene = Scenario { sequences: 1, position: 40, rows: tokens.len() as u32, runtime };
            let programs = time_programs(&compiled, &target).unwrap();
            let estimate = estimate_step(&graph, &compiled, &target, programs, scene);
            assert_eq!(found, counts(estimate.ledger), "{rows} rows, {runtime:?}");
            assert_eq!(copied, estimate.load.copied, "{rows} rows, {runtime:?}");
        }
    }
}

/// Each choice has the expected cost.
#[test]
fn each_choice_has_its_cost() {
    let target = Target::named("xdna2-strix").unwrap();
    let compiler = Compiler::new(target.clone(), Policy::MLIR_AIR, None);
    let graph = llama(&SMALL, key(24));
    let compiled = compiler.compile(&graph, &mut NoDump).unwrap();
    let programs = time_programs(&compiled, &target).unwrap();
    let cost = |runtime: Runtime| {
        let scene = Scenario { sequences: 1, position: 0, rows: 24, runtime };
        estimate_step(&graph, &compiled, &target, programs.clone(), scene).ledger
    };
    let usual = Runtime::default();
    let best = cost(usual);
    assert_eq!(best.copied_bytes, 0);
    let brokered = cost(Runtime { values: ValueUse::Brokered, ..usual });
    assert!(brokered.copied_bytes > 0 && brokered.syncs > best.syncs);
    let each = cost(Runtime { weights: WeightUse::EachCall, ..usual });
    let weights = compiled.groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static);
    assert_eq!(each.copied_bytes, weights.map(|tensor| tensor.bytes()).sum::<u64>());
    assert_eq!(each.written_bytes - best.written_bytes, each.copied_bytes);
    let rebuilt = cost(Runtime { lists: ListUse::Rebuilt, ..usual });
    assert!(rebuilt.list_words > 4 * best.list_words);
    let single = cost(Runtime { dispatch: Dispatch::Single, ..usual });
    assert_eq!((single.calls, best.submissions), (single.submissions, single.submissions));
    // Keys and values go through the host; after attention, nothing does until the next layer.
    assert_eq!(best.calls, 1 + SMALL.layers as u64 + 1);
    let follows = single.calls - best.calls;
    let saved =
        target.cycles(target.control.dispatch_us * 1e-6) - target.cycles(target.control.runlist_us * 1e-6);
    assert_eq!(single.array_cycles - best.array_cycles, follows * saved);
}

/// The window of 256 moves over its slots in 5 blocks of tokens. Of the blocks that the next round needs, each layer
/// copies one at a token at which no other layer does.
#[test]
fn the_host_time_of_a_token_is_the_mean_of_a_round_of_tokens() {
    let target = Target::named("xdna2-strix").unwrap();
    let policy = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
    let compiler = Compiler::new(target.clone(), policy, None);
    let graph = llama(&LlamaSizes { window: Some(256), ..SMALL }, key(1));
    let compiled = compiler.compile(&graph, &mut NoDump).unwrap();
    let programs = time_programs(&compiled, &target).unwrap();
    let ledger = |position| {
        let scene = Scenario { sequences: 1, position, rows: 1, runtime: Runtime::default() };
        estimate_step(&graph, &compiled, &target, programs.clone(), scene).ledger
    };
    let spread = host_spread(&graph, &compiled, &target, 511);
    let mean = spread.mean;
    let round = 512 - 5 * 64..512;
    let of =
        |seconds: &dyn Fn(Ledger) -> f64| round.clone().map(|at| seconds(ledger(at))).sum::<f64>() / 320.0;
    assert!((of(&|ledger| ledger.sync_seconds(&target)) / mean.sync - 1.0).abs() < 1e-9);
    assert!((of(&|ledger| ledger.host_seconds(&target)) / mean.work - 1.0).abs() < 1e-9);
    let is_chunks = |tensor: &&ArrayTensor| tensor.kind == TensorKind::Chunks;
    let block = compiled.groups.tensors.iter().find(is_chunks).unwrap().block_bytes();
    let copied = |at| ledger(at).written_bytes - ledger(511).written_bytes;
    assert_eq!([448, 449, 450, 451].map(copied), [block, block, block, 0]);
    assert!(round.clone().all(|at| copied(at) <= block), "one layer at a token");
    assert_eq!(spread.worst.sync, ledger(450).sync_seconds(&target));
    assert!(mean.sync < spread.worst.sync && !spread.is_uneven());
}

/// The array appends keys and values, so a token is one submission for all layers and one for the head,
/// after the host's norm. Each attention of a token that does not stay configured is preceded by the host.
#[test]
fn a_token_of_resident_launches_is_two_submissions() {
    let target = Target::named("xdna2-strix").unwrap();
    let graph = llama(&SMALL, key(1));
    let calls = |grouping, rows_of_state: DType| {
        let mut graph = graph.clone();
        let states = graph.values.iter_mut().filter(|value| matches!(value.role, Role::State(_)));
        states.for_each(|state| state.dtype = rows_of_state);
        let compiler =
            Compiler::new(target.clone(), Policy { grouping, attention: AttentionPlacement::Array }, None);
        let compiled = compiler.compile(&graph, &mut NoDump).unwrap();
        let scene = Scenario { sequences: 1, position: 100, rows: 1, runtime: Runtime::default() };
        let programs = time_programs(&compiled, &target).unwrap();
        let ledger = estimate_step(&graph, &compiled, &target, programs, scene).ledger;
        (ledger.submissions, ledger.calls)
    };
    let layers = SMALL.layers as u64;
    assert_eq!(calls(Grouping::Joined, DType::BF16), (2 * layers + 2, layers + 2));
    assert_eq!(calls(Grouping::Resident, DType::BF16), (2, 2));
    // A state that rounds the rows is written by the host, which rounds.
    assert_eq!(calls(Grouping::Resident, DType::F16).1, layers + 2);
}

/// The number of descriptors of a schedule for an argument.
fn descriptors(schedule: &Schedule, argument: usize) -> u64 {
    let all = schedule.launches.iter().flat_map(|launch| &launch.descriptors);
    let reach =
        |place: &DmaAddress| matches!(place, DmaAddress::Argument(number, _) if *number as usize == argument);
    all.filter(|descriptor| reach(&descriptor.address)).count() as u64
}

/// The list of a layer's program is patched for the next layer: the addresses
/// of its weights, and the source and destination of the residual stream, two
/// objects that alternate. Nothing else changes.
#[test]
fn an_equal_layer_patches_only_its_weights_and_the_residual_stream() {
    let target = Target::named("toy").unwrap();
    let compiler = Compiler::new(target.clone(), Policy::MLIR_AIR, None);
    for rows in [24, 1] {
        let graph = llama(&SMALL, key(rows));
        let compiled = compiler.compile(&graph, &mut NoDump).unwrap();
        let scene = Scenario { sequences: 1, position: 64, rows, runtime: Runtime::default() };
        let programs = time_programs(&compiled, &target).unwrap();
        let found = estimate_step(&graph, &compiled, &target, programs, scene).ledger.list_words;
        let Groups { tensors, steps, programs, .. } = &compiled.groups;
        let mut max = 0;
        let mut min = 0;
        let residual = |name: &str| name == "embed" || name.ends_with(".out");
        for step in steps {
            let Part::Array { program, tensors: bound, .. } = step else { continue };
            let repeated = programs[*program as usize].name != "lm_head_gemv";
            for (argument, &tensor) in bound.iter().enumerate().filter(|_| repeated) {
                let words = 2 * descriptors(&compiled.schedules[*program as usize], argument);
                let tensor = &tensors[tensor as usize];
                let weight = tensor.kind == TensorKind::Static;
                min += if weight { words } else { 0 };
                max += if weight || residual(&tensor.name) { words } else { 0 };
            }
        }
        assert!((min..=max).contains(&found), "{rows} rows: {found} words, not {min} to {max}");
    }
}
