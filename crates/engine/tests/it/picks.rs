//! Tokens chosen from the largest logits are those that the samplers choose from the row.

use girih_engine::sample::{History, PickQuery, pick, pick_from};
use girih_engine::{Dry, Hooks, Sampling, TokenRequest};
use girih_graph::Picks;
use girih_tensor::Random;

use crate::oracle::{self, VOCABULARY, Watched, batched, engine, prompt, reply, request};

/// Logits with many ties, near ties, infinities and zeros of both signs.
fn adversarial(random: &mut Random) -> Vec<f32> {
    let kind = random.below(6);
    let base = random.number() * 8.0;
    let logit = |random: &mut Random| match (kind, random.below(8)) {
        (5, part) if part < 7 => f32::NEG_INFINITY,
        (_, 0) => base,
        (0, _) => random.number() * 4.0,
        (1, _) => (random.number() * 3.0).round(),
        // Numbers so close that a temperature makes them equal.
        (2, _) => f32::from_bits((base.abs() + 1.0).to_bits() + random.below(6) as u32),
        (3, 1) => f32::NEG_INFINITY,
        (3, _) => [0.0, -0.0, 1.0][random.below(3)],
        (_, 1) => f32::INFINITY,
        _ => 1e30 * random.number(),
    };
    (0..VOCABULARY).map(|_| logit(random)).collect()
}

fn settings(random: &mut Random) -> Sampling {
    let mut sampling = Sampling {
        temperature: [0.0, 0.3, 1.0, 3.0, 1e-6, 1e7][random.below(6)],
        top_k: random.below(9) as u32,
        top_p: [1.0, 0.9, 0.2][random.below(3)],
        min_p: [0.0, 0.1][random.below(2)],
        typical_p: [1.0, 0.5][random.below(2)],
        seed: random.below(1000) as u64,
        ..Sampling::default()
    };
    if random.below(2) == 0 {
        let bias = |random: &mut Random| [f32::NEG_INFINITY, f32::INFINITY, 2.0, -2.0][random.below(4)];
        sampling.bias =
            (0..1 + random.below(3)).map(|_| (random.below(VOCABULARY) as u32, bias(random))).collect();
    }
    if random.below(2) == 0 {
        sampling.repetition_penalty = [1.3, 0.5][random.below(2)];
        sampling.presence_penalty = [0.0, 0.5, -1.0][random.below(3)];
        sampling.frequency_penalty = [0.0, 0.25][random.below(2)];
        sampling.penalty_range = random.below(6) as u32;
    }
    sampling
}

#[test]
fn picks_choose_what_the_samplers_choose() {
    let mut random = Random(5);
    let (mut chosen, mut whole, mut refused) = (0, 0, 0);
    for round in 0..20_000 {
        let (mut logits, sampling) = (adversarial(&mut random), settings(&mut random));
        if round % 50 == 0 {
            logits.fill(f32::NEG_INFINITY);
        }
        let tokens: Vec<u32> = (0..random.below(6)).map(|_| random.below(VOCABULARY) as u32).collect();
        let (prompt, reply) = tokens.split_at(random.below(tokens.len() + 1));
        let history = History { prompt, reply };
        let Some(query) = PickQuery::of(&sampling, history, 24) else { continue };
        assert!(query.top <= 24);
        let picks = Picks::of(&logits, query.top, &query.asked);
        let expected = pick(&logits, &sampling, history);
        match (pick_from(&picks, &query, &sampling, history), expected) {
            (Ok(Some(id)), Ok(expected)) => {
                assert_eq!(id, expected, "round {round}: {sampling:?}, {logits:?}, {tokens:?}");
                chosen += 1;
            }
            (Ok(None), _) => whole += 1,
            (Err(error), Err(expected)) => {
                assert_eq!(error, expected);
                refused += 1;
            }
            (found, expected) => panic!("round {round}: {found:?} instead of {expected:?}"),
        }
    }
    assert!(chosen > 8000 && whole > 50 && refused > 0, "{chosen} chosen, {whole} rows, {refused} refused");
}

#[test]
fn a_choice_that_needs_the_whole_row_has_no_query() {
    let query = |sampling: Sampling| PickQuery::of(&sampling, History::default(), 16);
    assert_eq!(query(Sampling::greedy()), Some(PickQuery { top: 1, asked: vec![] }));
    assert_eq!(query(Sampling { top_k: 5, ..Sampling::default() }).map(|query| query.top), Some(6));
    assert_eq!(query(Sampling::default()), None, "every token may be drawn");
    assert_eq!(query(Sampling { top_p: 0.5, ..Sampling::default() }), None);
    assert_eq!(query(Sampling { top_k: 16, ..Sampling::default() }), None, "more than the device picks");
    assert_eq!(PickQuery::of(&Sampling::greedy(), History::default(), 0), None, "no picks");
    let few = Sampling { top_k: 2, ..Sampling::default() };
    assert!(query(few.clone()).is_some());
    for whole in [
        Sampling { top_n_sigma: 1.0, ..few.clone() },
        Sampling { xtc_probability: 0.5, ..few.clone() },
        Sampling { dynatemp_range: 0.5, ..few.clone() },
        Sampling { mirostat_tau: 3.0, ..few.clone() },
        Sampling { dry: Dry { multiplier: 1.0, ..Dry::default() }, ..few },
    ] {
        assert_eq!(query(whole.clone()), None, "{whole:?} needs the row or the history");
    }
    let picks = Picks { has_nan: true, ..Picks::default() };
    let query = PickQuery { top: 1, asked: vec![] };
    assert_eq!(pick_from(&picks, &query, &Sampling::greedy(), History::default()), Ok(None));
}

/// Replies of an engine whose output offers picks, and the number of rows that it read.
fn replies(max_picks: usize, requests: &[TokenRequest]) -> (Vec<Vec<u32>>, usize) {
    let (mut engine, watched) = engine(64);
    watched.max_picks.set(max_picks);
    let ids = requests.iter().map(|request| reply(&mut engine, request.clone()).ids).collect();
    (ids, watched.whole_rows.get())
}

#[test]
fn an_engine_reads_rows_only_where_picks_do_not_suffice() {
    let ask = |sampling| TokenRequest { sampling, ..request(&prompt(3, 70), 40) };
    let greedy = ask(Sampling::greedy());
    let top = ask(Sampling { top_k: 8, temperature: 0.8, seed: 4, ..Sampling::default() });
    let penalised = ask(Sampling { bias: vec![(3, 1.5)], presence_penalty: 0.4, ..Sampling::greedy() });
    let all = ask(Sampling { seed: 9, ..Sampling::default() });
    for (request, rows) in [(&greedy, 0), (&top, 0), (&all, 40)] {
        let (expected, all_rows) = replies(0, std::slice::from_ref(request));
        assert_eq!(all_rows, 40);
        assert_eq!(replies(32, std::slice::from_ref(request)), (expected, rows));
    }
    // Each new token of the reply is one more to ask for.
    let (expected, _) = replies(0, std::slice::from_ref(&penalised));
    let (found, rows) = replies(12, std::slice::from_ref(&penalised));
    assert_eq!(found, expected);
    assert!(rows > 0 && rows < 40, "{rows} rows");
    let logprobs = TokenRequest { logprobs: Some(2), ..greedy };
    assert_eq!(replies(32, &[logprobs]).1, 40);
}

#[test]
fn nan_behind_picks_fails_the_request_only() {
    let (mut engine, watched) = batched(2, 64);
    let watched: Watched = watched;
    watched.max_picks.set(16);
    watched.trouble.set(Some(oracle::Trouble::NaN(75)));
    let ids = [1, 2].map(|seed| engine.submit(request(&prompt(seed, 70), 20), Hooks::default()).unwrap());
    let mut replies = [oracle::Reply::default(), oracle::Reply::default()];
    while !engine.is_idle() {
        for event in engine.step() {
            let index = ids.iter().position(|id| *id == event.request).unwrap();
            replies[index].take(event.clone());
        }
    }
    let failed = replies.iter().filter(|reply| reply.failure.is_some()).count();
    assert_eq!(failed, 1);
    let failure = replies.iter().find_map(|reply| reply.failure.clone()).unwrap();
    assert!(failure.to_string().contains("the model produced NaN for token 7 at position"), "{failure}");
}
