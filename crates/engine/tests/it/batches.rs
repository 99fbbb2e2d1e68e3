//! Concurrent sequences: each reply is the same as when its request runs alone.

use girih_tensor::Random;
use std::collections::BTreeMap;

use girih_engine::{Engine, Error, ErrorKind, Hooks, RequestEvent, RequestId, Sampling, Stop, TokenRequest};
use girih_graph::backend::Unwatched;

use crate::oracle::{self, CONTEXT, Reply, SPANS, Trouble, Watched, batched, engine, narrow};
use crate::oracle::{prompt, random_narrow, reply, request};

/// The replies so far.
#[derive(Default)]
struct Replies(BTreeMap<RequestId, Reply>);

impl Replies {
    fn take(&mut self, events: &[RequestEvent]) {
        for event in events {
            self.0.entry(event.request).or_default().take(event.clone());
        }
    }

    fn finish(mut self, engine: &mut Engine) -> BTreeMap<RequestId, Reply> {
        while !engine.is_idle() {
            self.take(engine.step());
        }
        self.0
    }
}

/// Steps until all requests have ended; returns their replies in order.
fn together(engine: &mut Engine, requests: &[TokenRequest]) -> Vec<Reply> {
    let submit = |request: &TokenRequest| engine.submit(request.clone(), Hooks::default()).unwrap();
    let ids: Vec<_> = requests.iter().map(submit).collect();
    let mut replies = Replies::default().finish(engine);
    ids.iter().map(|id| replies.remove(id).unwrap()).collect()
}

#[test]
fn eight_sequences_decode_together() {
    let (mut engine, watched) = batched(8, 64);
    // The first tokens of these prompts differ, so none shares a prefix.
    let prompts: Vec<_> = (1..9).map(|number| prompt(number, 11 + 9 * number as usize)).collect();
    let requests: Vec<_> = prompts.iter().map(|prompt| request(prompt, 100)).collect();
    let replies = together(&mut engine, &requests);
    for (prompt, reply) in prompts.iter().zip(&replies) {
        assert_eq!(reply.ids, oracle::greedy(prompt, 100));
        let stats = reply.stats.unwrap();
        assert_eq!((stats.requeued, stats.repeated.tokens), (0, 0), "the blocks suffice for all");
        assert_eq!((stats.prefill.tokens, stats.decode.tokens), (prompt.len() as u32, 99));
        assert!(stats.first_token >= stats.prefill.time && stats.whole >= stats.first_token);
    }
    assert_eq!((watched.sequences.get(), watched.largest.get()), (8, 64));
}

#[test]
fn a_long_prompt_does_not_delay_the_replies() {
    let (mut engine, watched) = batched(3, 16);
    let short = [prompt(1, 5), prompt(2, 5)];
    for prompt in &short {
        engine.submit(request(prompt, 60), Hooks::default()).unwrap();
    }
    for _ in 0..3 {
        engine.step();
    }
    engine.submit(request(&prompt(3, 250), 5), Hooks::default()).unwrap();
    for _ in 0..17 {
        // 250 tokens take 17 steps of 14 rows; the two replies take the other 2 rows.
        assert_eq!(engine.step().iter().filter(|event| event.request.0 < 2).count(), 2);
    }
    assert_eq!(watched.largest.get(), 16);
    assert_eq!(engine.step().len(), 4, "its second token comes with those of the others");
}

#[test]
fn prompts_share_the_prefix_of_an_active_request() {
    let (mut engine, watched) = batched(4, 160);
    let system = prompt(1, 150);
    let ask = |number: u64| {
        let mut tokens = system.clone();
        tokens.extend(prompt(number, 10));
        tokens
    };
    let requests: Vec<_> = (10..14).map(|number| request(&ask(number), 20)).collect();
    let replies = together(&mut engine, &requests);
    for (number, reply) in (10..14).zip(&replies) {
        assert_eq!(reply.ids, oracle::greedy(&ask(number), 20));
    }
    let cached: Vec<_> = replies.iter().map(|reply| reply.stats.unwrap().cached).collect();
    assert_eq!(cached, [0, 150, 150, 150]);
    assert_eq!(watched.rows.get(), 150 + 4 * (10 + 19));
}

#[test]
fn interleaved_conversations_each_find_their_prefix() {
    let key = girih_graph::Key { rows: 64, sequences: 4, ..oracle::key() };
    let blocks = SPANS.map(|span| girih_engine::cache::blocks(span, &key));
    let (mut engine, _) = narrow(1, 64, &blocks);
    let mut talks: Vec<Vec<u32>> = (0..3).map(|number| prompt(number, 30)).collect();
    for round in 0..4 {
        for (number, talk) in talks.iter_mut().enumerate() {
            let reply = reply(&mut engine, request(talk, 20));
            assert_eq!(reply.ids, oracle::greedy(talk, 20), "talk {number}, round {round}");
            let cached = reply.stats.unwrap().cached as usize;
            assert_eq!(cached, if round == 0 { 0 } else { talk.len() - 31 }, "only new tokens are run");
            talk.extend(reply.ids);
            talk.extend(prompt(100 + number as u64, 30));
        }
    }
}

#[test]
fn a_request_waits_for_blocks_that_active_ones_may_need() {
    // Each reply needs 5 blocks at its end, 2 at its beginning; there are 8.
    let (mut engine, watched) = narrow(3, 64, &[8, 12]);
    let prompts: Vec<_> = (0..3).map(|number| prompt(number, 100)).collect();
    let requests: Vec<_> = prompts.iter().map(|prompt| request(prompt, 200)).collect();
    let replies = together(&mut engine, &requests);
    for (prompt, reply) in prompts.iter().zip(&replies) {
        assert_eq!(reply.ids, oracle::greedy(prompt, 200));
        assert_eq!(reply.stop, Some(Stop::Length));
        let stats = reply.stats.unwrap();
        assert_eq!((stats.prefill.tokens, stats.decode.tokens), (100, 199), "each token counts once");
        assert_eq!((stats.requeued, stats.repeated.tokens), (0, 0), "no state is given up");
    }
    assert_eq!(watched.sequences.get(), 1);
    // Shorter replies fit beside each other.
    let requests: Vec<_> = prompts.iter().map(|prompt| request(prompt, 28)).collect();
    together(&mut engine, &requests);
    assert_eq!(watched.sequences.get(), 3);
}

#[test]
fn a_request_without_blocks_waits() {
    let (mut engine, _) = narrow(4, 64, &[5, 12]);
    let first = engine.submit(request(&prompt(1, 200), 50), Hooks::default()).unwrap();
    let second = engine.submit(request(&prompt(2, 100), 5), Hooks::default()).unwrap();
    let mut order = Vec::new();
    while !engine.is_idle() {
        order.extend(engine.step().iter().map(|event| event.request));
        assert!(engine.active() <= 1);
    }
    assert!(order.is_sorted() && order.contains(&first) && order.contains(&second));
}

/// One run of many requests with random arrivals and cancellations.
struct Traffic {
    random: Random,
    engine: Engine,
    watched: Watched,
    asked: BTreeMap<RequestId, (Vec<u32>, u32)>,
    replies: Replies,
}

impl Traffic {
    fn new(seed: u64) -> Traffic {
        let mut random = Random(seed);
        let (engine, watched, _) = random_narrow(&mut random, SPANS);
        Traffic { random, engine, watched, asked: BTreeMap::new(), replies: Replies::default() }
    }

    fn submit(&mut self) {
        let (story, parting) = (self.random.below(3) as u64, self.random.below(160));
        let mut tokens = prompt(story, parting);
        tokens.extend(prompt(10 + self.random.below(1000) as u64, 1 + self.random.below(60)));
        let new = 1 + self.random.below(200.min(CONTEXT as usize - tokens.len())) as u32;
        let id = self.engine.submit(request(&tokens, new), Hooks::default()).unwrap();
        self.asked.insert(id, (tokens, new));
    }

    /// Any request so far, once in `times` calls.
    fn any(&mut self, times: usize) -> Option<RequestId> {
        let chosen = self.random.once_in(times) && !self.asked.is_empty();
        chosen.then(|| *self.asked.keys().nth(self.random.below(self.asked.len())).expect("below its length"))
    }

    fn act(&mut self) {
        if self.random.once_in(4) {
            self.submit();
        }
        if let Some(id) = self.any(25) {
            self.engine.cancel(id);
        }
        if let Some(id) = self.any(10) {
            self.engine.suspend(id);
        }
        if let Some(id) = self.any(4) {
            self.engine.resume(id);
        }
        self.replies.take(self.engine.step());
    }

    /// Checks that every reply is the reply that the request gets alone, or its beginning.
    fn check(mut self, seed: u64) -> u32 {
        for id in self.asked.keys() {
            self.engine.resume(*id);
        }
        let replies = self.replies.finish(&mut self.engine);
        assert_eq!(replies.len(), self.asked.len(), "seed {seed}: each request has ended");
        let mut repeated = 0;
        for (id, (tokens, new)) in &self.asked {
            let reply = &replies[id];
            let alone = oracle::greedy(tokens, reply.ids.len());
            assert_eq!(reply.ids, alone, "seed {seed}, {id:?}");
            match reply.stop {
                Some(Stop::Cancelled) => assert!(reply.ids.len() < *new as usize),
                Some(Stop::Length) => assert_eq!(reply.ids.len(), *new as usize),
                ref other => panic!("seed {seed}, {id:?}: {other:?}"),
            }
            let stats = reply.stats.unwrap();
            repeated += stats.repeated.tokens;
            if let (Some(Stop::Length), Some(_)) = (&reply.stop, reply.prefilled) {
                let read = stats.cached + stats.prefill.tokens;
                assert_eq!(
                    (read as usize, stats.decode.tokens),
                    (tokens.len(), new - 1),
                    "seed {seed}, {id:?}"
                );
            }
        }
        assert!(self.watched.largest.get() <= self.engine.limits().chunk as usize);
        self.engine.forget().unwrap();
        assert_eq!(self.engine.cache().sequences().count(), 0);
        let all: Vec<_> = self.engine.runner().blocks().iter().map(|blocks| *blocks as usize).collect();
        assert_eq!(self.engine.cache().free(), all, "seed {seed}: no block is lost");
        repeated
    }
}

#[test]
fn no_arrival_order_changes_a_reply() {
    let mut repeated = 0;
    for seed in 0..120 {
        println!("seed {seed}");
        let mut traffic = Traffic::new(seed);
        for _ in 0..150 {
            traffic.act();
        }
        repeated += traffic.check(seed);
    }
    assert!(repeated > 1000, "only {repeated} tokens were run again; the test does not cover lost state");
}

#[test]
fn sampled_replies_do_not_depend_on_the_batch() {
    let sampled = |seed: u64| {
        let sampling = Sampling { seed, top_k: 30, frequency_penalty: 0.3, ..Sampling::default() };
        TokenRequest { sampling, ..request(&prompt(seed, 40 + seed as usize), 50) }
    };
    let requests: Vec<_> = (0..6).map(sampled).collect();
    let alone: Vec<_> = requests.iter().map(|ask| reply(&mut engine(64).0, ask.clone()).ids).collect();
    for (sequences, chunk, blocks) in [(6, 64, [30, 30]), (3, 7, [10, 10]), (6, 6, [8, 5])] {
        let (mut engine, _) = narrow(sequences, chunk, &blocks);
        let replies = together(&mut engine, &requests);
        let ids: Vec<_> = replies.into_iter().map(|reply| reply.ids).collect();
        assert_eq!(ids, alone, "{sequences} sequences, steps of {chunk} rows");
    }
}

#[test]
fn nan_in_one_row_fails_one_request() {
    let (mut engine, watched) = batched(3, 64);
    watched.trouble.set(Some(Trouble::NaN(60)));
    let prompts = [prompt(1, 20), prompt(2, 58), prompt(3, 21)];
    let replies = together(&mut engine, &prompts.each_ref().map(|prompt| request(prompt, 30)));
    let failure = replies[1].failure.as_ref().unwrap();
    assert!(failure.to_string().contains("NaN for token 7 at position 60"), "{failure}");
    assert_eq!(failure.kind(), ErrorKind::NotANumber);
    assert_eq!(replies[1].ids, oracle::greedy(&prompts[1], 3));
    for index in [0, 2] {
        assert_eq!(replies[index].ids, oracle::greedy(&prompts[index], 30));
    }
}

#[test]
fn tokens_without_nan_stay_cached_when_a_request_that_shared_them_fails() {
    let (mut engine, watched) = batched(2, 64);
    let tokens = prompt(1, 100);
    reply(&mut engine, request(&tokens, 10));
    watched.trouble.set(Some(Trouble::NaN(112)));
    let failed = reply(&mut engine, request(&tokens, 30));
    assert!(failed.failure.is_some());
    assert_eq!(engine.cache().sequences().count(), 1, "only the failed sequence is discarded");
    let next = reply(&mut engine, request(&tokens, 30));
    assert_eq!((next.ids, next.stats.unwrap().cached), (oracle::greedy(&tokens, 30), 99));
}

#[test]
fn a_device_failure_fails_the_requests_of_the_step() {
    let (mut engine, watched) = narrow(3, 16, &[20, 20]);
    // The prefill of the first takes all rows of its steps; the second waits and is not
    // affected.
    let first = engine.submit(request(&prompt(1, 60), 10), Hooks::default()).unwrap();
    let second = engine.submit(request(&prompt(2, 30), 10), Hooks::default()).unwrap();
    watched.trouble.set(Some(Trouble::Device(40)));
    let replies = Replies::default().finish(&mut engine);
    let gone = Error::with_kind(ErrorKind::DeviceFailed, "the device is gone");
    assert_eq!(replies[&first].failure, Some(gone));
    assert_eq!(replies[&second].ids, oracle::greedy(&prompt(2, 30), 10));
    // Both are in the step that reaches position 31.
    let ids = [1, 2].map(|number| engine.submit(request(&prompt(number, 30), 10), Hooks::default()).unwrap());
    watched.trouble.set(Some(Trouble::Device(31)));
    engine.forget().unwrap();
    let replies = Replies::default().finish(&mut engine);
    assert!(ids.iter().any(|id| replies[id].failure.is_some()));
    assert_eq!(reply(&mut engine, request(&prompt(3, 50), 20)).ids, oracle::greedy(&prompt(3, 50), 20));
    engine.forget().unwrap();
    assert_eq!(engine.cache().free(), [20, 20]);
}

#[test]
fn logits_need_an_engine_without_active_requests() {
    let (mut engine, _) = batched(2, 64);
    engine.submit(request(&prompt(1, 50), 2), Hooks::default()).unwrap();
    engine.step();
    let error = engine.logits(&[1, 2], &mut Unwatched, |_, _| {}).unwrap_err().to_string();
    assert!(error.starts_with("request 0 is active"), "{error}");
    engine.step();
    let tokens = prompt(2, 150);
    let mut seen = 0;
    let check = |position: usize, row: &[f32]| {
        assert_eq!(row, oracle::logits(&tokens[..=position]));
        seen += 1;
    };
    engine.logits(&tokens, &mut Unwatched, check).unwrap();
    assert_eq!(seen, 150);
}
