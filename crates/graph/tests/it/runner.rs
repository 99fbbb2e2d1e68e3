//! Loading and steps, on a backend that computes nothing.

use std::cell::RefCell;

use girih_graph::backend::{Block, Input, MemoryPlan, Range32, Refusal, State, Unwatched};
use girih_graph::{
    Backend, Error, Graph, GroupId, Key, Numerics, Op, OutputKind, Outputs, Runner, Sequence, Step,
    WeightSource, load,
};

use crate::forms::parse;

const MAX_KEY: Key =
    Key { rows: 512, sequences: 2, context: 1152, output_rows: 4, output: OutputKind::Logits };
const BLOCKS: [u32; 2] = [20, 40];

/// A backend whose output rows are the rows and the context of the program that
/// ran, and the number of steps so far.
struct Null {
    ladder: Vec<Key>,
    /// Names of values whose nodes it does not run.
    objections: &'static [&'static str],
    /// An op that it does not know.
    unknown: Option<&'static str>,
}

struct Steps(u32);

impl State for Steps {
    fn copy(&mut self, _: GroupId, _: Block, _: Block) -> Result<(), Error> {
        Ok(())
    }
    fn zero(&mut self, _: GroupId, _: Block) -> Result<(), Error> {
        Ok(())
    }
    fn export(&self, _: GroupId, _: Block) -> Result<Vec<u8>, Error> {
        Ok(self.0.to_le_bytes().to_vec())
    }
    fn import(&mut self, _: GroupId, _: Block, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

impl Backend for Null {
    type Weights = ();
    type State = Steps;
    type Program = Key;

    fn name(&self) -> &'static str {
        "null"
    }
    fn numerics(&self, _: &Graph) -> Numerics {
        Numerics::single()
    }
    fn ladder(&self, _: Key) -> Vec<Key> {
        self.ladder.clone()
    }
    fn knows(&self, op: Op) -> bool {
        self.unknown != Some(op.name())
    }
    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        let known = self.objections.iter().filter(|name| graph.find(name).is_some());
        known.map(|name| Refusal { node: (*name).into(), reason: "it has no arithmetic".into() }).collect()
    }
    fn plan(&self, _: &Graph, blocks: &[u32]) -> MemoryPlan {
        MemoryPlan { weights: 1, state: u64::from(blocks.iter().sum::<u32>()), scratch: u64::MAX }
    }
    fn load(&self, _: &Graph, _: &dyn WeightSource) -> Result<(), Error> {
        Ok(())
    }
    fn state(&self, _: &Graph, _: &[u32]) -> Result<Steps, Error> {
        Ok(Steps(0))
    }
    fn compile(&self, graph: &Graph, (): &()) -> Result<Key, Error> {
        Ok(graph.key)
    }
    fn run(&self, program: &Key, (): &(), state: &mut Steps, step: Step<'_>) -> Result<(), Error> {
        state.0 += 1;
        let row = [program.rows as f32, program.context as f32, state.0 as f32];
        step.output.chunks_exact_mut(3).for_each(|output| output.copy_from_slice(&row));
        Ok(())
    }
}

struct NoWeights;

impl WeightSource for NoWeights {
    fn read(&self, name: &str, _: u64, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::new(format!("there is no weight '{name}'")))
    }
}

/// A graph of a key: rows of 3, two groups, a vocabulary of 16.
fn build(key: Key) -> Result<Graph, Error> {
    let Key { rows, context, output_rows, .. } = key;
    let input = match key.variant {
        Variant::GENERATE => format!(
            "input tokens: [rows {rows}] i32
            weight large: [20, 3] f32
            other: [rows {rows}, 3] = embed tokens, large
            weight table: [16, 3] f32
            some: [rows {rows}, 3] = embed tokens, table
            x: [rows {rows}, 3] = add some, other"
        ),
        _ => format!("input x: [rows {rows}, 3] f32"),
    };
    Ok(parse(&format!(
        "graph {key}
        group full span full
        group near span window:4
        {input}
        heads: [rows {rows}, 1, 3] = reshape x
        state keys: [context {context}, 1, 3] f16 in full
        keys = write heads
        seen: [rows {rows}, 1, 3] = attend(scale=1.0 span=full) heads, keys, keys
        flat: [rows {rows}, 3] = reshape seen
        output last: [output_rows {output_rows}, 3] = gather flat"
    )))
}

fn decode(context: u32) -> Key {
    Key { rows: 1, sequences: 1, context, output_rows: 1, ..MAX_KEY }
}

fn null() -> Null {
    Null { ladder: vec![decode(256), decode(1152), MAX_KEY], objections: &[], unknown: None }
}

fn loaded() -> Box<dyn Runner> {
    load(null(), &NoWeights, MAX_KEY, &BLOCKS, build).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_smallest_program_that_holds_a_step_runs_and_programs_share_state() {
    let mut runner = loaded();
    let mut ran = |position: u32, rows: u32| {
        let all: Vec<_> = (0..20).map(Block).collect();
        let blocks = [&all[..], &all[..]];
        let sequence = Sequence { position, ..sequence(&blocks, rows) };
        let mut output = [0.0; 3];
        let tokens = vec![1; rows as usize];
        step(runner.as_mut(), Input::Ids(&tokens), &[sequence], &mut output).map(|()| output)
    };
    assert_eq!(ran(19, 1), Ok([1.0, 256.0, 1.0]));
    assert_eq!(ran(255, 1), Ok([1.0, 256.0, 2.0]));
    assert_eq!(ran(256, 1), Ok([1.0, 1152.0, 3.0]));
    assert_eq!(ran(1151, 1), Ok([1.0, 1152.0, 4.0]));
    assert_eq!(ran(11, 9), Ok([512.0, 1152.0, 5.0]));
    let sentence = "a step of [rows 1 sequences 1 context 1153 output_rows 1 tokens -> logits] is larger than the \
                    largest program, [rows 512 sequences 2 context 1152 output_rows 4 tokens -> logits]";
    assert_eq!(ran(1152, 1), Err(sentence.to_owned()));
    assert_eq!(ran(0, 513).map_err(|error| error.contains("is larger than")), Err(true));
}

#[test]
fn a_key_holds_steps_that_are_no_larger_in_any_extent() {
    let step = Key { rows: 3, sequences: 2, context: 90, output_rows: 2, ..MAX_KEY };
    assert!(step.holds(&step) && MAX_KEY.holds(&step) && !step.holds(&MAX_KEY));
    let hidden = Variant { output: OutputKind::Hidden, ..Variant::GENERATE };
    for larger in [
        Key { rows: 4, ..step },
        Key { sequences: 3, ..step },
        Key { context: 91, ..step },
        Key { output_rows: 3, ..step },
    ] {
        assert!(!step.holds(&larger) && larger.holds(&step), "{larger}");
    }
    assert!(!MAX_KEY.holds(&Key { variant: hidden, ..step }), "programs of another variant hold no step");
}

#[test]
fn a_runner_reports_its_sizes() {
    let mut runner = loaded();
    assert_eq!((runner.backend(), runner.max_key(), runner.width()), ("null", MAX_KEY, 3));
    assert_eq!(runner.blocks(), BLOCKS);
    assert_eq!(runner.plan().state, 60);
    assert_eq!(runner.plan().total(), u64::MAX, "a sum that overflows saturates");
    assert_eq!(runner.state().export(GroupId(0), Block(0)).unwrap(), [0; 4]);
}

/// A sequence of `rows` rows from position 0, whose last row is an output row.
fn sequence<'a>(blocks: &'a [&'a [Block]], rows: u32) -> Sequence<'a> {
    Sequence {
        blocks,
        position: 0,
        rows: Range32 { start: 0, end: rows },
        outputs: Outputs::Last,
        spans: &[],
    }
}

fn step(
    runner: &mut dyn Runner,
    input: Input<'_>,
    sequences: &[Sequence<'_>],
    output: &mut [f32],
) -> Result<(), String> {
    let step = Step { inputs, sequences, output, watch: &mut Unwatched };
    runner.step(step).map_err(|error| error.to_string())
}

const TWO: &[&[Block]] = &[&[Block(0)], &[Block(0)]];

/// Asserts that a step of three tokens of one sequence is refused after `change`.
fn refused(change: impl FnOnce(&mut Sequence<'_>), sentence: &str) {
    let mut changed = sequence(TWO, 3);
    change(&mut changed);
    refused_step(Input::Ids(&[1, 2, 3]), &[changed], 3, sentence);
}

fn refused_step(input: Input<'_>, sequences: &[Sequence<'_>], room: usize, sentence: &str) {
    let mut runner = loaded();
    let mut output = vec![0.0; room];
    assert_eq!(step(runner.as_mut(), inputs, sequences, &mut output), Err(sentence.to_owned()));
    assert_eq!(runner.state().export(GroupId(0), Block(0)).unwrap(), [0; 4], "the backend did not run it");
}

#[test]
fn inputs_that_do_not_fit_the_programs_are_refused() {
    let sequences = [sequence(TWO, 3)];
    // The vocabulary is that of the smaller table.
    refused_step(Input::Ids(&[1, 16, 3]), &sequences, 3, "token 16 is outside the vocabulary of 16");
    refused_step(Input::Ids(&[1, 2]), &sequences, 3, "a step of 2 rows has sequences for 3");
    let rows = [0.0; 9];
    refused_step(Input::Rows(&rows), &sequences, 3, "the step has embeddings; the programs need tokens");
    refused_step(Input::Ids(&[]), &[], 0, "a step has no rows; at least one is needed");
    let room = |room, sentence| refused_step(Input::Ids(&[1, 2, 3]), &sequences, room, sentence);
    room(0, "the output of a step has room for 0 values; it needs 3");
    room(9, "the output of a step has room for 9 values; it needs 3");
}

#[test]
fn embeddings_must_be_whole_rows() {
    let variant = Variant { input: girih_graph::InputKind::Embeddings, ..Variant::GENERATE };
    let max_key = Key { variant, ..MAX_KEY };
    let backend = Null { ladder: vec![max_key], ..null() };
    let mut runner =
        load(backend, &NoWeights, max_key, &BLOCKS, build).unwrap_or_else(|error| panic!("{error}"));
    let mut run = |input: Input<'_>| step(runner.as_mut(), inputs, &[sequence(TWO, 3)], &mut [0.0; 3]);
    assert_eq!(run(Input::Rows(&[0.0; 9])), Ok(()));
    let refused = |sentence: &str| Err(sentence.to_owned());
    assert_eq!(run(Input::Rows(&[0.0; 8])), refused("8 embedding values are not whole rows of 3"));
    assert_eq!(run(Input::Rows(&[0.0; 6])), refused("a step of 2 rows has sequences for 3"));
    assert_eq!(run(Input::Ids(&[1, 2, 3])), refused("the step has tokens; the programs need embeddings"));
}

#[test]
fn sequences_with_gaps_or_overlaps_are_refused() {
    let sentence = "the sequences of a step must cover its rows in order, with at least one row each";
    refused(|sequence| sequence.rows = Range32 { start: 1, end: 3 }, sentence);
    refused(|sequence| sequence.rows = Range32 { start: 0, end: 0 }, sentence);
    refused(|sequence| sequence.rows = Range32 { start: 3, end: 0 }, sentence);
    let second = |start, end| Sequence { rows: Range32 { start, end }, ..sequence(TWO, 3) };
    for sequences in [[sequence(TWO, 2), second(1, 3)], [second(2, 3), sequence(TWO, 2)]] {
        refused_step(Input::Ids(&[1, 2, 3]), &sequences, 6, sentence);
    }
    refused_step(
        Input::Ids(&[1, 2, 3]),
        &[sequence(TWO, 2), second(2, 4)],
        6,
        "a step of 3 rows has sequences for 4",
    );
}

#[test]
fn blocks_that_do_not_cover_a_sequence_are_refused() {
    let too_few = "a sequence up to position 65 has 1 blocks of state; 2 are needed";
    refused(|sequence| sequence.position = 62, too_few);
    refused(
        |sequence| sequence.blocks = &[&[Block(0)]],
        "a sequence has blocks of 1 groups of state; the programs have 2",
    );
    refused(
        |sequence| sequence.blocks = &[&[Block(19)], &[Block(40)]],
        "a sequence has the block 40; its group has 40",
    );
    refused(
        |sequence| sequence.blocks = &[&[Block(0), Block(20)], &[Block(0)]],
        "a sequence has the block 20; its group has 20",
    );
    let far = "a sequence up to position 4294967295 has 1 blocks of state; 67108864 are needed";
    refused(|sequence| sequence.position = u32::MAX, far);
}

#[test]
fn mutual_spans_outside_their_sequence_are_refused() {
    let refuse = |start, end, sequence: &str| {
        let spans = [Range32 { start, end }];
        let sentence = format!(
            "the mutual span {start}..{end} is empty, overlaps another, or leaves the positions {sequence} of its sequence"
        );
        let changed = Sequence { spans: &spans, position: 4, ..self::sequence(TWO, 3) };
        refused_step(Input::Ids(&[1, 2, 3]), &[changed], 3, &sentence);
    };
    refuse(3, 5, "4..7");
    refuse(5, 8, "4..7");
    refuse(5, 5, "4..7");
    refuse(6, 5, "4..7");
    const OVERLAPPING: &[Range32] = &[Range32 { start: 0, end: 2 }, Range32 { start: 1, end: 3 }];
    refused(
        |sequence| sequence.spans = OVERLAPPING,
        "the mutual span 1..3 is empty, overlaps another, or leaves the positions 0..3 of its sequence",
    );
    let apart = [Range32 { start: 0, end: 2 }, Range32 { start: 2, end: 3 }];
    let sequence = Sequence { spans: &apart, ..sequence(TWO, 3) };
    assert_eq!(step(loaded().as_mut(), Input::Ids(&[1, 2, 3]), &[sequence], &mut [0.0; 3]), Ok(()));
}

/// The error of a load that must fail.
fn unloadable(backend: Null, blocks: &[u32], build: impl Fn(Key) -> Result<Graph, Error>) -> String {
    load(backend, &NoWeights, MAX_KEY, blocks, build).err().expect("must not load").to_string()
}

#[test]
fn loads_of_faulty_graphs_are_refused() {
    let short = unloadable(null(), &[1], build);
    assert_eq!(short, "block counts for 1 groups were given; the graph has 2");
    let faulty = unloadable(null(), &BLOCKS, |key| {
        build(key).map(|mut graph| {
            graph.values[0].name = "a b".into();
            graph
        })
    });
    let sentence = "the graph is malformed at a b: a name is made of letters, digits, '_' and '.'";
    assert_eq!(faulty, format!("{sentence}; this is a bug in girih"));
    let stuck = unloadable(null(), &BLOCKS, |_| build(MAX_KEY));
    assert!(stuck.starts_with("a graph for [rows 1 ") && stuck.contains("has the key [rows 512 "), "{stuck}");
    assert_eq!(unloadable(null(), &BLOCKS, |_| Err(Error::new("no facts"))), "no facts");
}

#[test]
fn an_op_that_the_backend_does_not_know_is_refused_by_name() {
    let old = Null { objections: &["seen"], unknown: Some("attend"), ..null() };
    let sentence = "the null backend does not run 'seen': it has no code for the op 'attend'";
    assert_eq!(unloadable(old, &BLOCKS, build), sentence);
}

#[test]
fn the_backend_can_refuse_every_program_before_it_is_compiled() {
    let picky = Null { objections: &["seen"], ..null() };
    let sentence = "the null backend does not run 'seen': it has no arithmetic";
    assert_eq!(unloadable(picky, &BLOCKS, build), sentence);
    let asked = RefCell::new(Vec::new());
    let recorded = |key| {
        asked.borrow_mut().push(key);
        build(key)
    };
    load(null(), &NoWeights, MAX_KEY, &BLOCKS, recorded).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(asked.into_inner(), [MAX_KEY, decode(256), decode(1152), MAX_KEY]);
}
