//! Log-probabilities of the tokens of a prompt: those of the model after the tokens before them,
//! whatever the chunks, output rows, cached prefixes and neighbours.

use girih_engine::sample::{Logprobs, logprobs};
use girih_engine::{
    EmbeddedRows, Engine, EngineLimits, ErrorKind, Hooks, Overflow, Sampling, Stop, TokenRequest,
};
use girih_graph::Key;

use crate::oracle::{
    self, CONTEXT, Oracle, Pieces, Reply, Trouble, Watched, engine, key, narrow, prompt, reply, request,
};

/// By the definition: the log-softmax of the logits after the tokens before.
fn expected(tokens: &[u32], top: u32) -> Vec<(u32, Option<Logprobs>)> {
    let after = |(at, id): (usize, &u32)| {
        let before = (at > 0).then(|| oracle::logits(&tokens[..at]));
        (*id, before.map(|logits| logprobs(&logits, *id, top)))
    };
    tokens.iter().enumerate().map(after).collect()
}

fn scored(tokens: &[u32], new: u32, top: u32) -> TokenRequest {
    TokenRequest { prompt_logprobs: Some(top), ..request(tokens, new) }
}

/// An engine with this number of output rows.
fn with_output_rows(sequences: u32, chunk: u32, output_rows: u32) -> (Engine, Watched) {
    let watched = Watched::default();
    let key = Key { sequences, output_rows, ..key() };
    let limits = EngineLimits { sequences, ..EngineLimits::new(CONTEXT, chunk) };
    (Engine::new(Box::new(Oracle::new(key, &[40, 40], &watched)), limits).unwrap(), watched)
}

#[test]
fn they_are_those_of_the_model_for_any_chunk_and_number_of_output_rows() {
    for (length, new) in [(1, 3), (2, 5), (17, 20), (150, 30), (CONTEXT as usize - 1, 1)] {
        let tokens = prompt(1, length);
        let expected = expected(&tokens, 3);
        for (chunk, output_rows) in [(1, 1), (7, 16), (64, 1), (64, 5), (64, 64), (256, 100)] {
            let (mut engine, watched) = with_output_rows(1, chunk, output_rows);
            let reply = reply(&mut engine, scored(&tokens, new, 3));
            assert_eq!(reply.prompt, expected, "{length} tokens, chunks of {chunk}, {output_rows} outputs");
            assert_eq!((reply.ids, reply.stop), (oracle::greedy(&tokens, new as usize), Some(Stop::Length)));
            assert!(watched.largest.get() as u32 <= chunk.min(output_rows));
        }
    }
}

#[test]
fn a_prompt_is_scored_whatever_the_prefix_cache_holds() {
    let (mut engine, watched) = engine(64);
    let tokens = prompt(2, 100);
    let plain = reply(&mut engine, request(&tokens, 10));
    let before = watched.rows.get();
    let cold = reply(&mut engine, scored(&tokens, 10, 2));
    assert_eq!((cold.prompt, &cold.ids), (expected(&tokens, 2), &plain.ids));
    assert_eq!((cold.stats.unwrap().cached, watched.rows.get() - before), (0, 109));
    // Its state is shared like that of others.
    assert_eq!(reply(&mut engine, request(&tokens, 10)).stats.unwrap().cached, 99);
    assert!(plain.prompt.is_empty(), "only a request that asks for them gets them");
}

#[test]
fn a_prompt_alone_ends_without_a_token() {
    for length in [1, 40, CONTEXT as usize] {
        let (mut engine, _) = engine(64);
        let tokens = prompt(3, length);
        let reply = reply(&mut engine, scored(&tokens, 0, 0));
        assert_eq!((reply.prompt, reply.stop), (expected(&tokens, 0), Some(Stop::Length)));
        assert!(reply.ids.is_empty() && reply.text.is_empty());
        assert_eq!(reply.stats.unwrap().prefill.tokens as usize, length);
    }
}

#[test]
fn neighbours_change_nothing_and_are_not_delayed() {
    let (mut engine, _) = with_output_rows(4, 64, 9);
    let replying = engine.submit(request(&prompt(4, 30), 80), Hooks::default()).unwrap();
    engine.step();
    let texts = [prompt(5, 200), prompt(6, 90), prompt(7, 120)];
    let asks = [scored(&texts[0], 5, 4), scored(&texts[1], 0, 20), request(&texts[2], 20)];
    let ids = asks.map(|ask| engine.submit(ask, Hooks::default()).unwrap());
    let mut replies: [Reply; 4] = Default::default();
    let mut steps = 0;
    while !engine.is_idle() {
        let events = engine.step().to_vec();
        steps += 1;
        if steps < 75 {
            assert!(events.iter().any(|event| event.request == replying), "each step advances the reply");
        }
        for event in events {
            replies[event.request.0 as usize].take(event);
        }
    }
    assert_eq!(replies[ids[0].0 as usize].prompt, expected(&texts[0], 4));
    assert_eq!(replies[ids[0].0 as usize].ids, oracle::greedy(&texts[0], 5));
    assert_eq!(replies[ids[1].0 as usize].prompt, expected(&texts[1], 20));
    assert_eq!(replies[ids[2].0 as usize].ids, oracle::greedy(&texts[2], 20));
    // 1 + 6 rows of a step score the first prompt; one that needs no output rows does not wait.
    assert!((200 / 6 - 5..60).contains(&(steps - 20)), "{steps} steps");
}

#[test]
fn a_prompt_that_is_suspended_continues_after_what_it_reported() {
    for (blocks, other) in [([30, 30], false), ([5, 7], true)] {
        let (mut engine, watched) = narrow(1, 64, &blocks);
        let tokens = prompt(8, 150);
        let id = engine.submit(scored(&tokens, 4, 1), Pieces::hooks()).unwrap();
        let mut whole = Reply::default();
        let mut take = |engine: &mut Engine| {
            let events = engine.step().to_vec();
            events.into_iter().filter(|event| event.request == id).for_each(|event| whole.take(event));
        };
        (0..3).for_each(|_| take(&mut engine));
        assert!(engine.suspend(id));
        if other {
            // It evicts the state of the suspended one.
            reply(&mut engine, request(&prompt(9, 300), 20));
        }
        let before = watched.rows.get();
        assert!(engine.resume(id));
        while !engine.is_idle() {
            take(&mut engine);
        }
        assert_eq!((whole.prompt, whole.ids), (expected(&tokens, 1), oracle::greedy(&tokens, 4)));
        let again = if other { 48 } else { 0 };
        assert_eq!(watched.rows.get() - before, 150 - 48 + 3 + again);
    }
}

#[test]
fn nan_fails_the_request_or_is_computed_again() {
    let (mut engine, watched) = engine(64);
    let tokens = prompt(10, 100);
    for at in [0, 5, 50, 98, 99] {
        watched.trouble.set(Some(Trouble::NaN(at)));
        let failed = reply(&mut engine, scored(&tokens, 3, 0));
        let failure = failed.failure.unwrap();
        assert_eq!(failure.kind(), ErrorKind::NotANumber);
        assert!(failure.to_string().contains(&format!("at position {at};")), "{failure}");
        let chunks = at as usize / 16 * 16;
        assert_eq!(failed.prompt, expected(&tokens, 0)[..if chunks > 0 { chunks + 1 } else { 0 }]);
        assert_eq!(reply(&mut engine, scored(&tokens, 3, 0)).prompt, expected(&tokens, 0));
        engine.forget().unwrap();
    }
    // NaN may come from the state that a suspended request continues from, so that is not used again.
    let id = engine.submit(scored(&tokens, 3, 2), Pieces::hooks()).unwrap();
    let events = engine.step().to_vec();
    assert!(engine.suspend(id) && engine.resume(id));
    watched.trouble.set(Some(Trouble::NaN(20)));
    let mut whole = Reply::default();
    events.into_iter().for_each(|event| whole.take(event));
    while !engine.is_idle() {
        engine.step().iter().for_each(|event| whole.take(event.clone()));
    }
    assert_eq!((whole.prompt, whole.ids), (expected(&tokens, 2), oracle::greedy(&tokens, 3)));
    assert_eq!(whole.stats.unwrap().requeued, 1);
}

/// A request that goes on from the state of a neighbour is computed again when that has NaN, though its
/// own rows were right and have been reported.
#[test]
fn nan_of_a_neighbour_reports_nothing_twice() {
    let (mut engine, watched) = narrow(2, 160, &[30, 30]);
    let tokens = prompt(13, 140);
    let id = engine.submit(scored(&tokens, 3, 0), Pieces::hooks()).unwrap();
    let mut whole = Reply::default();
    let mut take = |engine: &mut Engine| {
        let events = engine.step().to_vec();
        events.into_iter().filter(|event| event.request == id).for_each(|event| whole.take(event));
    };
    (0..2).for_each(|_| take(&mut engine));
    assert!(engine.suspend(id));
    engine.forget().unwrap();
    // Its state is not known to be right before its last chunk.
    let neighbour = [&tokens[..40], &prompt(14, 130)].concat();
    engine.submit(request(&neighbour, 3), Pieces::hooks()).unwrap();
    take(&mut engine);
    watched.trouble.set(Some(Trouble::NaN(165)));
    assert!(engine.resume(id));
    while !engine.is_idle() {
        take(&mut engine);
    }
    assert_eq!(watched.trouble.get(), None, "the neighbour had NaN");
    assert_eq!(whole.stats.unwrap().requeued, 1);
    assert_eq!((whole.prompt, whole.ids), (expected(&tokens, 0), oracle::greedy(&tokens, 3)));
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let (mut engine, _) = engine(64);
    let good = scored(&prompt(12, 30), 5, 20);
    let rows = EmbeddedRows { first: 3, rows: 1, values: vec![0.0; 2].into(), ..EmbeddedRows::default() };
    for (ask, part) in [
        (TokenRequest { prompt_logprobs: Some(21), ..good.clone() }, "at most 20 are allowed"),
        (TokenRequest { overflow: Overflow::Truncate, ..good.clone() }, "cannot be truncated"),
        (TokenRequest { given: vec![rows], ..good.clone() }, "has no log-probabilities of its own"),
        (TokenRequest { prompt_logprobs: None, max_new: Some(0), ..good.clone() }, "request at least 1"),
    ] {
        let error = engine.submit(ask, Hooks::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains(part), "{error}");
    }
    let long = scored(&prompt(12, CONTEXT as usize + 1), 0, 0);
    let error = engine.submit(long, Hooks::default()).unwrap_err();
    assert!(error.to_string().contains("its log-probabilities were requested"), "{error}");
    let sampling = Sampling { seed: 3, top_k: 20, ..Sampling::default() };
    let ask = TokenRequest { sampling, ..good };
    let plain = TokenRequest { prompt_logprobs: None, ..ask.clone() };
    assert_eq!(reply(&mut engine, ask).ids, reply(&mut engine, plain).ids);
}
