//! Speculative decoding: a draft changes neither a reply nor what stays in the prefix
//! cache.

use std::collections::BTreeMap;

use girih_engine::{
    DraftQuery, Drafter, Engine, EngineLimits, ErrorKind, Hooks, Overflow, RequestId, Sampling, Stop,
    TokenRequest,
};
use girih_engine::{Stops, cache};
use girih_graph::Key;
use girih_tensor::Random;

use crate::oracle::{self, BLOCKS, CONTEXT, Oracle, Pieces, Reply, SPANS, Trouble, VOCABULARY, Watched};
use crate::oracle::{narrow, prompt, request};

/// How good a draft is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quality {
    Right,
    Wrong,
    /// One token in three is wrong.
    Mixed,
    /// Unrelated tokens, too many, and some outside the vocabulary.
    Random,
}

const QUALITIES: [Quality; 4] = [Quality::Right, Quality::Wrong, Quality::Mixed, Quality::Random];

/// Drafts from the reply that a request gets alone.
struct Told {
    quality: Quality,
    prompt: usize,
    reply: Vec<u32>,
    random: Random,
}

impl Drafter for Told {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        assert!(max > 0 && tokens.len() > self.prompt, "a reply has begun, and there is room");
        if self.quality == Quality::Random {
            let count = self.random.below(2 * max as usize + 1);
            return (0..count).map(|_| self.random.below(VOCABULARY + 4) as u32).collect();
        }
        assert_eq!(tokens[self.prompt..], self.reply[..tokens.len() - self.prompt]);
        let rest = &self.reply[tokens.len() - self.prompt..];
        let quality = self.quality;
        let wrong = |random: &mut Random| match quality {
            Quality::Right => false,
            Quality::Mixed => random.once_in(3),
            _ => true,
        };
        let told = rest.iter().take(max as usize);
        told.map(|id| (id + u32::from(wrong(&mut self.random))) % VOCABULARY as u32).collect()
    }
}

fn told(quality: Quality, request: &TokenRequest, reply: &[u32], seed: u64) -> Hooks {
    let (prompt, reply) = (request.tokens.len(), reply.to_vec());
    Hooks {
        drafter: Some(Box::new(Told { quality, prompt, reply, random: Random(seed) })),
        ..Pieces::hooks()
    }
}

fn greedy_or_sampled(number: u64) -> Sampling {
    match number % 2 {
        0 => Sampling::greedy(),
        _ => Sampling { seed: number, top_k: 12, presence_penalty: 0.4, ..Sampling::default() },
    }
}

/// Submits requests with their hooks; returns their replies in order.
fn replies(engine: &mut Engine, requests: Vec<(TokenRequest, Hooks)>) -> Vec<Reply> {
    let ids: Vec<RequestId> =
        requests.into_iter().map(|(request, hooks)| engine.submit(request, hooks).unwrap()).collect();
    let mut replies: BTreeMap<RequestId, Reply> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step() {
            replies.entry(event.request).or_default().take(event.clone());
        }
    }
    ids.iter().map(|id| replies.remove(id).unwrap()).collect()
}

/// An engine with output rows for drafts.
fn drafting(sequences: u32, chunk: u32, blocks: &[u32]) -> (Engine, Watched) {
    let watched = Watched::default();
    let key = Key { sequences, output_rows: chunk, ..oracle::key() };
    let limits = EngineLimits { sequences, ..EngineLimits::new(CONTEXT, chunk) };
    (Engine::new(Box::new(Oracle::new(key, blocks, &watched)), limits).unwrap(), watched)
}

/// Requests that share prefixes, which end within blocks.
fn requests(count: u64) -> Vec<TokenRequest> {
    let request = |number: u64| {
        let mut tokens = prompt(200 + number % 3, [90, 33, 130][number as usize % 3]);
        tokens.extend(prompt(300 + number, 5 + 7 * number as usize));
        TokenRequest { sampling: greedy_or_sampled(number), ..request(&tokens, 60 + 10 * number as u32) }
    };
    (0..count).map(request).collect()
}

fn said(replies: &[Reply]) -> Vec<(&[u32], &str, &Option<Stop>)> {
    replies.iter().map(|reply| (reply.ids.as_slice(), reply.text.as_str(), &reply.stop)).collect()
}

#[test]
fn a_draft_changes_no_reply_whatever_its_neighbours() {
    for count in 1..=8 {
        let requests = requests(count);
        let plain = |request: &TokenRequest| (request.clone(), Pieces::hooks());
        let alone: Vec<Reply> = requests
            .iter()
            .flat_map(|request| replies(&mut narrow(1, 64, &BLOCKS).0, vec![plain(request)]))
            .collect();
        for quality in QUALITIES {
            for (chunk, room) in [(count as u32, 4), (count as u32 + 3, 0), (40, 2), (160, 30)] {
                let key = Key { rows: chunk, sequences: count as u32, ..oracle::key() };
                let blocks = SPANS.map(|span| cache::blocks(span, &Key { sequences: 1, ..key }) + room);
                let (mut engine, watched) = drafting(count as u32, chunk, &blocks);
                let drafted = |(request, reply): (&TokenRequest, &Reply)| {
                    (request.clone(), told(quality, request, &reply.ids, count))
                };
                let replies = replies(&mut engine, requests.iter().zip(&alone).map(drafted).collect());
                let setup = format!("{quality:?} with {count} sequences in {chunk} rows");
                assert_eq!(said(&replies), said(&alone), "{setup}");
                check_counts(quality, chunk > count as u32, &replies, &setup);
                assert!(watched.largest.get() <= chunk as usize);
                engine.forget().unwrap();
                let all: Vec<_> = blocks.iter().map(|blocks| *blocks as usize).collect();
                assert_eq!(engine.cache().free(), all, "no block is lost: {setup}");
            }
        }
    }
}

fn check_counts(quality: Quality, has_rows: bool, replies: &[Reply], setup: &str) {
    let stats = || replies.iter().map(|reply| reply.stats.unwrap());
    let (drafted, accepted) =
        (stats().map(|s| s.drafted).sum::<u32>(), stats().map(|s| s.accepted).sum::<u32>());
    assert!(!has_rows || drafted > 0, "{setup}");
    match quality {
        Quality::Right => assert_eq!(accepted, drafted, "{setup}"),
        Quality::Wrong => assert_eq!(accepted, 0, "{setup}"),
        Quality::Mixed | Quality::Random => assert!(accepted <= drafted, "{setup}"),
    }
    for (reply, stats) in replies.iter().zip(stats()) {
        assert_eq!(stats.decode.tokens as usize, reply.ids.len() - 1, "each token counts once: {setup}");
    }
}

#[test]
fn right_drafts_save_steps_and_wrong_ones_cost_none() {
    let ask = request(&prompt(7, 50), 101);
    let whole = oracle::greedy(&ask.tokens, 101);
    for (quality, steps) in [(Quality::Right, 1 + 25), (Quality::Wrong, 101)] {
        let (mut engine, _) = drafting(1, 4, &BLOCKS);
        engine.submit(ask.clone(), told(quality, &ask, &whole, 1)).unwrap();
        let prefill = 50_u32.div_ceil(4) - 1;
        let mut count = 0;
        while !engine.is_idle() {
            engine.step();
            count += 1;
        }
        assert_eq!(count - prefill, steps, "{quality:?}");
    }
}

#[test]
fn stops_end_a_reply_within_a_draft() {
    let ask = request(&prompt(8, 70), 90);
    let whole = oracle::greedy(&ask.tokens, 90);
    let text = Pieces::text(&whole);
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for at in [3, 20, 41, 66] {
        let string = text[starts[at]..starts[at + 5]].to_owned();
        for stops in [
            Stops { tokens: vec![whole[at]], strings: vec![] },
            Stops { tokens: vec![], strings: vec![string] },
        ] {
            let ask = TokenRequest { stops, ..ask.clone() };
            let (mut plain, _) = drafting(1, 32, &BLOCKS);
            let (mut drafted, _) = drafting(1, 32, &BLOCKS);
            let alone = replies(&mut plain, vec![(ask.clone(), Pieces::hooks())]);
            let hooks = told(Quality::Right, &ask, &whole, 1);
            let replies = replies(&mut drafted, vec![(ask, hooks)]);
            assert_eq!(said(&replies), said(&alone));
            let held =
                |engine: &Engine| engine.cache().sequences().map(|(_, ids)| ids.to_vec()).collect::<Vec<_>>();
            assert_eq!(held(&drafted), held(&plain), "the cache holds the same tokens");
        }
    }
}

#[test]
fn a_conversation_with_drafts_finds_the_same_prefixes() {
    for quality in QUALITIES {
        let (mut plain, _) = drafting(1, 48, &[12, 8]);
        let (mut drafted, _) = drafting(1, 48, &[12, 8]);
        let mut talk = prompt(9, 40);
        for round in 0..5 {
            let ask = TokenRequest { sampling: greedy_or_sampled(round), ..request(&talk, 23) };
            let alone = replies(&mut plain, vec![(ask.clone(), Pieces::hooks())]).remove(0);
            let hooks = told(quality, &ask, &alone.ids, round);
            let reply = replies(&mut drafted, vec![(ask, hooks)]).remove(0);
            assert_eq!(reply.ids, alone.ids, "{quality:?}, round {round}");
            assert_eq!(reply.stats.unwrap().cached, alone.stats.unwrap().cached);
            talk.extend(reply.ids);
            talk.extend(prompt(20 + round, 17));
        }
    }
}

#[test]
fn drafts_and_truncation_work_together() {
    for number in 0..4 {
        let sampling = greedy_or_sampled(number);
        let overflow = Overflow::Truncate;
        let ask = TokenRequest { sampling, overflow, ..request(&prompt(40 + number, 280), 500) };
        let alone = replies(&mut drafting(1, 64, &BLOCKS).0, vec![(ask.clone(), Pieces::hooks())]);
        let drafter = Told { quality: Quality::Random, prompt: 0, reply: Vec::new(), random: Random(number) };
        let hooks = Hooks { drafter: Some(Box::new(drafter)), ..Pieces::hooks() };
        let drafted = replies(&mut drafting(1, 64, &BLOCKS).0, vec![(ask, hooks)]);
        assert_eq!(said(&drafted), said(&alone));
        assert!(drafted[0].stats.unwrap().drafted > 100);
    }
}

/// A rejected row may leave NaN in a block that the sequence continues to use.
#[test]
fn nan_in_a_rejected_row_does_not_reach_the_reply() {
    let (length, new) = (180, 80);
    let ask = request(&prompt(10, length), new);
    let whole = oracle::greedy(&ask.tokens, new as usize);
    // With few blocks of the window, the sequence cannot step back and begins again.
    let window = cache::blocks(SPANS[1], &Key { rows: 8, sequences: 1, ..oracle::key() });
    for blocks in [BLOCKS, [5, window]] {
        for position in (length as u32 + 1..length as u32 + new - 8).step_by(3) {
            let (mut engine, watched) = drafting(1, 8, &blocks);
            watched.trouble.set(Some(Trouble::NaN(position)));
            let hooks = told(Quality::Wrong, &ask, &whole, 1);
            let reply = replies(&mut engine, vec![(ask.clone(), hooks)]).remove(0);
            assert_eq!((&reply.ids, &reply.stop), (&whole, &Some(Stop::Length)), "NaN at {position}");
            assert_eq!(watched.trouble.get(), None, "the position was run");
            assert!(reply.stats.unwrap().repeated.tokens > 0, "NaN at {position}");
        }
    }
}

#[test]
fn a_draft_evicts_nothing_and_preempts_nobody() {
    // The second conversation and the first one's end fill all blocks.
    let (mut engine, _) = drafting(1, 32, &[6, 6]);
    let first = request(&prompt(11, 125), 2);
    replies(&mut engine, vec![(first.clone(), Pieces::hooks())]);
    let second = request(&prompt(12, 200), 50);
    let whole = oracle::greedy(&second.tokens, 50);
    let hooks = told(Quality::Right, &second, &whole, 1);
    let reply = replies(&mut engine, vec![(second, hooks)]).remove(0);
    assert_eq!(reply.ids, whole);
    let again = replies(&mut engine, vec![(first, Pieces::hooks())]).remove(0);
    assert_eq!(again.stats.unwrap().cached, 124, "the first is still cached");
}

/// A draft is run as further rows, so its own keys may exceed what the state holds. They end no reply that
/// would not have had them.
#[test]
fn a_key_that_the_state_cannot_hold_ends_a_reply_at_the_same_token_as_without_drafts() {
    let asked = request(&prompt(9, 60), 40);
    let greedy = oracle::greedy(&prompt(9, 60), 40);
    let mut kept = 0;
    for quality in QUALITIES {
        for position in 60..99 {
            let (mut engine, watched) = narrow(1, 64, &BLOCKS);
            watched.trouble.set(Some(Trouble::Range(position)));
            let drafted = vec![(asked.clone(), told(quality, &asked, &greedy, u64::from(position)))];
            let reply = replies(&mut engine, drafted).remove(0);
            match &reply.failure {
                Some(failure) => {
                    assert_eq!(failure.kind(), ErrorKind::OutOfRange, "{quality:?} {position}: {failure}");
                    let replied = position as usize - 59;
                    assert_eq!(reply.ids, greedy[..replied], "{quality:?} {position}");
                }
                None => {
                    kept += 1;
                    assert_ne!(quality, Quality::Right);
                    assert_eq!(reply.ids, greedy, "{quality:?} {position}");
                }
            }
            let again = replies(&mut engine, vec![(asked.clone(), Pieces::hooks())]).remove(0);
            assert_eq!(again.ids, greedy, "{quality:?} {position}");
        }
    }
    assert!(kept > 20, "{kept} faults in drafts that were rejected");
}
