//! The interpreter on whole graphs: results do not depend on how a sequence is
//! divided into steps.

use girih_graph::backend::{Block, Input};
use girih_graph::interpret::Interpreter;
use girih_graph::{Backend, GroupId, Outputs, Runner, Watch, load};
use girih_tensor::{Random, Shape};

use crate::forms::{EMBEDDINGS, TOKENS, parse};
use crate::random;
use crate::session::{TestSequence, WeightTable, open_random, run_once, step, watched};

const FIRST: &[Block] = &[Block(0), Block(1)];
const SCATTERED: &[Block] = &[Block(3), Block(1)];

fn tokens(count: usize) -> Vec<u32> {
    let mut random = Random(3);
    (0..count).map(|_| random.below(16) as u32).collect()
}

/// The last two rows of a sequence that runs in chunks of `chunk` rows.
fn chunked(tokens: &[u32], chunk: usize, blocks: &[Block]) -> Vec<f32> {
    let mut runner = open_random(TOKENS);
    let mut last = Vec::new();
    let mut position = 0;
    for rows in tokens.chunks(chunk) {
        let count = rows.len() as u32;
        let outputs =
            if position as usize + rows.len() == tokens.len() { Outputs::LastN(2) } else { Outputs::None };
        let sequence = TestSequence { blocks, position, rows: count, outputs, spans: &[] };
        last = step(runner.as_mut(), Input::Ids(rows), &[sequence]);
        position += count;
    }
    last
}

#[test]
fn a_prefill_in_chunks_equals_one_in_one_step() {
    let tokens = tokens(8);
    let whole = chunked(&tokens, 8, FIRST);
    assert_eq!(whole.len(), 32);
    assert!(whole.iter().all(|x| x.is_finite() && x.abs() <= 30.0));
    for chunk in [2, 3, 6] {
        assert_eq!(chunked(&tokens, chunk, FIRST), whole, "in chunks of {chunk}");
    }
}

#[test]
fn a_sequence_can_use_any_blocks() {
    let tokens = tokens(100);
    assert_eq!(chunked(&tokens, 8, FIRST), chunked(&tokens, 7, SCATTERED));
}

#[test]
fn sequences_in_one_step_equal_sequences_alone() {
    let tokens = tokens(8);
    let sequence =
        |blocks, rows| TestSequence { blocks, position: 0, rows, outputs: Outputs::LastN(2), spans: &[] };
    let (left, right) = (sequence(&[Block(2)], 3), sequence(&[Block(0)], 5));
    let alone = |range: std::ops::Range<usize>, sequence| {
        step(open_random(TOKENS).as_mut(), Input::Ids(&tokens[range]), &[sequence])
    };
    let both = step(open_random(TOKENS).as_mut(), Input::Ids(&tokens), &[left, right]);
    assert_eq!(both, [alone(0..3, left), alone(3..8, right)].concat());
}

/// Records the values of some names.
struct ValueLog(&'static [&'static str], Vec<(String, Shape, Vec<f32>)>);

impl Watch for ValueLog {
    fn wants(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        assert!(self.wants(name), "a watch receives only the values it wants");
        self.1.push((name.to_owned(), *shape, data.to_vec()));
    }
}

#[test]
fn embeddings_in_place_of_tokens_have_the_same_results() {
    let tokens = tokens(6);
    let sequence = TestSequence { outputs: Outputs::LastN(3), ..TestSequence::whole(6) };
    let mut log = ValueLog(&["embed", "head.norm", "layers.0.keys"], Vec::new());
    watched(open_random(TOKENS).as_mut(), &[Input::Ids(&tokens)], &[sequence], &mut log);
    // A watch receives values in order, at the step's extents, but no state.
    let shown: Vec<_> = log.1.iter().map(|(name, shape, _)| (name.as_str(), shape.to_string())).collect();
    assert_eq!(shown, [("embed", "[6, 32]".to_owned()), ("head.norm", "[3, 32]".to_owned())]);
    let rows = Input::Rows(&log.1[0].2);
    assert_eq!(step(open_random(EMBEDDINGS).as_mut(), rows, &[sequence]), log.1[1].2);
}

/// A runner with the state of `tokens` in block 0.
fn prefilled(tokens: &[u32]) -> Box<dyn Runner> {
    let mut runner = open_random(TOKENS);
    let sequence = TestSequence { outputs: Outputs::None, ..TestSequence::whole(tokens.len() as u32) };
    step(runner.as_mut(), Input::Ids(tokens), &[sequence]);
    runner
}

/// The logits of one more token of the sequence in `block`.
fn next(runner: &mut dyn Runner, position: usize, block: Block) -> Vec<f32> {
    let blocks = [block];
    let sequence = TestSequence { blocks: &blocks, position: position as u32, ..TestSequence::whole(1) };
    step(runner, Input::Ids(&[5]), &[sequence])
}

#[test]
fn copied_and_imported_blocks_equal_the_original() {
    let tokens = tokens(7);
    let expected = next(prefilled(&tokens).as_mut(), 7, Block(0));
    let mut runner = prefilled(&tokens);
    let groups = [GroupId(0), GroupId(1)];
    let saved = groups.map(|group| runner.state().export(group, Block(0)).unwrap());
    for group in groups {
        runner.state().copy(group, Block(0), Block(2)).unwrap();
        runner.state().zero(group, Block(0)).unwrap();
    }
    assert_eq!(next(runner.as_mut(), 7, Block(2)), expected);
    assert_ne!(next(runner.as_mut(), 7, Block(0)), expected);
    for (group, bytes) in groups.into_iter().zip(&saved) {
        runner.state().import(group, Block(3), bytes).expect("the bytes are of this model");
    }
    assert_eq!(next(runner.as_mut(), 7, Block(3)), expected);
    let error = runner.state().import(groups[0], Block(3), &saved[0][1..]).expect_err("one byte is missing");
    assert_eq!(error.to_string(), "a block of state is 4096 bytes; 4095 were given");
}

#[test]
fn state_lasts_from_step_to_step_within_one_runner() {
    let tokens = tokens(4);
    assert_ne!(
        next(prefilled(&tokens).as_mut(), 4, Block(0)),
        next(open_random(TOKENS).as_mut(), 4, Block(0))
    );
}

#[test]
fn state_larger_than_memory_is_an_error() {
    let mut graph = parse(TOKENS);
    let keys = graph.find("layers.0.keys").expect("the form has it").0 as usize;
    graph.values[keys].shape = Shape::new(&[1, 1 << 40]).expect("an address for each");
    let error = Interpreter.state(&graph, &[u32::MAX, 1]).expect_err("2^78 numbers");
    assert_eq!(error.to_string(), "'layers.0.keys' exceeds the address space");
}

#[test]
fn a_failing_source_fails_the_load() {
    let graph = parse(TOKENS);
    let empty = WeightTable::of(&parse(EMBEDDINGS), |_, count| vec![0.0; count]);
    let loaded = load(Interpreter, &empty, graph.key, &[1, 1], |_| Ok(graph.clone()));
    assert_eq!(loaded.err().expect("no table").to_string(), "there is no weight 'embed.table'");
}

#[test]
fn random_graphs_run() {
    (0..100).for_each(|seed| run_once(&random::graph(seed)));
}
