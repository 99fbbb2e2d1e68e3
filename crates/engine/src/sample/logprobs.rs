//! Log-probabilities for the caller: those of the model, before any sampler.

use super::logits::{candidates, highest, rank, weight};

/// The natural logarithm of a token's probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub id: u32,
    /// Its log-probability in nats.
    pub value: f64,
}

/// The log-probabilities reported with one token of the reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The chosen token.
    pub chosen: Logprob,
    /// The most likely tokens, the most likely first.
    pub top: Vec<Logprob>,
}

/// Returns the log-probabilities of `chosen` and of the `top` most likely tokens.
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
