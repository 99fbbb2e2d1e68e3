//! The step loop: replies do not depend on how they were computed.

use girih_engine::{Engine, EngineLimits, EventKind, Hooks, Sampling, Stop};
use girih_graph::backend::Unwatched;
use girih_graph::{Key, OutputKind, Watch};
use girih_tensor::Shape;

use crate::oracle::{self, BLOCKS, CONTEXT, Oracle, Reply, Trouble, VOCABULARY, Watched, finish, key};
use crate::oracle::{engine, narrow, prompt, reply, request};

#[test]
fn chunks_do_not_change_the_reply() {
    let prompt = prompt(1, 200);
    for chunk in [1, 7, 64, 65, CONTEXT] {
        let (mut engine, _) = engine(chunk);
        let reply = reply(&mut engine, request(&prompt, 50));
        assert_eq!(reply.ids, oracle::greedy(&prompt, 50), "chunks of {chunk}");
        assert_eq!(reply.stop, Some(Stop::Length));
        let stats = reply.stats.unwrap();
        assert_eq!((stats.cached, stats.prefill.tokens, stats.decode.tokens), (0, 200, 49));
        let prefilled = reply.prefilled.unwrap();
        assert_eq!((prefilled.prefill, prefilled.decode.tokens), (stats.prefill, 0));
    }
}

#[test]
fn a_seed_gives_one_reply_for_any_chunk_and_cache() {
    let ask = |seed| {
        let sampling = Sampling { seed, top_k: 30, top_p: 0.95, ..Sampling::default() };
        girih_engine::TokenRequest { sampling, ..request(&prompt(2, 150), 60) }
    };
    let (mut first, _) = engine(CONTEXT);
    let alone = reply(&mut first, ask(5)).ids;
    assert_ne!(reply(&mut first, ask(6)).ids, alone, "another seed");
    assert_eq!(reply(&mut first, ask(5)).ids, alone, "warm");
    for chunk in [1, 7, 64] {
        assert_eq!(reply(&mut engine(chunk).0, ask(5)).ids, alone, "chunks of {chunk}");
    }
}

/// The bug: a reply that exceeds its context is generated in pieces, and penalties did
/// not count the tokens of earlier pieces.
#[test]
fn penalties_count_the_earlier_pieces_of_a_reply() {
    let begun = prompt(2, 50);
    let sampling = Sampling { presence_penalty: 0.7, frequency_penalty: 0.4, ..Sampling::greedy() };
    let ask = |tokens: &[u32], replied, new| {
        let request =
            girih_engine::TokenRequest { sampling: sampling.clone(), replied, ..request(tokens, new) };
        reply(&mut engine(64).0, request).ids
    };
    let whole = ask(&begun, 0, 30);
    for cut in [0, 1, 12, 29] {
        let so_far = [&begun[..], &whole[..cut]].concat();
        let rest = 30 - cut as u32;
        assert_eq!(ask(&so_far, cut as u32, rest), whole[cut..], "cut at {cut}");
        // With few tokens so far, the penalties may change nothing.
        let forgotten = ask(&so_far, 0, rest) != whole[cut..];
        assert!(forgotten || cut != 12, "the penalties change the reply here");
    }
}

/// The number of tokens of the longest sequence in the cache.
fn held(engine: &Engine) -> usize {
    engine.cache().sequences().map(|(_, tokens)| tokens.len()).max().unwrap_or(0)
}

#[test]
fn a_shared_prefix_is_not_run_again() {
    let (mut engine, watched) = engine(64);
    let first = prompt(3, 150);
    let mut turns = first.clone();
    turns.extend(reply(&mut engine, request(&first, 20)).ids);
    let held = held(&engine);
    assert_eq!(held, 169, "the last token of a reply has not been run");

    turns.extend(prompt(4, 30));
    let before = watched.rows.get();
    let second = reply(&mut engine, request(&turns, 10));
    assert_eq!(second.ids, oracle::greedy(&turns, 10));
    assert_eq!(second.stats.unwrap().cached as usize, held);
    assert_eq!(watched.rows.get() - before, turns.len() - held + 9);

    let again = reply(&mut engine, request(&turns, 10));
    assert_eq!(again.ids, second.ids);
    assert_eq!(again.stats.unwrap().cached as usize, turns.len() - 1, "logits need the last token");
}

#[test]
fn a_prompt_resumes_where_it_diverges_from_a_cached_one() {
    let (mut engine, _) = narrow(1, 64, &[40, 40]);
    let long = prompt(5, 250);
    reply(&mut engine, request(&long, 5));
    for keep in [130, 128, 127, 64, 3, 0] {
        let mut other = long[..keep].to_vec();
        other.push((long[keep] + 1) % VOCABULARY as u32);
        other.extend(prompt(6, 9));
        let reply = reply(&mut engine, request(&other, 70));
        assert_eq!(reply.stats.unwrap().cached as usize, keep);
        assert_eq!(reply.ids, oracle::greedy(&other, 70), "after {keep} shared tokens");
    }
}

#[test]
fn waiting_requests_run_in_order_and_each_ends_once() {
    let (mut engine, _) = engine(7);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(20 + i, 40)).collect();
    let ids: Vec<_> =
        prompts.iter().map(|p| engine.submit(request(p, 8), Hooks::default()).unwrap()).collect();
    let mut replies: Vec<Reply> = ids.iter().map(|_| Reply::default()).collect();
    assert!(engine.cancel(ids[2]));
    assert!(!engine.cancel(ids[2]), "it has ended");
    while !engine.is_idle() {
        for event in engine.step().to_vec() {
            replies[ids.iter().position(|id| *id == event.request).unwrap()].take(event);
        }
    }
    for (index, (reply, prompt)) in replies.iter().zip(&prompts).enumerate() {
        let cancelled = index == 2;
        let (count, stop) = if cancelled { (0, Stop::Cancelled) } else { (8, Stop::Length) };
        assert_eq!((&reply.ids, &reply.stop), (&oracle::greedy(prompt, count), &Some(stop)));
        assert_eq!(reply.text, "");
    }
    assert!(engine.step().is_empty(), "an idle engine does nothing");
}

#[test]
fn a_cancelled_request_releases_its_blocks() {
    let (mut engine, _) = engine(32);
    for number in 0..20 {
        let prompt = prompt(number, 100 + 10 * number as usize);
        let id = engine.submit(request(&prompt, 10), Hooks::default()).unwrap();
        let steps = number % 7;
        for _ in 0..steps {
            engine.step();
        }
        assert!(engine.cancel(id));
        assert_eq!(finish(&mut engine, id).stop, Some(Stop::Cancelled));
        assert!(held(&engine) <= prompt.len() + 10);
    }
    let whole = prompt(99, CONTEXT as usize - 1);
    assert_eq!(reply(&mut engine, request(&whole, 1)).ids, oracle::greedy(&whole, 1));
    engine.forget().unwrap();
    assert_eq!(engine.cache().free(), BLOCKS.map(|all| all as usize));
}

#[test]
fn successive_requests_get_the_same_replies_as_alone() {
    for chunk in [5, 64] {
        let (mut engine, _) = engine(chunk);
        let mut earlier = prompt(7, 60);
        for number in 0..40_u64 {
            let cut = (number * 37 % earlier.len() as u64) as usize;
            let mut tokens = earlier[..cut].to_vec();
            tokens.extend(prompt(100 + number, 1 + (number * 53 % 90) as usize));
            let new = 1 + (number * 29 % 40) as usize;
            let reply = reply(&mut engine, request(&tokens, new as u32));
            assert_eq!(reply.ids, oracle::greedy(&tokens, new), "request {number}, chunks of {chunk}");
            tokens.extend(reply.ids);
            earlier = tokens;
            earlier.truncate(180);
        }
    }
}

#[test]
fn without_a_limit_the_context_ends_the_reply() {
    let (mut engine, _) = engine(64);
    let prompt = prompt(8, 300);
    let request = girih_engine::TokenRequest { max_new: None, ..request(&prompt, 1) };
    let reply = reply(&mut engine, request);
    assert_eq!(reply.stop, Some(Stop::Context));
    assert_eq!(reply.ids, oracle::greedy(&prompt, 20));
}

#[test]
fn nan_logits_fail_one_request() {
    let (mut engine, watched) = engine(64);
    let prompt = prompt(9, 100);
    watched.trouble.set(Some(Trouble::NaN(104)));
    let failed = reply(&mut engine, request(&prompt, 20));
    assert_eq!(failed.ids, oracle::greedy(&prompt, 5));
    let failure = failed.failure.unwrap().to_string();
    assert!(failure.contains("NaN for token 7 at position 104"), "{failure}");
    assert_eq!(held(&engine), 0, "its tokens are not reused");
    assert_eq!(reply(&mut engine, request(&prompt, 20)).ids, oracle::greedy(&prompt, 20));
}

#[test]
fn a_device_failure_fails_one_request() {
    let (mut engine, watched) = engine(16);
    let prompt = prompt(10, 100);
    for position in [0, 90, 110] {
        watched.trouble.set(Some(Trouble::Device(position)));
        engine.forget().unwrap();
        assert_eq!(
            reply(&mut engine, request(&prompt, 20)).failure.unwrap().to_string(),
            "the device is gone"
        );
        assert_eq!(engine.cache().free(), BLOCKS.map(|all| all as usize));
        let zeroed = watched.zeroed.get();
        assert_eq!(reply(&mut engine, request(&prompt, 20)).ids, oracle::greedy(&prompt, 20));
        assert_eq!(watched.zeroed.get() - zeroed, 4, "two blocks in each of two groups");
    }
}

#[test]
fn logits_come_for_every_position_in_order() {
    for chunk in [1, 7, 64] {
        let (mut engine, _) = engine(chunk);
        reply(&mut engine, request(&prompt(11, 90), 10));
        let tokens = prompt(11, 150);
        let mut next = 0;
        engine
            .logits(&tokens, &mut Unwatched, |position, row| {
                assert_eq!(position, next);
                assert_eq!(row, oracle::logits(&tokens[..=position]));
                next += 1;
            })
            .unwrap();
        assert_eq!(next, tokens.len());
        let warm = reply(&mut engine, request(&tokens, 30));
        assert_eq!(warm.stats.unwrap().cached, 149);
        assert_eq!(warm.ids, oracle::greedy(&tokens, 30));
    }
}

#[test]
fn logits_are_refused_or_fail_cleanly() {
    let (mut engine, watched) = engine(64);
    let text = prompt(12, CONTEXT as usize + 1);
    let error = engine.logits(&text, &mut Unwatched, |_, _| {}).unwrap_err().to_string();
    assert_eq!(error, "the text has 321 tokens; the context is 320: split it into windows");
    watched.trouble.set(Some(Trouble::Device(40)));
    assert!(engine.logits(&text[..100], &mut Unwatched, |_, _| {}).is_err());
    assert_eq!(held(&engine), 0);
    engine.submit(request(&text[..200], 5), Hooks::default()).unwrap();
    engine.step();
    let error = engine.logits(&text[..10], &mut Unwatched, |_, _| {}).unwrap_err().to_string();
    assert!(error.starts_with("request 0 is active"), "{error}");
    assert!(engine.forget().is_err());
}

#[test]
fn watchers_receive_every_chunk() {
    struct Tap(Vec<f32>);
    impl Watch for Tap {
        fn wants(&self, name: &str) -> bool {
            name == "tokens"
        }
        fn value(&mut self, _: &str, _: &Shape, data: &[f32]) {
            self.0.extend(data);
        }
    }
    let tokens = prompt(13, 50);
    let mut tap = Tap(Vec::new());
    engine(64).0.logits(&tokens, &mut tap, |_, _| {}).unwrap();
    assert_eq!(tap.0, tokens.iter().map(|token| *token as f32).collect::<Vec<_>>());
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let (mut engine, _) = engine(64);
    let prompt = prompt(14, 30);
    let sampling = Sampling { bias: vec![(3, f32::INFINITY)], ..Sampling::default() };
    let request = girih_engine::TokenRequest { sampling, logprobs: Some(5), ..request(&prompt, 1) };
    engine.submit(request, Hooks::default()).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| (!engine.is_idle()).then(|| engine.step().to_vec())).collect();
    let found = events.into_iter().flatten().find_map(|event| match event.kind {
        EventKind::Token { logprobs, .. } => logprobs,
        _ => None,
    });
    let logits = oracle::logits(&prompt);
    let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let found = found.unwrap();
    assert_eq!((found.chosen.id, found.top.len()), (3, 5));
    assert!((found.chosen.value - (f64::from(logits[3]) - total.ln())).abs() < 1e-12);
    assert_eq!(found.top[0].id, oracle::greedy(&prompt, 1)[0]);
    assert!(found.top.is_sorted_by(|a, b| a.value >= b.value));
}

#[test]
fn an_engine_refuses_programs_too_small_for_its_limits() {
    let refusal = |max_key: Key, blocks: &[u32], limits: EngineLimits| {
        let runner = Box::new(Oracle::new(max_key, blocks, &Watched::default()));
        Engine::new(runner, limits).err().expect("a refusal").to_string()
    };
    let together = |sequences, chunk| EngineLimits { sequences, ..EngineLimits::new(320, chunk) };
    let hidden = OutputKind::Hidden;
    for (max_key, blocks, limits, part) in [
        (key(), BLOCKS, EngineLimits::new(321, 64), "context of 321 was requested"),
        (key(), [4, 5], EngineLimits::new(320, 64), "1 to 256"),
        (key(), [5, 3], EngineLimits::new(320, 64), "1 to 192"),
        (key(), BLOCKS, EngineLimits::new(320, 0), "prefill chunk of 0"),
        (Key { rows: 8, ..key() }, BLOCKS, EngineLimits::new(320, 9), "1 to 8"),
        (Key { output: hidden, ..key() }, BLOCKS, EngineLimits::new(320, 9), "map tokens to logits"),
        (Key { output_rows: 0, ..key() }, BLOCKS, EngineLimits::new(320, 9), "map tokens to logits"),
        (
            key(),
            BLOCKS,
            together(2, 64),
            "2 concurrent sequences were requested; the loaded programs support 1 to 1",
        ),
        (key(), BLOCKS, together(0, 64), "0 concurrent sequences"),
        (Key { sequences: 8, ..key() }, BLOCKS, together(4, 3), "1 to 3 in steps of 3 rows"),
        (Key { sequences: 20, ..key() }, BLOCKS, together(20, 64), "1 to 16 in steps"),
    ] {
        let error = refusal(max_key, &blocks, limits);
        assert!(error.contains(part), "{error}");
    }
}
