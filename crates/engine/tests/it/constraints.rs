//! Constraints: hooks that rule out tokens.

use std::sync::{Arc, Mutex};

use girih_engine::Stops;
use girih_engine::{
    Constraint, DraftQuery, Drafter, Error, ErrorKind, EventKind, Hooks, Result, Sampling, Stop, TokenRequest,
};

use crate::oracle::{self, Pieces, Reply, VOCABULARY, batched, engine, finish, prompt, request};

/// Allows a multiple of 3 at even places, other tokens at odd ones; complete after
/// `length` tokens.
struct Pattern {
    length: usize,
    accepted: Arc<Mutex<Vec<u32>>>,
    /// The place at which a call fails.
    fails: Option<usize>,
}

impl Pattern {
    fn allows(place: usize, id: usize) -> bool {
        id.is_multiple_of(3) == place.is_multiple_of(2)
    }

    fn place(&self) -> usize {
        self.accepted.lock().unwrap().len()
    }
}

impl Constraint for Pattern {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        assert!(allowed.len() == VOCABULARY && allowed.iter().all(|allowed| *allowed));
        let place = self.place();
        (0..allowed.len()).for_each(|id| allowed[id] = Pattern::allows(place, id));
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        if self.fails == Some(self.place()) {
            return Err(Error::new("the grammar has no such token"));
        }
        self.accepted.lock().unwrap().push(id);
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.place() >= self.length
    }
}

fn pattern(length: usize, fails: Option<usize>) -> (Hooks, Arc<Mutex<Vec<u32>>>) {
    let accepted = Arc::default();
    let constraint = Pattern { length, accepted: Arc::clone(&accepted), fails };
    (Hooks { constraint: Some(Box::new(constraint)), ..Pieces::hooks() }, accepted)
}

fn run(request: &TokenRequest, hooks: Hooks) -> Reply {
    let (mut engine, _) = engine(64);
    let id = engine.submit(request.clone(), hooks).unwrap();
    finish(&mut engine, id)
}

/// The greedy reply under [`Pattern`], computed without an engine.
fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for place in 0..count {
        let logits = oracle::logits(&tokens);
        let allowed = (0..VOCABULARY).rev().filter(|id| Pattern::allows(place, *id));
        tokens.push(allowed.max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32);
    }
    tokens.split_off(prompt.len())
}

#[test]
fn a_constraint_rules_out_tokens_and_completes_the_reply() {
    let ask = request(&prompt(1, 90), 50);
    let (hooks, accepted) = pattern(20, None);
    let reply = run(&ask, hooks);
    assert_eq!((&reply.ids, reply.stop), (&expected(&ask.tokens, 20), Some(Stop::Complete)));
    assert_eq!(*accepted.lock().unwrap(), reply.ids);
    assert_eq!(reply.text, Pieces::text(&reply.ids));
    let reply = run(&ask, pattern(100, None).0);
    assert_eq!((reply.ids, reply.stop), (expected(&ask.tokens, 50), Some(Stop::Length)));
}

#[test]
fn a_constraint_learns_of_the_stop_token() {
    let whole = expected(&prompt(2, 30), 20);
    let stops = Stops { tokens: vec![whole[11]], strings: vec![] };
    let (hooks, accepted) = pattern(100, None);
    let reply = run(&TokenRequest { stops, ..request(&prompt(2, 30), 20) }, hooks);
    let first = whole.iter().position(|id| *id == whole[11]).unwrap();
    assert_eq!((reply.ids.as_slice(), reply.stop), (&whole[..first], Some(Stop::Token(whole[11]))));
    assert_eq!(*accepted.lock().unwrap(), whole[..=first]);
}

#[test]
fn no_sampler_restores_a_token_and_log_probabilities_ignore_the_mask() {
    // Token 4 is not allowed at the first place.
    let bias = vec![(4, f32::INFINITY), (9, f32::INFINITY)];
    for temperature in [0.0, 0.7] {
        let sampling = Sampling { temperature, bias: bias.clone(), ..Sampling::default() };
        let ask = TokenRequest { sampling, logprobs: Some(3), ..request(&prompt(3, 40), 1) };
        let (mut engine, _) = engine(64);
        engine.submit(ask.clone(), pattern(100, None).0).unwrap();
        let event = engine.step()[1].kind.clone();
        let EventKind::Token { id, logprobs, .. } = event else { panic!("{event:?}") };
        assert_eq!(id, 9);
        let logits = oracle::logits(&ask.tokens);
        assert_eq!(logprobs, Some(girih_engine::sample::logprobs(&logits, 9, 3)));
    }
}

/// Proposes the pattern's reply, with an error at times.
struct Guess(Vec<u32>, usize);

impl Drafter for Guess {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        let place = tokens.len() - self.1;
        let rest = self.0[place..].iter().take(max as usize).enumerate();
        rest.map(|(index, id)| if (place + index) % 5 == 4 { 1 } else { *id }).collect()
    }
}

#[test]
fn a_drafter_works_together_with_a_constraint() {
    for sampled in [false, true] {
        let sampling = if sampled { Sampling { seed: 3, ..Sampling::default() } } else { Sampling::greedy() };
        let ask = TokenRequest { sampling, ..request(&prompt(4, 50), 60) };
        let (hooks, accepted) = pattern(40, None);
        let alone = run(&ask, hooks);
        assert_eq!(*accepted.lock().unwrap(), alone.ids);
        let (hooks, accepted) = pattern(40, None);
        let drafter = Some(Box::new(Guess(alone.ids.clone(), 50)) as Box<dyn Drafter>);
        let drafted = run(&ask, Hooks { drafter, ..hooks });
        assert_eq!((&drafted.ids, &drafted.text, &drafted.stop), (&alone.ids, &alone.text, &alone.stop));
        assert_eq!(*accepted.lock().unwrap(), alone.ids, "it learns of each token once");
        assert!(drafted.stats.unwrap().accepted > 10);
    }
}

#[test]
fn a_failing_constraint_ends_its_own_request() {
    let (mut engine, _) = batched(2, 64);
    let asks = [request(&prompt(5, 40), 30), request(&prompt(6, 40), 30)];
    let failing = engine.submit(asks[0].clone(), pattern(100, Some(7)).0).unwrap();
    let other = engine.submit(asks[1].clone(), Pieces::hooks()).unwrap();
    let mut replies = [Reply::default(), Reply::default()];
    while !engine.is_idle() {
        engine.step().iter().for_each(|event| replies[event.request.0 as usize].take(event.clone()));
    }
    assert_eq!((failing.0, other.0), (0, 1));
    assert_eq!(replies[0].failure, Some(Error::new("the grammar has no such token")));
    assert_eq!(replies[0].failure.as_ref().unwrap().kind(), ErrorKind::Other);
    assert_eq!(replies[0].ids, expected(&asks[0].tokens, 7));
    assert_eq!(replies[1].ids, oracle::greedy(&asks[1].tokens, 30));
}
