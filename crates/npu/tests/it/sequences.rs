//! Steps of several sequences, whose attention is on the array: values, bytes, and what a step counts.

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::interpret::Interpreter;
use girih_graph::{Backend as _, Key, Outputs, Runner, Sequence, Step, load};
use girih_npu::driver::{
    Compiler, KeyUse, Ledger, Runtime, Scenario, ValueUse, estimate_step, time_programs,
};
use girih_npu::form::groups::Groups;
use girih_npu::pass::{ArrayMapping, ArrayWeights, AttentionPlacement, NoDump, Policy};
use girih_npu::{Npu, NpuOptions, Target};

use crate::llama::{LlamaSizes, SMALL, key, llama};
use crate::random::RandomWeights;
use crate::values::assert_close;

const SIZES: LlamaSizes =
    LlamaSizes { layers: 2, width: 64, hidden: 64, vocabulary: 64, window: None, ..SMALL };

/// Blocks of state of a sequence of up to 512 positions.
const BLOCKS: u32 = 8;

/// Sequences of the largest step.
const SEQUENCES: u32 = 3;

fn largest() -> Key {
    Key { context: 512, sequences: SEQUENCES, output_rows: SEQUENCES, ..key(64) }
}

const POLICY: Policy = Policy { attention: AttentionPlacement::Array, ..Policy::BY_COST };

/// An array that holds weights in this format.
fn on_array(target: &str, sizes: LlamaSizes, weights: ArrayWeights, runtime: Runtime) -> Box<dyn Runner> {
    let mapping = ArrayMapping { weights, ..ArrayMapping::from(POLICY) };
    let npu =
        Npu::new(target, NpuOptions { runtime, ..NpuOptions::default() }).unwrap().with_mapping(mapping);
    let work = npu.host_work(&llama(&sizes, largest()));
    assert!(work.iter().all(|work| work.op != "attend"), "{work:?}");
    let blocks = [BLOCKS * (SEQUENCES + 1)];
    load(npu, &RandomWeights(7), largest(), &blocks, |key| Ok(llama(&sizes, key))).unwrap()
}

fn usual(target: &str, sizes: LlamaSizes) -> Box<dyn Runner> {
    on_array(target, sizes, ArrayWeights::Stored, Runtime::default())
}

fn by_definition(sizes: LlamaSizes) -> Box<dyn Runner> {
    let blocks = [BLOCKS * (SEQUENCES + 1)];
    load(Interpreter, &RandomWeights(7), largest(), &blocks, |key| Ok(llama(&sizes, key))).unwrap()
}

/// The rows of a sequence in a step: the sequence's number, and the positions.
type Part = (u32, std::ops::Range<u32>);

/// The logits after the last row of each sequence in a step. Tokens follow from the sequence and the position.
fn step(runner: &mut dyn Runner, parts: &[Part]) -> Vec<Vec<f32>> {
    let token = |sequence: u32, at: u32| (at * 37 + at / 61 + 11 * sequence) % 64;
    let tokens: Vec<u32> =
        parts.iter().flat_map(|(sequence, rows)| rows.clone().map(|at| token(*sequence, at))).collect();
    let blocks: Vec<Vec<Block>> = parts
        .iter()
        .map(|(sequence, _)| (sequence * BLOCKS..(sequence + 1) * BLOCKS).map(Block).collect())
        .collect();
    let groups: Vec<[&[Block]; 1]> = blocks.iter().map(|blocks| [&blocks[..]]).collect();
    let mut start = 0;
    let mut sequences = Vec::new();
    for ((_, rows), blocks) in parts.iter().zip(&groups) {
        let end = start + rows.len() as u32;
        let rows_of_step = Range32 { start, end };
        start = end;
        sequences.push(Sequence {
            blocks,
            position: rows.start,
            rows: rows_of_step,
            outputs: Outputs::Last,
            spans: &[],
        });
    }
    let inputs = &[Input::Ids(&tokens)];
    runner.step(Step { inputs, sequences: &sequences, watch: &mut Unwatched }).unwrap();
    (0..parts.len()).map(|row| runner.output().rows(row..row + 1).unwrap().to_vec()).collect()
}

/// Prompts of three lengths, then tokens of all three, of two, and a prompt beside tokens.
fn steps() -> Vec<Vec<Part>> {
    let mut steps = vec![vec![(0, 0..64)], vec![(0, 64..100)], vec![(1, 0..5), (2, 0..40)]];
    steps.extend((0..30).map(|at| vec![(0, 100 + at..101 + at), (1, 5 + at..6 + at), (2, 40 + at..41 + at)]));
    steps.extend((0..3).map(|at| vec![(2, 70 + at..71 + at), (0, 130 + at..131 + at)]));
    // The first sequence's rows are behind those of another, which has several.
    steps.push(vec![(2, 73..74), (1, 35..75), (0, 133..134)]);
    steps.push(vec![(1, 75..76), (0, 134..150), (2, 74..100)]);
    steps
}

fn logits(runner: &mut dyn Runner, steps: &[Vec<Part>]) -> Vec<Vec<f32>> {
    steps.iter().flat_map(|parts| step(runner, parts)).collect()
}

/// Without and with a window, sequences of other lengths in one step are near the definition.
#[test]
fn steps_of_several_sequences_match_the_interpreter() {
    for (window, target) in
        [(None, "toy"), (Some(70), "toy"), (None, "xdna2-strix"), (Some(70), "xdna2-strix")]
    {
        let sizes = LlamaSizes { window, ..SIZES };
        let exact = logits(&mut *by_definition(sizes), &steps());
        assert_close(&logits(&mut *usual(target, sizes), &steps()), &exact);
    }
}

/// Rows behind those of a sequence may be behind the context.
#[test]
fn a_sequence_can_fill_the_context_beside_others() {
    let mut steps: Vec<Vec<Part>> = (0..7).map(|at| vec![(0, 64 * at..64 * at + 64)]).collect();
    steps.extend([vec![(1, 0..3), (0, 448..500), (2, 0..1)], vec![(2, 1..2), (0, 500..511), (1, 3..40)]]);
    steps.push(vec![(1, 40..41), (0, 511..512)]);
    for window in [None, Some(70)] {
        let sizes = LlamaSizes { window, ..SIZES };
        let exact = logits(&mut *by_definition(sizes), &steps);
        assert_close(&logits(&mut *usual("toy", sizes), &steps), &exact);
    }
}

/// The logits of one sequence after each of its parts of the steps.
fn of_sequence(runner: &mut dyn Runner, steps: &[Vec<Part>], sequence: u32) -> Vec<Vec<f32>> {
    let mut found = Vec::new();
    for parts in steps {
        let logits = step(runner, parts);
        found.extend(
            parts.iter().zip(logits).filter(|(part, _)| part.0 == sequence).map(|(_, logits)| logits),
        );
    }
    found
}

fn alone(steps: &[Vec<Part>], sequence: u32) -> Vec<Vec<Part>> {
    let own = |parts: &Vec<Part>| parts.iter().filter(|part| part.0 == sequence).cloned().collect();
    steps.iter().map(own).filter(|parts: &Vec<Part>| !parts.is_empty()).collect()
}

/// With Q4NX weights, a sequence has the bits that it has alone.
#[test]
fn a_sequence_has_the_same_bits_alone_and_beside_others() {
    for (window, target, layers) in [(None, "toy", 2), (Some(70), "toy", 2), (Some(70), "xdna2-strix", 1)] {
        let sizes = LlamaSizes { window, layers, ..SIZES };
        let packed = || on_array(target, sizes, ArrayWeights::Q4nx, Runtime::default());
        let together: Vec<Vec<Vec<f32>>> = {
            let runner = &mut *packed();
            steps().iter().map(|parts| step(runner, parts)).collect()
        };
        let own = &mut *packed();
        for sequence in 0..SEQUENCES {
            let of = |(parts, logits): (&Vec<Part>, &Vec<Vec<f32>>)| {
                let at = parts.iter().position(|part| part.0 == sequence)?;
                Some(logits[at].clone())
            };
            let together: Vec<Vec<f32>> = steps().iter().zip(&together).filter_map(of).collect();
            assert!(
                together == logits(own, &alone(&steps(), sequence)),
                "{sequence}, {window:?} on {target}"
            );
        }
    }
}

/// With bf16 weights, the bits do not depend on which sequences a step has, nor on their order and number.
#[test]
fn a_sequence_has_the_same_bits_beside_any_others() {
    let token = |sequence: u32, at: u32| (sequence, at..at + 1);
    let prompts = || vec![vec![(0, 0..33), (1, 0..30)], vec![(2, 0..60)]];
    let tokens = (0..8).map(|at| vec![token(0, 33 + at), token(1, 30 + at)]);
    let two: Vec<_> = prompts().into_iter().chain(tokens).collect();
    let tokens = (0..8).map(|at| vec![token(2, 60 + at), token(1, 30 + at), token(0, 33 + at)]);
    let three: Vec<_> = prompts().into_iter().chain(tokens).collect();
    let [two, three] = [two, three].map(|steps| of_sequence(&mut *usual("toy", SIZES), &steps, 0));
    assert!(two == three);
}

/// No place of keys, values and activations changes a byte, while windows move around their slots, sequences come
/// and go, and one goes back.
#[test]
fn resident_keys_of_several_sequences_are_right() {
    let mut steps = steps();
    steps.extend((0..260).map(|at| vec![(0, 150 + at..151 + at), (1, 76 + at..77 + at)]));
    steps.push(vec![(3, 0..64)]);
    steps.extend(
        (0..9).map(|at| vec![(3, 64 + at..65 + at), (2, 100 + at..101 + at), (1, 336 + at..337 + at)]),
    );
    steps.extend((0..70).map(|at| vec![(1, 300 + at..301 + at), (0, 410 + at..411 + at)]));
    steps.extend((0..3).map(|at| vec![(2, 109 + at..110 + at)]));
    for window in [None, Some(70)] {
        let sizes = LlamaSizes { window, layers: 1, ..SIZES };
        let with = |runtime| logits(&mut *on_array("toy", sizes, ArrayWeights::Stored, runtime), &steps);
        let usual = with(Runtime::default());
        let gathered = Runtime { keys: KeyUse::Gathered, ..Runtime::default() };
        assert!(usual == with(gathered), "gathered in each step, window {window:?}");
        let brokered = Runtime { values: ValueUse::Brokered, ..gathered };
        assert!(usual == with(brokered), "with objects of each program, window {window:?}");
    }
}

/// The counts and the array's cycles of a step, without what is counted at load.
fn since(before: Ledger, after: Ledger) -> Vec<u64> {
    let counts = |ledger: Ledger| {
        let Ledger { submissions, calls, launches, array_cycles, configure_cycles, list_words, .. } = ledger;
        let Ledger { written_bytes, read_bytes, syncs, copied_bytes, host, .. } = ledger;
        let array = [submissions, calls, launches, array_cycles, configure_cycles, list_words];
        let traffic = [written_bytes, read_bytes, syncs, copied_bytes, host.flops, host.bytes];
        array.into_iter().chain(traffic)
    };
    counts(after).zip(counts(before)).map(|(after, before)| after - before).collect()
}

/// A run of a token of each sequence and an estimate count the same, the array's time included.
#[test]
fn estimates_and_runs_of_several_sequences_count_the_same() {
    let target = Target::named("toy").unwrap();
    let all = Runtime::default().departures().into_iter().map(|(_, runtime)| runtime);
    for runtime in all.chain([Runtime::default(), Runtime::MLIR_AIR]) {
        for (window, rows) in [(None, 1), (Some(70), 1), (None, 5)] {
            let graph = llama(&LlamaSizes { window, ..SIZES }, Key { rows: 16, ..largest() });
            let options = NpuOptions { runtime, policy: POLICY, ..NpuOptions::default() };
            let npu = Npu::new("toy", options).unwrap();
            let weights = npu.load(&graph, &RandomWeights(7)).unwrap();
            let mut state = npu.state(&graph, &[BLOCKS * SEQUENCES]).unwrap();
            let program = npu.compile(&graph, &weights).unwrap();
            let mut output = npu.output(&graph).unwrap();
            let blocks: Vec<Block> = (0..BLOCKS * SEQUENCES).map(Block).collect();
            let groups: Vec<[&[Block]; 1]> = blocks.chunks(BLOCKS as usize).map(|blocks| [blocks]).collect();
            let mut before = Ledger::default();
            for position in (0..140).step_by(rows as usize) {
                before = npu.device().ledger;
                let sequences: Vec<Sequence<'_>> = groups
                    .iter()
                    .zip((0..).step_by(rows as usize))
                    .map(|(blocks, start)| Sequence {
                        blocks,
                        position,
                        rows: Range32 { start, end: start + rows },
                        outputs: Outputs::Last,
                        spans: &[],
                    })
                    .collect();
                let tokens = vec![position % 64; (rows * SEQUENCES) as usize];
                let inputs = &[Input::Ids(&tokens)];
                let step = Step { inputs, sequences: &sequences, watch: &mut Unwatched };
                npu.run(&program, &weights, &mut state, &mut output, step).unwrap();
            }
            let compiled = Compiler::new(target.clone(), POLICY, None).compile(&graph, &mut NoDump).unwrap();
            let position = 139 / rows * rows;
            let scene = Scenario { sequences: SEQUENCES, position, rows, runtime };
            let programs = time_programs(&compiled, &target).unwrap();
            let found = estimate_step(&graph, &compiled, &target, programs, scene).ledger;
            let ran = since(before, npu.device().ledger);
            assert_eq!(ran, since(Ledger::default(), found), "{rows} rows, window {window:?}, {runtime:?}");
        }
    }
}

/// A step submits the attention of each layer once for each sequence; the form prints and parses.
#[test]
fn groups_of_several_sequences_print_and_parse() {
    let target = Target::named("toy").unwrap();
    let compiler = Compiler::new(target, POLICY, None);
    let groups = compiler.groups(&llama(&SIZES, largest()), &mut NoDump).unwrap();
    let text = groups.to_string();
    assert_eq!(text.parse::<Groups>().unwrap(), groups);
    let layers = SIZES.layers;
    // The end of a layer is one program with the beginning of the next.
    assert_eq!(groups.submissions(1, 1), 1 + 2 * layers + 1);
    assert_eq!(groups.submissions(3, 3), 1 + layers + 3 * layers + 3);
    let error = text.replace("one_row", "first_row").parse::<Groups>().unwrap_err().to_string();
    assert!(error.contains("one_row"), "{error}");
}

/// Where attention of several sequences runs is compared for a row of each of eight. Only the first run configures the
/// array.
#[test]
fn places_of_attention_are_compared_for_a_row_of_each_of_eight_sequences() {
    let compiler = Compiler::new(Target::named("xdna2-strix").unwrap(), Policy::BY_COST, None);
    let cost = compiler.attention_cost(&llama(&SIZES, largest())).unwrap();
    assert_eq!((cost.sequences, cost.rows), (8, 1));
    assert!(cost.to_string().starts_with("attention of a row of each of 8 sequences at 1024 positions"));
    let one = compiler.attention_cost(&llama(&SIZES, Key { context: 512, ..key(1) })).unwrap();
    assert!(cost.array_seconds > one.array_seconds && cost.array_seconds < 8.0 * one.array_seconds);
    assert!(cost.host_seconds > one.host_seconds && cost.host_seconds < 8.0 * one.host_seconds, "one sync");
}
