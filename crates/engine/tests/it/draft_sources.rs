//! The drafters that the engine gives to requests: prompt lookup, and a draft model. Neither changes
//! a reply.

use std::sync::{Arc, Mutex};

use girih_engine::{
    DraftModel, DraftQuery, DraftSource, Engine, EngineLimits, Hooks, Overflow, Sampling, StepCosts, Tenant,
    TokenRequest, cache,
};
use girih_graph::Key;

use crate::oracle::{self, CONTEXT, Oracle, Reply, SPANS, Trouble, VOCABULARY, Watched, finish};
use crate::oracle::{prompt, replies, request};

const MAX: u32 = 7;

/// The sentences that a draft model told.
type Notes = Arc<Mutex<Vec<String>>>;

/// An engine for this number of sequences, with output rows for drafts.
fn engine(sequences: u32) -> Engine {
    let key = Key { sequences, output_rows: sequences * (1 + MAX), ..oracle::key() };
    let blocks = SPANS.map(|span| cache::blocks(span, &key));
    let limits = EngineLimits { sequences, ..EngineLimits::new(CONTEXT, 100) };
    Engine::new(Box::new(Oracle::new(key, &blocks, &Watched::default())), limits).unwrap()
}

/// An oracle that drafts for this number of sequences in chunks of 40 rows.
fn draft_model(sequences: u32, context: u32) -> (DraftSource, Watched, Notes) {
    draft_model_of_width(sequences, context, VOCABULARY)
}

/// As [`draft_model`], with a vocabulary of this number of tokens.
fn draft_model_of_width(sequences: u32, context: u32, width: usize) -> (DraftSource, Watched, Notes) {
    let (watched, notes) = (Watched::default(), Notes::default());
    let key = Key { sequences, context, output_rows: sequences, ..oracle::key() };
    let blocks = SPANS.map(|span| cache::blocks(span, &key));
    let limits = EngineLimits { sequences, ..EngineLimits::new(context, 40) };
    let told = Arc::clone(&notes);
    let note = move |sentence| told.lock().unwrap().push(sentence);
    let runner = Box::new(Oracle::new(key, &blocks, &watched).of_width(width));
    (DraftSource::model(DraftModel::new(runner, limits, 0.1, note).unwrap()), watched, notes)
}

/// Requests of all kinds: greedy, sampled, in a loop, and one whose context overflows.
fn requests(count: u64) -> Vec<TokenRequest> {
    let ask = |number: u64| {
        let tokens = prompt(70 + number % 3, 40 + 31 * number as usize);
        let sampling = match number % 4 {
            0 => Sampling::greedy(),
            1 => Sampling { seed: number, ..Sampling::default() },
            2 => Sampling {
                seed: number,
                temperature: 0.3,
                top_k: 3,
                bias: vec![(3, 9.0)],
                ..Sampling::default()
            },
            _ => Sampling { frequency_penalty: 0.5, ..Sampling::greedy() },
        };
        let overflow = if number.is_multiple_of(3) { Overflow::Truncate } else { Overflow::Error };
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
fn drafts_change_no_reply_alone_or_beside_others() {
    for count in [1, 4, 6] {
        let requests = requests(count);
        let expected: Vec<Reply> =
            requests.iter().flat_map(|ask| replies(&mut engine(1), std::slice::from_ref(ask))).collect();
        // The second draft model has state for two requests only.
        let sources = [
            DraftSource::PromptLookup,
            draft_model(count as u32, CONTEXT).0,
            draft_model(2, CONTEXT).0,
            draft_model(count as u32, 96).0,
        ];
        for (number, source) in sources.into_iter().enumerate() {
            let mut engine = engine(count as u32);
            engine.set_drafts(source, MAX);
            let drafted = replies(&mut engine, &requests);
            assert_eq!(said(&drafted), said(&expected), "source {number}, {count} requests");
            assert!(number == 0 || counts(&drafted).0 > 0, "source {number}, {count} requests");
        }
    }
}

#[test]
fn prompt_lookup_saves_steps_of_a_reply_that_repeats() {
    let bias = vec![(3, 100.0)];
    let ask =
        TokenRequest { sampling: Sampling { bias, ..Sampling::greedy() }, ..request(&prompt(1, 30), 200) };
    let mut drafting = engine(1);
    drafting.set_drafts(DraftSource::PromptLookup, MAX);
    let replies = replies(&mut drafting, &[ask]);
    assert_eq!(replies[0].ids, [3; 200]);
    let (drafted, accepted) = counts(&replies);
    let steps = 200 - accepted;
    assert!(steps < 200 / 5, "{steps} steps; {accepted} of {drafted} accepted");
}

#[test]
fn a_draft_model_with_the_same_distribution_is_always_right() {
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, seed: 5, presence_penalty: 0.3, ..Sampling::default() };
        let ask = TokenRequest { sampling, replied: 7, ..request(&prompt(2, 130), 120) };
        let mut drafting = engine(1);
        let (source, watched, _) = draft_model(1, CONTEXT);
        drafting.set_drafts(source, MAX);
        let replies = replies(&mut drafting, &[ask]);
        let (drafted, accepted) = counts(&replies);
        assert!(accepted == drafted && accepted > 90, "{accepted} of {drafted}");
        // Each token is run once.
        assert!(watched.rows.get() <= 130 + 120, "{} rows", watched.rows.get());
        // The prompt is run in chunks, one in each step of the engine.
        assert_eq!(watched.largest.get(), 40);
    }
}

#[test]
fn a_draft_model_that_fails_ends_drafts_but_no_reply() {
    let ask = request(&prompt(3, 60), 100);
    let others = requests(3);
    let expected: Vec<Reply> = [&[ask.clone()][..], &others]
        .concat()
        .iter()
        .flat_map(|ask| replies(&mut engine(1), std::slice::from_ref(ask)))
        .collect();
    for trouble in [Trouble::Device(90), Trouble::NaN(90), Trouble::State(5), Trouble::Device(10)] {
        let mut drafting = engine(4);
        let (source, watched, notes) = draft_model(4, CONTEXT);
        drafting.set_drafts(source, MAX);
        watched.trouble.set(Some(trouble));
        let drafted = replies(&mut drafting, &[&[ask.clone()][..], &others].concat());
        assert_eq!(said(&drafted), said(&expected), "{trouble:?}");
        let notes = notes.lock().unwrap();
        assert_eq!(notes.len(), 1, "{trouble:?}: {notes:?}");
        assert!(notes[0].starts_with("the draft model failed, so replies continue without drafts: "));
    }
}

/// The draft of a request that allows only a token which the draft model lacks is empty; others have drafts.
#[test]
fn a_request_that_allows_no_token_of_the_draft_model_ends_no_other_drafts() {
    let last = VOCABULARY as u32 - 1;
    let (source, _, notes) = draft_model_of_width(2, CONTEXT, last as usize);
    let bias = (0..last).map(|id| (id, f32::NEG_INFINITY)).collect();
    let narrow = Sampling { bias, ..Sampling::greedy() };
    let draft = |number: u64, sampling: &Sampling| {
        let tokens: Vec<u32> = prompt(number, 30).into_iter().map(|id| id % last).collect();
        let costs = &StepCosts::default();
        let query = DraftQuery { tokens: &tokens, replied: 1, sampling, max: MAX, other_rows: 0, costs };
        source.drafter(MAX, &Tenant::default(), true).draft(query)
    };
    assert_eq!(draft(20, &narrow), [0; 0]);
    assert!(!draft(21, &Sampling::greedy()).is_empty());
    assert_eq!(*notes.lock().unwrap(), [""; 0]);
}

#[test]
fn a_request_may_lower_the_maximum() {
    let mut drafting = engine(1);
    let (source, ..) = draft_model(1, CONTEXT);
    drafting.set_drafts(source, MAX);
    let ask = |draft_max| TokenRequest { draft_max, ..request(&prompt(4, 50), 60) };
    let drafted = |replies: Vec<Reply>| counts(&replies).0;
    assert_eq!(drafted(replies(&mut drafting, &[ask(Some(0))])), 0);
    assert!(drafted(replies(&mut drafting, &[ask(Some(1))])) <= 30);
    assert!(drafted(replies(&mut drafting, &[ask(Some(1000))])) > 40);
}

#[test]
fn a_cancelled_request_gives_its_state_in_the_draft_model_back() {
    let mut drafting = engine(2);
    let (source, watched, notes) = draft_model(2, CONTEXT);
    drafting.set_drafts(source, MAX);
    let mut rows = 0;
    for round in 0..12 {
        let id = drafting.submit(request(&prompt(round, 200), 90), Hooks::default()).unwrap();
        (0..10).for_each(|_| drop(drafting.step().to_vec()));
        drafting.cancel(id);
        finish(&mut drafting, id);
        assert!(watched.rows.get() > rows, "round {round} drafted");
        rows = watched.rows.get();
    }
    assert!(notes.lock().unwrap().is_empty());
}

#[test]
fn a_draft_model_shares_prefixes_within_a_tenant_only() {
    let mut drafting = engine(1);
    let (source, watched, _) = draft_model(1, CONTEXT);
    drafting.set_drafts(source, MAX);
    let mut rows = |name: &str| {
        let before = watched.rows.get();
        let ask = TokenRequest { tenant: Tenant::new(name), ..request(&prompt(5, 100), 30) };
        replies(&mut drafting, &[ask]);
        watched.rows.get() - before
    };
    let (first, again, other) = (rows("a"), rows("a"), rows("b"));
    assert!(again < 40 && first > 100 && other > 100, "{first}, {again} and {other} rows");
}

/// The probabilities of the token after `tokens` at temperature 1.
fn probabilities(tokens: &[u32]) -> Vec<f64> {
    let weights: Vec<f64> = oracle::logits(tokens).iter().map(|logit| f64::from(*logit).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// The third token of a reply comes from a drafted row if the second was drafted right.
#[test]
fn drafted_tokens_have_the_distribution_of_the_model() {
    const DRAWS: u32 = 5000;
    let prompt = prompt(6, 12);
    let after = |more: &[u32]| probabilities(&[&prompt[..], more].concat());
    let mut expected = vec![0.0; VOCABULARY];
    for (first, share) in (0..).zip(after(&[])) {
        for (second, part) in (0..).zip(after(&[first])) {
            let third = after(&[first, second]);
            expected.iter_mut().zip(third).for_each(|(sum, third)| *sum += share * part * third);
        }
    }
    let mut drafting = engine(1);
    let (source, ..) = draft_model(1, CONTEXT);
    drafting.set_drafts(source, MAX);
    let (mut counts, mut accepted) = (vec![0.0; VOCABULARY], 0);
    for seed in 0..DRAWS.into() {
        let sampling = Sampling { seed, ..Sampling::default() };
        let replies = replies(&mut drafting, &[TokenRequest { sampling, ..request(&prompt, 4) }]);
        counts[replies[0].ids[2] as usize] += 1.0;
        accepted += self::counts(&replies).1;
    }
    assert!(accepted > DRAWS, "{accepted} drafted tokens were accepted");
    let excess = |(count, share): (&f64, &f64)| {
        (count - share * f64::from(DRAWS)).powi(2) / (share * f64::from(DRAWS))
    };
    let chi_square: f64 = counts.iter().zip(&expected).map(excess).sum();
    // Mean 39 and variance 78; it exceeds this with a probability of 10⁻⁴.
    assert!(chi_square < 80.0, "{chi_square}");
}

#[test]
fn a_draft_model_that_is_always_wrong_is_soon_left_alone() {
    let mut drafting = engine(1);
    let (source, watched, _) = draft_model(1, CONTEXT);
    watched.salt.set(1);
    drafting.set_drafts(source, MAX);
    let replies = replies(&mut drafting, &[request(&prompt(8, 20), 290)]);
    let (drafted, accepted) = counts(&replies);
    // A guess among 40 tokens may be right.
    assert!(accepted < 5 && (3..40).contains(&drafted), "{accepted} of {drafted}");
    assert!(watched.rows.get() < 300, "{} rows", watched.rows.get());
}
