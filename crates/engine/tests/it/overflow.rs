//! Truncation: a reply that exceeds the context is the same as that of several requests,
//! each with the tokens that stay.

use std::mem::take;
use std::sync::{Arc, Mutex};

use girih_engine::{Detokenize, Engine, EngineLimits, EventKind, Hooks, Overflow, Sampling, TokenRequest};
use girih_engine::{Stats, Stop, Stops};
use girih_tensor::random::mix;

use crate::oracle::{self, CONTEXT, Pieces, VOCABULARY, batched, engine, prompt, reply, request};

/// A reply and its counts: cached, prefilled and decoded tokens.
#[derive(Debug, PartialEq)]
struct Whole {
    /// The tokens, including a stop token.
    ids: Vec<u32>,
    text: String,
    stop: Stop,
    counts: [u32; 3],
}

fn counts(stats: &Stats) -> [u32; 3] {
    [stats.cached, stats.prefill.tokens, stats.decode.tokens]
}

/// The slow twin: a request for each piece. The end of a piece's text that is not certain
/// yet is passed on to the next piece.
struct Tail(Arc<Mutex<(Pieces, String)>>);

impl Detokenize for Tail {
    fn push(&mut self, id: u32) -> String {
        let mut tail = self.0.lock().unwrap();
        let text = tail.0.push(id);
        take(&mut tail.1) + &text
    }

    fn finish(self: Box<Self>) -> String {
        take(&mut self.0.lock().unwrap().1)
    }
}

/// The request for a piece: the whole prompt if one more token fits, else its first token
/// and the last half context.
fn piece(mut request: TokenRequest) -> TokenRequest {
    let have = request.tokens.len() as u32;
    if have >= CONTEXT {
        let kept = CONTEXT / 2;
        let last = request.tokens.split_off((have - (kept - 1)) as usize);
        request.tokens.truncate(1);
        request.tokens.extend(last);
        request.replied = request.replied.min(kept - 1);
    }
    let room = CONTEXT - request.tokens.len() as u32;
    request.max_new = request.max_new.map(|max| max.min(room));
    request
}

fn in_pieces(engine: &mut Engine, request: &TokenRequest) -> Whole {
    let (mut known, max_new) = (request.tokens.clone(), request.max_new);
    let tail = Arc::new(Mutex::new((Pieces(Vec::new()), String::new())));
    let mut whole = Whole { ids: Vec::new(), text: String::new(), stop: Stop::Length, counts: [0; 3] };
    loop {
        let done = whole.ids.len() as u32;
        let mut next = TokenRequest { tokens: known.clone(), replied: done, ..request.clone() };
        next.max_new = max_new.map(|max| max - done);
        next.sampling.seed = next.sampling.seed.wrapping_add(u64::from(done));
        let detokenizer = Some(Box::new(Tail(Arc::clone(&tail))) as Box<dyn Detokenize>);
        engine.submit(piece(next), Hooks { detokenizer, ..Hooks::default() }).unwrap();
        while !engine.is_idle() {
            for event in engine.step() {
                match &event.kind {
                    EventKind::Token { id, text, .. } => {
                        whole.ids.push(*id);
                        whole.text += text;
                    }
                    EventKind::Finished { stop, text, stats, .. } => {
                        tail.lock().unwrap().1.clone_from(text);
                        whole.ids.extend(if let Stop::Token(id) = stop { Some(*id) } else { None });
                        whole.stop = stop.clone();
                        let sum = whole.counts.iter_mut().zip(counts(stats));
                        sum.for_each(|(sum, count)| *sum += count);
                    }
                    EventKind::Prefilled(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        known.extend(&whole.ids[done as usize..]);
        let is_short = max_new.is_some_and(|max| (whole.ids.len() as u32) < max);
        if whole.stop != Stop::Length || !is_short {
            let (pieces, held) = take(&mut *tail.lock().unwrap());
            if !matches!(whole.stop, Stop::String(_)) {
                whole.text += &(held + &Box::new(pieces).finish());
            }
            return whole;
        }
    }
}

/// The reply to one request with truncation.
fn at_once(engine: &mut Engine, request: &TokenRequest) -> Whole {
    let request = TokenRequest { overflow: Overflow::Truncate, ..request.clone() };
    let oracle::Reply { mut ids, text, stop, stats, .. } = reply(engine, request);
    ids.extend(if let Some(Stop::Token(id)) = stop { Some(id) } else { None });
    Whole { ids, text, stop: stop.unwrap(), counts: counts(&stats.unwrap()) }
}

fn digest(whole: &Whole) -> u64 {
    let hash = whole.ids.iter().fold(17, |hash, id| mix(hash ^ u64::from(*id)));
    whole.text.bytes().fold(hash, |hash, byte| mix(hash ^ u64::from(byte)))
}

fn sampling(sampled: bool) -> Sampling {
    match sampled {
        false => Sampling::greedy(),
        true => Sampling {
            seed: 7,
            top_k: 30,
            repetition_penalty: 1.1,
            presence_penalty: 0.3,
            frequency_penalty: 0.2,
            ..Sampling::default()
        },
    }
}

/// A prompt's length, the maximum of new tokens, and whether to sample; then the number of
/// tokens, the digest and the counts that the former implementation in `cli` gave.
type Recorded = (usize, Option<u32>, bool, usize, u64, [u32; 3]);

const RECORDED: [Recorded; 12] = [
    (10, Some(1000), false, 1000, 0x7771249293fe3045, [5, 805, 994]),
    (10, Some(1000), true, 1000, 0x454199d358d7048f, [5, 805, 994]),
    (300, Some(700), false, 700, 0x5c31742747612c7f, [6, 1094, 694]),
    (300, Some(700), true, 700, 0x5675b9fb10c3f440, [5, 1095, 694]),
    (320, Some(5), false, 5, 0x68d32d2e9b6cc1f5, [0, 160, 4]),
    (320, Some(5), true, 5, 0x129c7dfa9d86972b, [0, 160, 4]),
    (900, Some(500), false, 500, 0x9f3419574bb4b8a9, [3, 637, 496]),
    (900, Some(500), true, 500, 0x6047c8f544c76080, [3, 637, 496]),
    (400, None, false, 160, 0x3d5b9624e58c3a7f, [0, 160, 159]),
    (400, None, true, 160, 0x366569767acb9165, [0, 160, 159]),
    (319, Some(2), false, 2, 0xd3d6a91ed6fe42b8, [1, 478, 0]),
    (319, Some(2), true, 2, 0xdc46bec8f9b506a4, [1, 478, 0]),
];

fn ask((index, recorded): (usize, &Recorded)) -> TokenRequest {
    let (length, max_new, sampled, ..) = *recorded;
    let sampling = sampling(sampled);
    TokenRequest { sampling, max_new, ..request(&prompt(70 + index as u64 / 2, length), 1) }
}

#[test]
fn truncation_gives_the_recorded_replies() {
    for (index, recorded) in RECORDED.iter().enumerate() {
        let request = ask((index, recorded));
        let whole = at_once(&mut engine(64).0, &request);
        let (.., tokens, hash, counts) = *recorded;
        assert_eq!((whole.ids.len(), digest(&whole), whole.counts), (tokens, hash, counts), "{recorded:?}");
        assert_eq!(whole, in_pieces(&mut engine(64).0, &request));
        let full = whole.stop == Stop::Context;
        assert_eq!(full, request.max_new.is_none());
    }
}

#[test]
fn stops_are_found_across_pieces() {
    for (index, recorded) in RECORDED.iter().enumerate().take(4) {
        let request = ask((index, recorded));
        let whole = at_once(&mut engine(64).0, &request);
        let starts: Vec<usize> = whole.text.char_indices().map(|(at, _)| at).collect();
        // Many of these strings begin in one piece and end in the next.
        for start in (0..starts.len() - 12).step_by(23) {
            let stop = whole.text[starts[start]..starts[start + 12]].to_owned();
            let strings = vec!["never".to_owned(), stop];
            let request = TokenRequest { stops: Stops { strings, tokens: vec![] }, ..request.clone() };
            let ended = at_once(&mut engine(64).0, &request);
            assert!(matches!(ended.stop, Stop::String(_)) && whole.text.starts_with(&ended.text));
            assert_eq!(ended, in_pieces(&mut engine(64).0, &request), "from {start}");
        }
        let stops = Stops { strings: vec![], tokens: vec![whole.ids[whole.ids.len() * 2 / 3]] };
        let request = TokenRequest { stops, ..request };
        let ended = at_once(&mut engine(64).0, &request);
        assert!(matches!(ended.stop, Stop::Token(_)));
        assert_eq!(ended, in_pieces(&mut engine(64).0, &request));
    }
}

#[test]
fn truncated_replies_do_not_depend_on_the_batch() {
    let requests: Vec<TokenRequest> = RECORDED.iter().enumerate().map(ask).collect();
    for (sequences, chunk) in [(1, 7), (4, 20), (8, 64)] {
        let (mut engine, _) = batched(sequences, chunk);
        let mut replies: Vec<oracle::Reply> = Vec::new();
        for request in &requests {
            let request = TokenRequest { overflow: Overflow::Truncate, ..request.clone() };
            engine.submit(request, Pieces::hooks()).unwrap();
            replies.push(oracle::Reply::default());
        }
        while !engine.is_idle() {
            // A reply has one `Prefilled` event, which `take` checks.
            engine.step().iter().for_each(|event| replies[event.request.0 as usize].take(event.clone()));
        }
        for ((reply, recorded), request) in replies.iter().zip(&RECORDED).zip(&requests) {
            let whole = in_pieces(&mut oracle::engine(64).0, request);
            assert_eq!((&reply.ids, &reply.text), (&whole.ids, &whole.text), "{recorded:?}");
            assert!(reply.prefilled.unwrap().prefill.tokens <= CONTEXT);
        }
    }
}

#[test]
fn a_context_too_small_to_truncate_is_refused() {
    let request = TokenRequest { overflow: Overflow::Truncate, ..request(&prompt(1, 3), 5) };
    let check = |context| request.check(&EngineLimits::new(context, 1), VOCABULARY);
    assert!(check(1).unwrap_err().to_string().contains("the context is 1"));
    assert_eq!(check(2), Ok(()));
    assert!(
        check(2).is_ok()
            && TokenRequest { max_new: Some(0), ..request.clone() }
                .check(&EngineLimits::new(2, 1), VOCABULARY)
                .is_err()
    );
}
