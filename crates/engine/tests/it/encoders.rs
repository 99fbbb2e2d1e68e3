//! Encoders: how sequences are put into steps.

use std::cell::Cell;

use girih_engine::{Encoder, EncoderInput, Engine, EngineLimits, ErrorKind};
use girih_graph::backend::{Block, Input, State, Unwatched};
use girih_graph::{
    Error, GroupId, HostRows, InputKind, InputSpec, Key, MemoryPlan, Output, OutputKind, RangeFault, Runner,
    StateGroup, Step,
};

/// A runner whose result for a sequence is the sums of its tokens, types and positions, and the
/// number of sequences of its step.
struct Sums {
    inputs: Vec<InputSpec>,
    output: HostRows,
    state: NoState,
}

struct NoState;

impl State for NoState {
    fn copy(&mut self, _: GroupId, _: Block, _: Block) -> Result<(), Error> {
        unreachable!("an encoder has no state")
    }

    fn zero(&mut self, _: GroupId, _: Block) -> Result<(), Error> {
        unreachable!("an encoder has no state")
    }

    fn export(&mut self, _: GroupId, _: Block) -> Result<Vec<u8>, Error> {
        unreachable!("an encoder has no state")
    }

    fn import(&mut self, _: GroupId, _: Block, _: &[u8]) -> Result<(), Error> {
        unreachable!("an encoder has no state")
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        unreachable!("an encoder has no state")
    }
}

impl Runner for Sums {
    fn backend(&self) -> &'static str {
        "sums"
    }

    fn max_key(&self) -> Key {
        Key { rows: 10, sequences: 3, context: 8, output_rows: 1, output: OutputKind::Pooled }
    }

    fn groups(&self) -> &[StateGroup] {
        &[]
    }

    fn blocks(&self) -> &[u32] {
        &[]
    }

    fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    fn width(&self) -> usize {
        self.inputs.len() + 1
    }

    fn plan(&self) -> MemoryPlan {
        MemoryPlan::default()
    }

    fn step(&mut self, step: Step<'_>) -> Result<(), Error> {
        assert!(step.sequences.len() <= 3 && step.sequences.last().unwrap().rows.end <= 10);
        let mut rows = Vec::new();
        for sequence in step.sequences {
            assert_eq!((sequence.position, sequence.blocks.len()), (0, 0));
            for input in step.inputs {
                let Input::Ids(ids) = input else { panic!("all inputs are ids") };
                rows.push(ids[sequence.rows.indexes()].iter().sum::<u32>() as f32);
            }
            // Token 666 overflows.
            let overflows = step
                .inputs
                .iter()
                .any(|input| matches!(input, Input::Ids(ids) if ids[sequence.rows.indexes()].contains(&666)));
            rows.push(if overflows { f32::NAN } else { step.sequences.len() as f32 });
        }
        self.output.begin(step.sequences.len())?.copy_from_slice(&rows);
        Ok(())
    }

    fn output(&mut self) -> &mut dyn Output {
        &mut self.output
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.state
    }
}

/// The sums of inputs of these names.
fn sums(names: &[&str]) -> Box<Sums> {
    let input = |name: &&str| InputSpec { name: (*name).to_owned(), kind: InputKind::Ids { bound: 1000 } };
    let inputs: Vec<InputSpec> = names.iter().map(input).collect();
    let output = HostRows::of_width(inputs.len() + 1);
    Box::new(Sums { inputs, output, state: NoState })
}

fn text<'a>(tokens: &'a [u32], token_types: &'a [u32]) -> EncoderInput<'a> {
    EncoderInput { tokens, token_types }
}

#[test]
fn every_sequence_is_whole_and_gets_its_own_inputs() {
    let mut encoder = Encoder::new(sums(&["token_types", "tokens", "positions"])).unwrap();
    assert_eq!(encoder.max_tokens(), 8);
    let texts = [
        text(&[1, 2, 3, 4, 5, 6, 7, 8], &[]),
        text(&[9, 9], &[0, 1]),
        text(&[5], &[]),
        text(&[6], &[1]),
        text(&[7], &[]),
        text(&[1, 1, 1], &[1, 1, 1]),
        text(&[2, 2, 2, 2, 2, 2, 2], &[]),
    ];
    let rows = encoder.encode(&texts, &mut Unwatched).unwrap();
    let expected: [[f32; 4]; 7] = [
        [0.0, 36.0, 28.0, 2.0],
        [1.0, 18.0, 1.0, 2.0],
        [0.0, 5.0, 0.0, 3.0],
        [1.0, 6.0, 0.0, 3.0],
        [0.0, 7.0, 0.0, 3.0],
        [3.0, 3.0, 3.0, 2.0],
        [0.0, 14.0, 21.0, 2.0],
    ];
    assert_eq!(rows, expected);
    assert!(encoder.encode(&[], &mut Unwatched).unwrap().is_empty());
}

#[test]
fn texts_that_do_not_fit_are_refused_before_anything_runs() {
    let mut encoder = Encoder::new(sums(&["tokens"])).unwrap();
    let mut refused = |text: EncoderInput<'_>| encoder.encode(&[text], &mut Unwatched).unwrap_err();
    let long = refused(text(&[1; 9], &[]));
    assert_eq!(long.kind(), ErrorKind::TooLong);
    assert_eq!(long.to_string(), "the text has 9 tokens; the encoder takes 8: shorten the text");
    assert!(refused(text(&[], &[])).to_string().starts_with("the text has no tokens"));
    let types = refused(text(&[1, 2], &[1]));
    assert_eq!(types.to_string(), "1 token types were given for 2 tokens; give one for each");
    let unknown = refused(text(&[1, 1000], &[]));
    assert_eq!(unknown.kind(), ErrorKind::Refused);
    assert_eq!(unknown.to_string(), "id 1000 of 'tokens' is outside its table of 1000 rows");
}

#[test]
fn texts_that_are_no_longer_wanted_end_before_the_next_step() {
    let mut encoder = Encoder::new(sums(&["tokens"])).unwrap();
    // The second step would fail.
    let texts = [text(&[1; 8], &[]), text(&[666; 8], &[])];
    let asked = Cell::new(0);
    let goes_on = || asked.replace(asked.get() + 1) == 0;
    let error = encoder.encode_while(&texts, &mut Unwatched, goes_on).unwrap_err();
    assert_eq!((error.kind(), asked.get()), (ErrorKind::Cancelled, 2));
}

#[test]
fn a_vector_that_is_not_finite_is_an_error() {
    let mut encoder = Encoder::new(sums(&["tokens"])).unwrap();
    let error = encoder.encode(&[text(&[1], &[]), text(&[666], &[])], &mut Unwatched).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotANumber);
}

#[test]
fn programs_of_another_kind_are_refused() {
    let error = Encoder::new(sums(&["tokens", "pixels"])).err().unwrap().to_string();
    assert!(error.starts_with("the loaded programs have the input 'pixels', which the engine"), "{error}");
    let error = Engine::new(sums(&["tokens"]), EngineLimits::new(8, 8)).err().unwrap().to_string();
    assert!(error.starts_with("the loaded programs do not map tokens to logits"), "{error}");
}
