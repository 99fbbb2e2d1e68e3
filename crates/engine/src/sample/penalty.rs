//! Penalties on tokens that occurred before.
//!
//! The arithmetic is in `f64`, in which no product of a penalty and a count overflows;
//! so an infinite penalty is never subtracted from an infinite logit.

use std::collections::BTreeMap;

use super::history::History;

/// Divides the positive and multiplies the negative logits of every token of the prompt
/// and the reply by `penalty`, once per token (CTRL, Keskar et al. 2019, arXiv
/// 1909.05858, section 4.1; negative logits as in transformers).
pub fn repetition(logits: &mut [f32], history: History<'_>, penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    for id in counts(history.prompt.iter().chain(history.reply)).into_keys() {
        let logit = &mut logits[id as usize];
        let (value, penalty) = (f64::from(*logit), f64::from(penalty));
        *logit = (if value < 0.0 { value * penalty } else { value / penalty }) as f32;
    }
}

/// Subtracts `penalty` from a token's logit once per occurrence in the reply
/// (`frequency_penalty` of the OpenAI API).
pub fn frequency(logits: &mut [f32], reply: &[u32], penalty: f32) {
    if penalty != 0.0 {
        subtract(logits, reply, |count| f64::from(penalty) * f64::from(count));
    }
}

/// Subtracts `penalty` from the logit of each token that occurs in the reply
/// (`presence_penalty` of the OpenAI API).
pub fn presence(logits: &mut [f32], reply: &[u32], penalty: f32) {
    if penalty != 0.0 {
        subtract(logits, reply, |_| f64::from(penalty));
    }
}

fn subtract(logits: &mut [f32], reply: &[u32], penalty: impl Fn(u32) -> f64) {
    for (id, count) in counts(reply) {
        let logit = &mut logits[id as usize];
        *logit = (f64::from(*logit) - penalty(count)) as f32;
    }
}

/// Counts the occurrences of each token.
fn counts<'a>(tokens: impl IntoIterator<Item = &'a u32>) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for id in tokens {
        *counts.entry(*id).or_insert(0) += 1;
    }
    counts
}
