//! Log-probabilities for the caller: of the model, before any sampler.

use super::logits::{candidates, highest, rank, weight};

/// The natural logarithm of a token's probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub id: u32,
    /// Its log-probability.
    pub value: f64,
}

/// The log-probabilities that come with one token of the reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// That of the chosen token.
    pub chosen: Logprob,
    /// Those of the likeliest tokens, likeliest first.
    pub top: Vec<Logprob>,
}

/// The log-probabilities of `chosen` and of the `top` likeliest tokens.
pub fn logprobs(logits: &[f32], chosen: u32, top: u32) -> Logprobs {
    let highest = highest(logits);
    let total: f64 = logits.iter().map(|logit| weight(*logit, highest)).sum();
    let of = |id: u32| {
        let logit = logits[id as usize];
        let above = if logit == highest { 0.0 } else { f64::from(logit) - f64::from(highest) };
        Logprob { id, value: above - total.ln() }
    };
    let mut ids = candidates(logits);
    let top = (top as usize).min(ids.len());
    if top < ids.len() {
        ids.select_nth_unstable_by(top, |a, b| rank(logits, *a, *b));
        ids.truncate(top);
    }
    ids.sort_unstable_by(|a, b| rank(logits, *a, *b));
    Logprobs { chosen: of(chosen), top: ids.into_iter().map(of).collect() }
}
