//! Failures: a request fails alone, and only NaN of the model costs cached state.

use std::collections::BTreeMap;

use girih_engine::text::Detokenize;
use girih_engine::{
    Constraint, DraftQuery, Drafter, Engine, Error, ErrorKind, Hooks, Result, Sampling, Stop, TokenRequest,
};

use crate::oracle::{self, Pieces, Reply, Trouble, VOCABULARY, batched, engine, finish, narrow, prompt};
use crate::oracle::{reply, request};

/// Rules out every token from a place on.
struct Nothing(usize);

impl Constraint for Nothing {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        if self.0 == 0 {
            allowed.fill(false);
        }
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        self.0 -= 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// Steps until the engine is idle; returns the replies in the order of submission.
fn run(engine: &mut Engine, count: usize) -> Vec<Reply> {
    let mut replies: BTreeMap<u64, Reply> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step() {
            replies.entry(event.request.0).or_default().take(event.clone());
        }
    }
    assert_eq!(replies.len(), count, "each request has an event");
    replies.into_values().collect()
}

#[test]
fn a_request_without_allowed_tokens_ends_alone_and_its_prefix_stays_cached() {
    let tokens = prompt(1, 100);
    let every_token = (0..VOCABULARY as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let biased = Sampling { bias: every_token, ..Sampling::greedy() };
    for (place, sampling) in [(0, Sampling::greedy()), (5, Sampling::default()), (9, biased)] {
        let (mut engine, _) = batched(2, 128);
        let hooks = Hooks { constraint: Some(Box::new(Nothing(place))), ..Pieces::hooks() };
        engine.submit(TokenRequest { sampling, ..request(&tokens, 30) }, hooks).unwrap();
        engine.submit(request(&prompt(2, 50), 30), Pieces::hooks()).unwrap();
        let replies = run(&mut engine, 2);
        let failure = replies[0].failure.as_ref().unwrap();
        assert_eq!(failure.kind(), ErrorKind::Refused);
        assert!(failure.to_string().starts_with("every token is ruled out"), "{failure}");
        assert_eq!(replies[1].ids, oracle::greedy(&prompt(2, 50), 30));
        let next = reply(&mut engine, request(&tokens, 10));
        assert_eq!(next.ids, oracle::greedy(&tokens, 10));
        assert_eq!(next.stats.unwrap().cached, 99, "the state of the failed request stays valid");
    }
}

#[test]
fn nan_costs_only_the_state_that_the_request_computed() {
    let (mut engine, watched) = narrow(4, 160, &[30, 30]);
    let (system, other) = (prompt(3, 130), prompt(4, 90));
    reply(&mut engine, request(&other, 10));
    let ask = |number: u64, length: usize| [&system[..], &prompt(number, length)].concat();
    reply(&mut engine, request(&ask(10, 20), 10));
    // Three share the system prompt with each other and with the ended one; one does not.
    let prompts = [ask(11, 20), ask(12, 31), ask(13, 12), prompt(5, 60)];
    for prompt in &prompts {
        engine.submit(request(prompt, 40), Pieces::hooks()).unwrap();
    }
    watched.trouble.set(Some(Trouble::NaN(165)));
    let replies = run(&mut engine, 4);
    let failed: Vec<usize> = (0..4).filter(|index| replies[*index].failure.is_some()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(replies[failed[0]].failure.as_ref().unwrap().kind(), ErrorKind::NotANumber);
    for index in (0..4).filter(|index| *index != failed[0]) {
        assert_eq!(replies[index].ids, oracle::greedy(&prompts[index], 40), "request {index}");
        let stats = replies[index].stats.unwrap();
        assert_eq!(stats.requeued, 0, "the system prompt was known to be good");
        assert_eq!(stats.decode.tokens, 39);
    }
    let again = reply(&mut engine, request(&other, 10));
    assert_eq!(again.stats.unwrap().cached, 89, "an unrelated prefix stays cached");
    let ended = reply(&mut engine, request(&ask(10, 20), 10));
    assert_eq!((ended.ids, ended.stop), (oracle::greedy(&ask(10, 20), 10), Some(Stop::Length)));
    assert_eq!(ended.stats.unwrap().cached, 149, "the system prompt stays cached, too");
}

/// A sequence may copy a block before NaN in it shows: the copy is not used, either.
#[test]
fn nan_that_was_copied_before_it_showed_fails_one_request() {
    for (position, length) in [(25, 70), (40, 70), (55, 250), (62, 300)] {
        let (mut engine, watched) = narrow(2, 64, &[12, 12]);
        // The first chunk of the first request has NaN, but no output row.
        let first = prompt(6, length);
        let second = [&first[..20], &prompt(7, 30)].concat();
        watched.trouble.set(Some(Trouble::NaN(position)));
        engine.submit(request(&first, 20), Pieces::hooks()).unwrap();
        engine.submit(request(&second, 20), Pieces::hooks()).unwrap();
        let replies = run(&mut engine, 2);
        assert_eq!(replies[0].failure.as_ref().unwrap().kind(), ErrorKind::NotANumber);
        assert_eq!(replies[1].ids, oracle::greedy(&second, 20), "NaN at {position}");
        for tokens in [&first, &second] {
            assert_eq!(reply(&mut engine, request(tokens, 20)).ids, oracle::greedy(tokens, 20));
        }
    }
}

#[test]
fn random_nan_never_fails_two_requests_or_changes_a_reply() {
    for seed in 0..150 {
        println!("seed {seed}");
        let mut random = girih_tensor::Random(seed);
        let sequences = 2 + random.below(4) as u32;
        let chunk = 130 + random.below(60) as u32;
        let blocks = [10 + random.below(20) as u32, 10 + random.below(20) as u32];
        let (mut engine, watched) = narrow(sequences, chunk, &blocks);
        for round in 0..4 {
            let prompts: Vec<Vec<u32>> = (0..1 + random.below(5))
                .map(|_| {
                    let mut tokens = prompt(random.below(2) as u64, random.below(100));
                    tokens.extend(prompt(50 + random.below(100) as u64, 1 + random.below(30)));
                    tokens
                })
                .collect();
            // Behind the prompts, so each row with NaN is an output row.
            watched.trouble.set(Some(Trouble::NaN(130 + random.below(60) as u32)));
            for prompt in &prompts {
                engine.submit(request(prompt, 70), Pieces::hooks()).unwrap();
            }
            let replies = run(&mut engine, prompts.len());
            let failed = replies.iter().filter(|reply| reply.failure.is_some()).count();
            assert_eq!(failed, usize::from(watched.trouble.get().is_none()), "seed {seed}, round {round}");
            for (reply, prompt) in replies.iter().zip(&prompts) {
                assert_eq!(reply.ids, oracle::greedy(prompt, reply.ids.len()), "seed {seed}, round {round}");
                assert!(reply.failure.is_some() || reply.ids.len() == 70);
            }
        }
        watched.trouble.set(None);
        engine.forget().unwrap();
        assert_eq!(engine.cache().free(), blocks.map(|blocks| blocks as usize), "no block is lost");
    }
}

/// The sentence of a key that the state cannot hold.
const OUT_OF_RANGE: &str =
    "'layers.0.keys' at position {} is -70000, beyond the range of a KV cache in f16: use f32 (--kv f32)";

#[test]
fn a_key_that_the_state_cannot_hold_ends_its_request_only() {
    let (tokens, other) = (prompt(1, 70), prompt(2, 3));
    // In the first chunk of the prompt, before and in its last row, and in the reply.
    for position in [5, 66, 69, 75] {
        let (mut engine, watched) = batched(2, 64);
        let free = engine.cache().free();
        watched.trouble.set(Some(Trouble::Range(position)));
        for tokens in [&tokens, &other] {
            engine.submit(request(tokens, 30), Pieces::hooks()).unwrap();
        }
        let replies = run(&mut engine, 2);
        let failure = replies[0].failure.as_ref().unwrap();
        assert_eq!(failure.kind(), ErrorKind::OutOfRange, "{position}: {failure}");
        assert_eq!(failure.to_string(), OUT_OF_RANGE.replace("{}", &position.to_string()));
        let replied = (position as usize + 1).saturating_sub(tokens.len());
        assert_eq!(replies[0].ids, oracle::greedy(&tokens, replied), "{position}");
        assert_eq!(replies[1].ids, oracle::greedy(&other, 30), "{position}");
        let again = reply(&mut engine, request(&tokens, 30));
        assert_eq!((again.ids, again.stats.unwrap().cached), (oracle::greedy(&tokens, 30), 0), "{position}");
        engine.forget().unwrap();
        assert_eq!(engine.cache().free(), free, "no block is lost");
    }
}

#[test]
fn logits_after_a_key_that_the_state_cannot_hold_are_an_error() {
    let (mut engine, watched) = engine(64);
    let tokens = prompt(8, 100);
    for each_row in [true, false] {
        watched.trouble.set(Some(Trouble::Range(40)));
        let unwatched = &mut girih_graph::backend::Unwatched;
        let result = match each_row {
            true => engine.logits(&tokens, unwatched, |_, _| {}),
            false => engine.last_logits(&tokens, unwatched).map(|_| ()),
        };
        assert_eq!(result.unwrap_err().to_string(), OUT_OF_RANGE.replace("{}", "40"));
    }
    assert_eq!(
        engine.last_logits(&tokens, &mut girih_graph::backend::Unwatched).unwrap(),
        oracle::logits(&tokens)
    );
}

#[test]
fn a_device_failure_keeps_the_kind_that_the_backend_states() {
    let (mut engine, watched) = engine(64);
    watched.trouble.set(Some(Trouble::Memory(40)));
    let failed = reply(&mut engine, request(&prompt(8, 60), 5));
    assert_eq!(failed.failure.unwrap().kind(), ErrorKind::OutOfMemory);
    watched.trouble.set(Some(Trouble::Device(40)));
    let error = engine.last_logits(&prompt(8, 60), &mut girih_graph::backend::Unwatched).unwrap_err();
    assert_eq!(error, Error::with_kind(ErrorKind::DeviceFailed, "the device is gone"));
    let id = engine.submit(request(&prompt(8, 60), 5), Pieces::hooks()).unwrap();
    assert_eq!(finish(&mut engine, id).ids, oracle::greedy(&prompt(8, 60), 5));
}

/// A hook that panics in one of its functions.
struct Panicking(&'static str);

impl Constraint for Panicking {
    fn mask(&mut self, _: &mut [bool]) -> Result<()> {
        assert_ne!(self.0, "mask");
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        assert_ne!(self.0, "accept");
        Ok(())
    }

    fn is_complete(&self) -> bool {
        assert_ne!(self.0, "is_complete");
        false
    }
}

impl Drafter for Panicking {
    fn draft(&mut self, _: DraftQuery<'_>) -> Vec<u32> {
        assert_ne!(self.0, "draft");
        Vec::new()
    }
}

impl Detokenize for Panicking {
    fn push(&mut self, _: u32) -> String {
        assert_ne!(self.0, "push");
        String::new()
    }

    fn finish(self: Box<Self>) -> String {
        assert_ne!(self.0, "finish");
        String::new()
    }
}

#[test]
fn a_panic_of_a_hook_ends_its_own_request_only() {
    for call in ["mask", "accept", "is_complete", "draft", "push", "finish"] {
        let (mut engine, _) = batched(3, 128);
        let hooks = Hooks {
            detokenizer: Some(Box::new(Panicking(call))),
            constraint: Some(Box::new(Panicking(call))),
            drafter: Some(Box::new(Panicking(call))),
        };
        let tokens = prompt(1, 100);
        engine.submit(request(&tokens, 30), hooks).unwrap();
        engine.submit(request(&prompt(2, 50), 30), Pieces::hooks()).unwrap();
        let replies = run(&mut engine, 2);
        let failure = replies[0].failure.as_ref().unwrap();
        assert_eq!(failure.kind(), ErrorKind::DeviceFailed, "{call}: {failure}");
        assert_eq!(replies[1].ids, oracle::greedy(&prompt(2, 50), 30), "{call}");
        let next = reply(&mut engine, request(&tokens, 10));
        assert_eq!(next.ids, oracle::greedy(&tokens, 10), "{call}");
        assert_eq!(next.stats.unwrap().cached, 99, "{call}");
    }
}

/// Drafts the last token again.
struct Repeat;

impl Drafter for Repeat {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        vec![*tokens.last().unwrap(); max as usize]
    }
}

#[test]
fn a_state_operation_that_fails_ends_its_request_only() {
    let (system, other) = (prompt(3, 100), prompt(4, 90));
    let ask = |number: u64, length: usize| [&system[..], &prompt(number, length)].concat();
    // The operations of a start: copies of the shared tail, zeroed blocks, later ones in decode.
    for before in 0..14 {
        let (mut engine, watched) = narrow(3, 160, &[30, 30]);
        let hooks = || Hooks { drafter: Some(Box::new(Repeat)), ..Pieces::hooks() };
        reply(&mut engine, request(&ask(10, 20), 10));
        watched.trouble.set(Some(Trouble::State(before)));
        let prompts = [ask(11, 20), other.clone(), ask(12, 31)];
        for prompt in &prompts {
            engine.submit(request(prompt, 60), hooks()).unwrap();
        }
        let replies = run(&mut engine, 3);
        let failed: Vec<usize> = (0..3).filter(|index| replies[*index].failure.is_some()).collect();
        assert_eq!(failed.len(), 1, "after {before} operations");
        let failure = replies[failed[0]].failure.as_ref().unwrap();
        assert_eq!(
            (failure.kind(), failure.to_string().as_str()),
            (ErrorKind::DeviceFailed, "the copy engine is gone")
        );
        for index in (0..3).filter(|index| *index != failed[0]) {
            assert_eq!(replies[index].ids, oracle::greedy(&prompts[index], 60), "request {index}, {before}");
        }
        for prompt in &prompts {
            assert_eq!(reply(&mut engine, request(prompt, 10)).ids, oracle::greedy(prompt, 10), "{before}");
        }
    }
}
