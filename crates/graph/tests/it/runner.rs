//! Loading and steps, on a backend that computes nothing.

use std::cell::RefCell;

use girih_graph::backend::{Block, GivenRows, Input, Range32, Refusal, State, Unwatched, step_count};
use girih_graph::{
    AppliedOp, Backend, DevicePool, Error, ErrorKind, Extent, Graph, GroupId, HostRows, InputKind, Key,
    MemoryPlan, Numerics, OutputKind, Outputs, PoolBytes, RangeFault, Runner, Sequence, Step, Value,
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
    /// Whether it knows attention; it knows every other op.
    attends: bool,
    /// Its memory, if it has its own.
    device: Option<DevicePool>,
}

struct Steps(u32);

impl State for Steps {
    fn copy(&mut self, _: GroupId, _: Block, _: Block) -> Result<(), Error> {
        Ok(())
    }
    fn zero(&mut self, _: GroupId, _: Block) -> Result<(), Error> {
        Ok(())
    }
    fn export(&mut self, _: GroupId, _: Block) -> Result<Vec<u8>, Error> {
        Ok(self.0.to_le_bytes().to_vec())
    }
    fn import(&mut self, _: GroupId, _: Block, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        Vec::new()
    }
}

impl Backend for Null {
    type Weights = ();
    type State = Steps;
    type Program = Key;
    type Output = HostRows;

    fn name(&self) -> &'static str {
        "null"
    }
    fn numerics(&self, _: &Graph) -> Numerics {
        Numerics::single()
    }
    fn ladder(&self, _: Key) -> Vec<Key> {
        self.ladder.clone()
    }
    fn knows(&self, call: &AppliedOp<&Value>) -> bool {
        self.attends || !matches!(call, AppliedOp::Attend { .. })
    }
    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        let known = self.objections.iter().filter(|name| graph.find(name).is_some());
        known.map(|name| Refusal { node: (*name).into(), reason: "it has no arithmetic".into() }).collect()
    }
    fn plan(&self, _: &Graph, blocks: &[u32]) -> MemoryPlan {
        let state = u64::from(blocks.iter().sum::<u32>());
        let host = PoolBytes { weights: 1, state, scratch: u64::MAX, ..PoolBytes::default() };
        MemoryPlan { host, device: self.device }
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
    fn output(&self, graph: &Graph) -> Result<HostRows, Error> {
        HostRows::new(graph)
    }
    fn run(
        &self,
        program: &Key,
        (): &(),
        state: &mut Steps,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<(), Error> {
        state.0 += 1;
        let row = [program.rows as f32, program.context as f32, state.0 as f32];
        let rows = output.begin(step_count(step.sequences, Extent::OutputRows))?;
        rows.chunks_exact_mut(3).for_each(|output| output.copy_from_slice(&row));
        Ok(())
    }
}

struct NoWeights;

impl WeightSource for NoWeights {
    fn read(&self, name: &str, _: u64, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::new(format!("there is no weight '{name}'")))
    }
}

/// A graph of a key: rows of 3, two groups; with logits a vocabulary of 16, else rows in.
fn build(key: Key) -> Result<Graph, Error> {
    let Key { rows, context, output_rows, .. } = key;
    let input = match key.output {
        OutputKind::Logits => format!(
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
    Null { ladder: vec![decode(256), decode(1152), MAX_KEY], objections: &[], attends: true, device: None }
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
        let tokens = vec![1; rows as usize];
        step(runner.as_mut(), &[Input::Ids(&tokens)], &[sequence])
    };
    assert_eq!(ran(19, 1), Ok(vec![1.0, 256.0, 1.0]));
    assert_eq!(ran(255, 1), Ok(vec![1.0, 256.0, 2.0]));
    assert_eq!(ran(256, 1), Ok(vec![1.0, 1152.0, 3.0]));
    assert_eq!(ran(1151, 1), Ok(vec![1.0, 1152.0, 4.0]));
    assert_eq!(ran(11, 9), Ok(vec![512.0, 1152.0, 5.0]));
    let sentence = "a step of [rows 1 sequences 1 context 1153 output_rows 1 -> logits] is larger than the \
                    largest program, [rows 512 sequences 2 context 1152 output_rows 4 -> logits]";
    assert_eq!(ran(1152, 1), Err(sentence.to_owned()));
    assert_eq!(ran(0, 513).map_err(|error| error.contains("is larger than")), Err(true));
}

#[test]
fn a_key_holds_steps_that_are_no_larger_in_any_extent() {
    let step = Key { rows: 3, sequences: 2, context: 90, output_rows: 2, ..MAX_KEY };
    assert!(step.holds(&step) && MAX_KEY.holds(&step) && !step.holds(&MAX_KEY));
    for larger in [
        Key { rows: 4, ..step },
        Key { sequences: 3, ..step },
        Key { context: 91, ..step },
        Key { output_rows: 3, ..step },
    ] {
        assert!(!step.holds(&larger) && larger.holds(&step), "{larger}");
    }
    let hidden = Key { output: OutputKind::Hidden, ..step };
    assert!(!MAX_KEY.holds(&hidden), "programs of another output hold no step");
}

#[test]
fn a_runner_reports_its_sizes() {
    let mut runner = loaded();
    assert_eq!((runner.backend(), runner.max_key(), runner.width()), ("null", MAX_KEY, 3));
    assert_eq!(runner.blocks(), BLOCKS);
    let [input] = runner.inputs() else { panic!("{:?}", runner.inputs()) };
    assert_eq!((input.name.as_str(), input.kind), ("tokens", InputKind::Ids { bound: 16 }));
    assert_eq!(runner.plan().host.state, 60);
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

/// The result rows of a step, or the error.
fn step(
    runner: &mut dyn Runner,
    inputs: &[Input<'_>],
    sequences: &[Sequence<'_>],
) -> Result<Vec<f32>, String> {
    let step = Step { inputs, sequences, watch: &mut Unwatched };
    runner.step(step).map_err(|error| error.to_string())?;
    let rows = step_count(sequences, Extent::OutputRows);
    Ok(runner.output().rows(0..rows).map_err(|error| error.to_string())?.to_vec())
}

const TWO: &[&[Block]] = &[&[Block(0)], &[Block(0)]];

/// Asserts that a step of three tokens of one sequence is refused after `change`.
fn refused(change: impl FnOnce(&mut Sequence<'_>), sentence: &str) {
    let mut changed = sequence(TWO, 3);
    change(&mut changed);
    refused_step(&[Input::Ids(&[1, 2, 3])], &[changed], sentence);
}

fn refused_step(inputs: &[Input<'_>], sequences: &[Sequence<'_>], sentence: &str) {
    let mut runner = loaded();
    assert_eq!(step(runner.as_mut(), inputs, sequences), Err(sentence.to_owned()));
    assert_eq!(runner.state().export(GroupId(0), Block(0)).unwrap(), [0; 4], "the backend did not run it");
}

#[test]
fn inputs_that_do_not_fit_the_programs_are_refused() {
    let refused = |inputs: &[Input<'_>], sentence: &str| refused_step(inputs, &[sequence(TWO, 3)], sentence);
    let ids = Input::Ids(&[1, 2, 3]);
    // The bound is that of the smaller table.
    refused(&[Input::Ids(&[1, 16, 3])], "id 16 of 'tokens' is outside its table of 16 rows");
    refused(&[Input::Ids(&[1, 2])], "the step has 2 ids for 'tokens'; its sequences need 3");
    refused(&[], "a step has 0 inputs; the programs need 1");
    refused(&[ids, ids], "a step has 2 inputs; the programs need 1");
    let another = |found| format!("input 'tokens' takes ids below 16, but the step brings {found}");
    refused(&[Input::Rows(&[0.0; 9])], &another("rows of values"));
    refused(&[Input::Given(&[])], &another("values of some rows"));
    refused_step(&[Input::Ids(&[])], &[], "a step has no rows; at least one is needed");
}

#[test]
fn rows_of_an_input_must_be_whole() {
    let max_key = Key { output: OutputKind::Hidden, ..MAX_KEY };
    let backend = Null { ladder: vec![max_key], ..null() };
    let mut runner =
        load(backend, &NoWeights, max_key, &BLOCKS, build).unwrap_or_else(|error| panic!("{error}"));
    let mut run = |input: Input<'_>| step(runner.as_mut(), &[input], &[sequence(TWO, 3)]);
    assert_eq!(run(Input::Rows(&[0.0; 9])), Ok(vec![512.0, 1152.0, 1.0]));
    let refused = |sentence: &str| Err(sentence.to_owned());
    assert_eq!(run(Input::Rows(&[0.0; 8])), refused("the step has 8 values for 'x'; its sequences need 9"));
    assert_eq!(run(Input::Rows(&[0.0; 6])), refused("the step has 6 values for 'x'; its sequences need 9"));
    let another = "input 'x' takes rows of 3 values, but the step brings ids";
    assert_eq!(run(Input::Ids(&[1, 2, 3])), refused(another));
}

/// An encoder that splices given rows and pools; its steps have one sequence of three rows.
fn encoder(position: u32, given: &[GivenRows<'_>]) -> Result<Vec<f32>, String> {
    let graph = parse(
        "graph rows 4 sequences 2 context 8 output_rows 1 -> pooled
        input x: [rows 4, 3] f32
        input image: [rows 4, 3] f32
        y: [rows 4, 3] = splice x, image
        output z: [sequences 2, 3] = pool(how=last) y",
    );
    let backend = Null { ladder: vec![graph.key], ..null() };
    let mut runner = load(backend, &NoWeights, graph.key, &[], |_| Ok(graph.clone()))
        .unwrap_or_else(|error| panic!("{error}"));
    let kinds: Vec<_> = runner.inputs().iter().map(|input| input.kind).collect();
    assert_eq!(kinds, [InputKind::Rows { width: 3 }, InputKind::Given { width: 3 }]);
    let sequence = Sequence { position, ..sequence(&[], 3) };
    step(runner.as_mut(), &[Input::Rows(&[0.0; 9]), Input::Given(given)], &[sequence])
}

#[test]
fn given_rows_are_whole_in_order_and_within_the_step() {
    let given = |first_row, values| GivenRows { first_row, values };
    let values = [0.0; 12];
    for accepted in [&[][..], &[given(0, &values[..9])], &[given(0, &values[..3]), given(1, &values[..6])]] {
        assert_eq!(encoder(0, accepted), Ok(vec![4.0, 8.0, 1.0]));
    }
    let refused = |rows: &[GivenRows<'_>], sentence: &str| {
        assert_eq!(encoder(0, rows), Err(sentence.to_owned()));
    };
    refused(&[given(0, &values[..4])], "4 values given for 'image' are not rows of 3");
    refused(&[given(0, &[])], "0 values given for 'image' are not rows of 3");
    let outside = |range: &str| {
        format!("the rows {range} given for 'image' overlap others or leave the 3 rows of the step")
    };
    refused(&[given(0, &values)], &outside("0..4"));
    refused(&[given(3, &values[..3])], &outside("3..4"));
    refused(&[given(u32::MAX, &values[..3])], &outside("4294967295..4294967296"));
    refused(&[given(0, &values[..6]), given(1, &values[..3])], &outside("1..2"));
    refused(&[given(2, &values[..3]), given(0, &values[..3])], &outside("0..1"));
}

#[test]
fn sequences_of_programs_without_state_begin_at_position_0() {
    let sentence = "a sequence begins at position 1, but its programs keep no state: \
                    run the whole sequence in one step";
    assert_eq!(encoder(1, &[]), Err(sentence.to_owned()));
}

#[test]
fn sequences_with_gaps_or_overlaps_are_refused() {
    let sentence = "the sequences of a step must cover its rows in order, with at least one row each";
    refused(|sequence| sequence.rows = Range32 { start: 1, end: 3 }, sentence);
    refused(|sequence| sequence.rows = Range32 { start: 0, end: 0 }, sentence);
    refused(|sequence| sequence.rows = Range32 { start: 3, end: 0 }, sentence);
    let second = |start, end| Sequence { rows: Range32 { start, end }, ..sequence(TWO, 3) };
    for sequences in [[sequence(TWO, 2), second(1, 3)], [second(2, 3), sequence(TWO, 2)]] {
        refused_step(&[Input::Ids(&[1, 2, 3])], &sequences, sentence);
    }
    refused_step(
        &[Input::Ids(&[1, 2, 3])],
        &[sequence(TWO, 2), second(2, 4)],
        "the step has 3 ids for 'tokens'; its sequences need 4",
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
        refused_step(&[Input::Ids(&[1, 2, 3])], &[changed], &sentence);
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
    let ran = step(loaded().as_mut(), &[Input::Ids(&[1, 2, 3])], &[sequence]);
    assert_eq!(ran, Ok(vec![512.0, 1152.0, 1.0]));
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
fn a_device_with_too_little_memory_is_refused_with_the_arithmetic() {
    let bytes = PoolBytes { weights: 700, state: 250, scratch: 0, output: 50, staging: 1, in_file: 7 };
    let with = |free| Null { device: Some(DevicePool { bytes, free }), ..null() };
    let loaded = load(with(1001), &NoWeights, MAX_KEY, &BLOCKS, build);
    assert!(loaded.is_ok_and(|runner| runner.plan().device.is_some_and(|device| device.bytes == bytes)));
    let error = load(with(1000), &NoWeights, MAX_KEY, &BLOCKS, build).err().expect("a byte is missing");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let sentence = "the model needs 1001 bytes (weights 700 + KV cache 250 + output 50 + staging 1), \
                    but the device has 1000 free: choose a smaller context, a smaller type of KV cache \
                    or a smaller model";
    assert_eq!(error.to_string(), sentence);
}

#[test]
fn an_op_that_the_backend_does_not_know_is_refused_by_name() {
    let old = Null { objections: &["seen"], attends: false, ..null() };
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
