//! Drafts from the model's hidden states: a runner that knows what a hidden state must be checks each row that the
//! engine passes to it. No reply changes.

use std::sync::{Arc, Mutex};

use girih_engine::{
    DraftSource, Engine, EngineLimits, HiddenNames, Hooks, MtpModel, Overflow, Sampling, Tenant,
    TokenRequest, cache,
};
use girih_graph::backend::{Block, Input, State};
use girih_graph::{
    BLOCK_POSITIONS, Error, GroupId, HostRows, InputKind, InputSpec, Key, MemoryPlan, Output, RangeFault,
    Runner, Sequence, Span, StateGroup, Step,
};
use girih_tensor::Shape;
use girih_tensor::random::mix;

use crate::oracle::{
    self, CONTEXT, HIDDEN, HIDDEN_WIDTH, Oracle, Pieces, Reply, SPANS, Shared, VOCABULARY, Watched,
};
use crate::oracle::{finish, hidden_row, prompt, replies, request};

const MAX: u32 = 7;

/// Counters and switches that a predictor shares with its test.
#[derive(Clone, Default)]
struct Seen {
    rows: Shared<usize>,
    /// The number of rows that were the first of their sequence.
    begun: Shared<usize>,
    /// Whether its predictions are wrong.
    is_wrong: Shared<bool>,
    /// The number of steps after which one fails.
    fails_after: Shared<Option<usize>>,
}

/// Predicts the token after the next one exactly. It asserts that each row continues the one before it: a row that was
/// computed from the hidden state of a rejected token, or at another position, would not.
struct Predictor {
    key: Key,
    groups: [StateGroup; 1],
    blocks: [u32; 1],
    inputs: Vec<InputSpec>,
    /// Whether it reads its own hidden states apart, and the model's hidden states twice: as these, and as keys.
    is_assistant: bool,
    slots: Slots,
    output: HostRows,
    seen: Seen,
}

/// The hash of the tokens that a row has seen, for each position of each block.
struct Slots(Vec<[u64; BLOCK_POSITIONS]>);

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(1, |hash, token| mix(hash ^ u64::from(*token)))
}

impl Predictor {
    fn new(key: Key, seen: &Seen, is_assistant: bool) -> Predictor {
        let input = |name: &str, kind| InputSpec { name: name.to_owned(), kind };
        let blocks = cache::blocks(Span::Full, &key);
        let names: &[&str] = match is_assistant {
            true => &[InputSpec::HIDDEN, InputSpec::OWN_HIDDEN, "hidden.keys"],
            false => &[InputSpec::HIDDEN],
        };
        let hidden = names.iter().map(|name| input(name, InputKind::Rows { width: HIDDEN_WIDTH }));
        let inputs =
            std::iter::once(input(InputSpec::TOKENS, InputKind::Ids { bound: VOCABULARY })).chain(hidden);
        let inputs = inputs.collect();
        Predictor {
            key,
            groups: [StateGroup { name: "full".to_owned(), kind: SPANS[0] }],
            blocks: [blocks],
            inputs,
            is_assistant,
            slots: Slots(vec![[0; BLOCK_POSITIONS]; blocks as usize]),
            output: HostRows::of_width(VOCABULARY),
            seen: seen.clone(),
        }
    }

    /// Runs a row of a sequence; returns the tokens that it has seen.
    fn row(&mut self, sequence: &Sequence<'_>, position: usize, token: u32, hidden: &[f32]) -> Vec<u32> {
        let count = hidden[0] as usize;
        let mut tokens: Vec<u32> = hidden[1..][..count].iter().map(|token| *token as u32).collect();
        let slot = |p: usize| (sequence.blocks[0][p / BLOCK_POSITIONS].0 as usize, p % BLOCK_POSITIONS);
        match position.checked_sub(1).map(slot) {
            Some((block, at)) => {
                assert_eq!(self.slots.0[block][at], hash(&tokens), "row {position} continues the one before");
            }
            None => self.seen.begun.set(self.seen.begun.get() + 1),
        }
        tokens.push(token);
        let (block, at) = slot(position);
        self.slots.0[block][at] = hash(&tokens);
        tokens
    }

    /// As [`Predictor::row`], of a row after the first one of a draft, which takes the place of that: the program's own
    /// tokens continue those of the model that the first one had.
    fn again(
        &mut self,
        sequence: &Sequence<'_>,
        position: usize,
        token: u32,
        own: &[f32],
        keys: &[f32],
    ) -> Vec<u32> {
        let tokens = |row: &[f32]| -> Vec<u32> {
            row[1..][..row[0] as usize].iter().map(|token| *token as u32).collect()
        };
        let (mut own, keys) = (tokens(own), tokens(keys));
        assert!(own.len() > keys.len() && own.starts_with(&keys), "a row of other keys is run again");
        let (block, at) = (sequence.blocks[0][position / BLOCK_POSITIONS], position % BLOCK_POSITIONS);
        // A row of a reply that is run after this one would find this.
        self.slots.0[block.0 as usize][at] = 1;
        own.push(token);
        own
    }
}

impl Runner for Predictor {
    fn backend(&self) -> &'static str {
        "predictor"
    }

    fn max_key(&self) -> Key {
        self.key
    }

    fn groups(&self) -> &[StateGroup] {
        &self.groups
    }

    fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    fn width(&self) -> usize {
        VOCABULARY
    }

    fn plan(&self) -> MemoryPlan {
        MemoryPlan::default()
    }

    fn step(&mut self, step: Step<'_>) -> Result<(), Error> {
        let (tokens, hidden, apart) = match *step.inputs {
            [Input::Ids(tokens), Input::Rows(hidden)] if !self.is_assistant => (tokens, hidden, None),
            [Input::Ids(tokens), Input::Rows(hidden), Input::Rows(own), Input::Rows(keys)] => {
                assert_eq!([own.len(), keys.len()], [hidden.len(); 2]);
                (tokens, hidden, Some((own, keys)))
            }
            _ => panic!("the engine passes tokens and hidden states"),
        };
        let [sequence] = step.sequences else { panic!("drafters run one after the other") };
        assert_eq!((sequence.rows.start, sequence.rows.end as usize), (0, tokens.len()));
        assert_eq!(hidden.len(), tokens.len() * HIDDEN_WIDTH);
        assert!(sequence.position as usize + tokens.len() <= self.key.context as usize);
        self.seen.rows.set(self.seen.rows.get() + tokens.len());
        if let Some(left) = self.seen.fails_after.get() {
            self.seen.fails_after.set(left.checked_sub(1));
            if left == 0 {
                return Err(Error::new("the device is gone"));
            }
        }
        let (mut logits, mut rows) = (Vec::new(), Vec::new());
        for (index, (token, hidden)) in tokens.iter().zip(hidden.chunks_exact(HIDDEN_WIDTH)).enumerate() {
            let position = sequence.position as usize + index;
            let apart = apart
                .map(|(own, keys)| [own, keys].map(|rows| &rows[index * HIDDEN_WIDTH..][..HIDDEN_WIDTH]));
            let tokens = match apart {
                Some([own, keys]) if hidden.iter().all(|number| *number == 0.0) => {
                    self.again(sequence, position, *token, own, keys)
                }
                Some([own, keys]) => {
                    assert!(own.iter().all(|number| *number == 0.0) && keys == hidden);
                    self.row(sequence, position, *token, hidden)
                }
                None => self.row(sequence, position, *token, hidden),
            };
            if sequence.output_rows().contains(&index) {
                let mut row = oracle::logits(&tokens);
                if self.seen.is_wrong.get() {
                    row.iter_mut().for_each(|logit| *logit = -*logit);
                }
                logits.extend(row);
            }
            rows.extend(hidden_row(&tokens));
        }
        self.output.begin(logits.len() / VOCABULARY)?.copy_from_slice(&logits);
        if step.watch.wants(HIDDEN) {
            step.watch.value(HIDDEN, &Shape::matrix(tokens.len(), HIDDEN_WIDTH), &rows);
        }
        Ok(())
    }

    fn output(&mut self) -> &mut dyn Output {
        &mut self.output
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.slots
    }
}

impl State for Slots {
    fn copy(&mut self, _: GroupId, from: Block, to: Block) -> Result<(), Error> {
        self.0[to.0 as usize] = self.0[from.0 as usize];
        Ok(())
    }

    fn zero(&mut self, _: GroupId, block: Block) -> Result<(), Error> {
        self.0[block.0 as usize] = [0; BLOCK_POSITIONS];
        Ok(())
    }

    fn export(&mut self, _: GroupId, _: Block) -> Result<Vec<u8>, Error> {
        Err(Error::new("the predictor exports no state"))
    }

    fn import(&mut self, _: GroupId, _: Block, _: &[u8]) -> Result<(), Error> {
        Err(Error::new("the predictor imports no state"))
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        Vec::new()
    }
}

/// The sentences that a predictor's program told.
type Notes = Arc<Mutex<Vec<String>>>;

/// A predictor for this number of sequences and positions, in chunks of 40 rows.
fn source(sequences: u32, context: u32) -> (DraftSource, Seen, Notes) {
    source_of(sequences, context, false)
}

/// As [`source`], or an assistant.
fn source_of(sequences: u32, context: u32, is_assistant: bool) -> (DraftSource, Seen, Notes) {
    let (seen, notes) = (Seen::default(), Notes::default());
    let key = Key { rows: 40, sequences, context, output_rows: sequences, ..oracle::key() };
    let limits = EngineLimits { sequences, ..EngineLimits::new(context, 40) };
    let model = vec![HIDDEN.to_owned(); if is_assistant { 2 } else { 1 }];
    let names = HiddenNames { model, own: HIDDEN.to_owned() };
    let told = Arc::clone(&notes);
    let note = move |sentence| told.lock().unwrap().push(sentence);
    let model =
        MtpModel::new(Box::new(Predictor::new(key, &seen, is_assistant)), limits, 0.1, names, note).unwrap();
    (DraftSource::mtp(model), seen, notes)
}

/// An engine for this number of sequences in steps of `chunk` rows.
fn engine(sequences: u32, chunk: u32) -> (Engine, Watched) {
    let watched = Watched::default();
    let key = Key { sequences, output_rows: sequences * (1 + MAX), ..oracle::key() };
    let blocks = SPANS.map(|span| cache::blocks(span, &key));
    let limits = EngineLimits { sequences, ..EngineLimits::new(CONTEXT, chunk) };
    (Engine::new(Box::new(Oracle::new(key, &blocks, &watched)), limits).unwrap(), watched)
}

/// Requests of all kinds: greedy, sampled, and some whose context overflows.
fn requests(count: u64) -> Vec<TokenRequest> {
    let ask = |number: u64| {
        let tokens = prompt(70 + number % 3, 40 + 31 * number as usize);
        let sampling = match number % 3 {
            0 => Sampling::greedy(),
            1 => Sampling { seed: number, ..Sampling::default() },
            _ => Sampling { frequency_penalty: 0.5, ..Sampling::greedy() },
        };
        let overflow = if number.is_multiple_of(2) { Overflow::Truncate } else { Overflow::Error };
        TokenRequest { sampling, overflow, ..request(&tokens, 70) }
    };
    (0..count).map(ask).collect()
}

fn said(replies: &[Reply]) -> Vec<(&[u32], &str, String)> {
    replies.iter().map(|one| (one.ids.as_slice(), one.text.as_str(), format!("{:?}", one.stop))).collect()
}

fn counts(replies: &[Reply]) -> (u32, u32) {
    let stats = || replies.iter().map(|reply| reply.stats.unwrap());
    (stats().map(|stats| stats.drafted).sum(), stats().map(|stats| stats.accepted).sum())
}

#[test]
fn drafts_from_hidden_states_change_no_reply_whatever_the_chunk_and_the_batch() {
    for (count, chunk) in [(1, 100), (1, 9), (4, 100), (6, 23)] {
        let requests = requests(count);
        let alone = |ask: &TokenRequest| replies(&mut engine(1, 100).0, std::slice::from_ref(ask));
        let expected: Vec<Reply> = requests.iter().flat_map(alone).collect();
        // The second program has state for two requests only, the third one for few positions.
        let sizes = [(count as u32, CONTEXT, false), (2, CONTEXT, true), (count as u32, 96, false)];
        for (sequences, context, is_assistant) in sizes {
            let (mut drafting, _) = engine(count as u32, chunk);
            let (source, seen, notes) = source_of(sequences, context, is_assistant);
            drafting.set_drafts(source, MAX);
            // Twice: prompts that the prefix cache has give no hidden states.
            for _ in 0..2 {
                let drafted = replies(&mut drafting, &requests);
                assert_eq!(said(&drafted), said(&expected), "{count} requests, {sequences} sequences");
            }
            assert!(seen.rows.get() > 0);
            assert_eq!(*notes.lock().unwrap(), [""; 0], "{count} requests, {sequences} sequences");
        }
    }
}

#[test]
fn a_predictor_that_knows_the_model_is_always_right() {
    let cases = [(0.0, 100, false), (1.0, 100, false), (1.0, 17, false), (0.0, 100, true), (1.0, 17, true)];
    for (temperature, chunk, is_assistant) in cases {
        let sampling = Sampling { temperature, seed: 5, presence_penalty: 0.3, ..Sampling::default() };
        let ask = TokenRequest { sampling, replied: 7, ..request(&prompt(2, 130), 120) };
        let (mut drafting, _) = engine(1, chunk);
        let (source, seen, _) = source_of(1, CONTEXT, is_assistant);
        drafting.set_drafts(source, MAX);
        let replies = replies(&mut drafting, &[ask]);
        let (drafted, accepted) = counts(&replies);
        assert!(accepted == drafted && accepted > 90, "{accepted} of {drafted}");
        assert_eq!(seen.begun.get(), 1);
    }
}

#[test]
fn a_prefix_is_shared_within_a_tenant_only() {
    let (mut drafting, watched) = engine(1, 100);
    let (source, seen, _) = source(1, CONTEXT);
    drafting.set_drafts(source, MAX);
    let mut rows = |name: &str| {
        let (before, model) = (seen.rows.get(), watched.rows.get());
        let ask = TokenRequest { tenant: Tenant::new(name), ..request(&prompt(5, 200), 30) };
        let (drafted, accepted) = counts(&replies(&mut drafting, &[ask]));
        assert!(drafted == accepted && drafted > 20);
        (seen.rows.get() - before, watched.rows.get() - model)
    };
    let (first, again, other) = (rows("a"), rows("a"), rows("b"));
    assert!(first.0 > 200 && again.0 < 60 && other.0 > 200, "{first:?}, {again:?} and {other:?} rows");
    assert!(again.1 < 60 && other.1 > 200, "{again:?} and {other:?} rows");
}

/// The model has cached a prompt that the program has not: the sequence begins where hidden states are.
#[test]
fn a_prompt_whose_hidden_states_are_missing_is_drafted_for_from_where_they_begin() {
    let (mut drafting, _) = engine(2, 100);
    let long = request(&prompt(6, 200), 40);
    let without = replies(&mut drafting, std::slice::from_ref(&long));
    let (source, seen, _) = source(2, CONTEXT);
    drafting.set_drafts(source, MAX);
    let with = replies(&mut drafting, std::slice::from_ref(&long));
    assert_eq!(said(&with), said(&without));
    let (drafted, accepted) = counts(&with);
    assert!(drafted == accepted && drafted > 25, "{accepted} of {drafted}");
    assert!(seen.rows.get() < 80, "{} rows", seen.rows.get());
    // A sequence that began in the middle is shared with nobody.
    let begun = seen.begun.get();
    replies(&mut drafting, &[long]);
    assert_eq!(seen.begun.get(), begun + 1);
}

/// The sequence begins behind a cached prompt, and the request is then cut to fewer tokens than that.
#[test]
fn a_request_that_is_cut_before_its_first_row_goes_on() {
    let (mut drafting, _) = engine(1, 100);
    let ask = TokenRequest { overflow: Overflow::Truncate, ..request(&prompt(8, CONTEXT as usize - 20), 60) };
    let without = replies(&mut drafting, std::slice::from_ref(&ask));
    let (source, _, notes) = source(1, CONTEXT);
    drafting.set_drafts(source, MAX);
    let with = replies(&mut drafting, std::slice::from_ref(&ask));
    assert_eq!(said(&with), said(&without));
    assert!(counts(&with).0 > 0);
    assert_eq!(*notes.lock().unwrap(), [""; 0]);
}

#[test]
fn drafts_that_are_wrong_end_with_one_note() {
    let (mut drafting, _) = engine(1, 100);
    let (source, seen, notes) = source(1, CONTEXT);
    drafting.set_drafts(source, MAX);
    seen.is_wrong.set(true);
    let ask = request(&prompt(7, 60), 250);
    let alone = replies(&mut engine(1, 100).0, std::slice::from_ref(&ask));
    for _ in 0..2 {
        let wrong = replies(&mut drafting, std::slice::from_ref(&ask));
        assert_eq!(said(&wrong), said(&alone));
        let (drafted, accepted) = counts(&wrong);
        assert!(drafted < 16 && accepted < 4, "{accepted} of {drafted}");
    }
    let notes = notes.lock().unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("drafts did not pay for a request"), "{notes:?}");
}

#[test]
fn a_program_that_fails_ends_drafts_but_no_reply() {
    let requests = requests(3);
    let alone = |ask: &TokenRequest| replies(&mut engine(1, 100).0, std::slice::from_ref(ask));
    let expected: Vec<Reply> = requests.iter().flat_map(alone).collect();
    for steps in [0, 1, 7, 20] {
        let (mut drafting, _) = engine(3, 100);
        let (source, seen, notes) = source(3, CONTEXT);
        seen.fails_after.set(Some(steps));
        drafting.set_drafts(source, MAX);
        assert_eq!(said(&replies(&mut drafting, &requests)), said(&expected), "{steps} steps");
        let notes = notes.lock().unwrap();
        assert_eq!(notes.len(), 1, "{steps} steps: {notes:?}");
        assert!(notes[0].starts_with("multi-token prediction failed, so replies continue"), "{notes:?}");
    }
}

#[test]
fn requests_that_are_cancelled_or_suspended_disturb_no_other() {
    let all = requests(6);
    let alone = |ask: &TokenRequest| replies(&mut engine(1, 100).0, std::slice::from_ref(ask));
    let expected: Vec<Reply> = all.iter().flat_map(alone).collect();
    let (mut drafting, _) = engine(3, 31);
    let (source, _, notes) = source(3, CONTEXT);
    drafting.set_drafts(source, MAX);
    let ids: Vec<_> = all.iter().map(|ask| drafting.submit(ask.clone(), Pieces::hooks()).unwrap()).collect();
    let mut got: Vec<Reply> = all.iter().map(|_| Reply::default()).collect();
    let mut steps = 0;
    while !drafting.is_idle() || steps < 45 {
        for event in drafting.step().to_vec() {
            let index = ids.iter().position(|id| *id == event.request).unwrap();
            got[index].take(event);
        }
        steps += 1;
        match steps {
            9 | 30 => drop(drafting.suspend(ids[1])),
            14 | 44 => drop(drafting.resume(ids[1])),
            12 => drop(drafting.cancel(ids[0])),
            _ => {}
        }
    }
    assert_eq!(said(&got)[1..], said(&expected)[1..]);
    assert_eq!(*notes.lock().unwrap(), [""; 0]);
}

#[test]
fn a_cancelled_request_gives_its_state_back() {
    let (mut drafting, _) = engine(2, 100);
    let (source, seen, notes) = source(2, CONTEXT);
    drafting.set_drafts(source, MAX);
    let mut rows = 0;
    for round in 0..12 {
        let id = drafting.submit(request(&prompt(round, 200), 90), Hooks::default()).unwrap();
        (0..10).for_each(|_| drop(drafting.step().to_vec()));
        drafting.cancel(id);
        finish(&mut drafting, id);
        assert!(seen.rows.get() > rows, "round {round} drafted");
        rows = seen.rows.get();
    }
    assert!(notes.lock().unwrap().is_empty());
}

#[test]
fn a_program_without_hidden_states_is_refused() {
    let names = HiddenNames { model: vec![HIDDEN.to_owned()], own: HIDDEN.to_owned() };
    let runner = Box::new(Oracle::new(oracle::key(), &oracle::BLOCKS, &Watched::default()));
    let refused = MtpModel::new(runner, EngineLimits::new(CONTEXT, 40), 0.1, names, |_| {});
    assert!(refused.err().unwrap().to_string().starts_with("the loaded programs read no hidden states"));
}
