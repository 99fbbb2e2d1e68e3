//! DRY: a penalty on tokens that would continue a repetition.
//!
//! p-e-w, "DRY: a modern repetition penalty that reliably prevents looping", text-generation-webui
//! pull request 5677 (2024). A token that followed an earlier copy of the last `k` tokens loses
//! `multiplier · base^(k − allowed_length)`, for the largest `k` of at least `allowed_length`.

use std::collections::BTreeMap;

use super::history::History;
use crate::sampling::Dry;

/// Subtracts the penalty from the logits of tokens that would continue a repetition. Copies are
/// looked for among the last [`Dry::range`] tokens of prompt and reply; a sequence breaker ends
/// them and is never penalized. Takes time in proportion to that range.
pub fn dry(logits: &mut [f32], history: History<'_>, dry: &Dry) {
    if dry.multiplier == 0.0 {
        return;
    }
    for (id, length) in continuations(history, dry) {
        let exponent = f64::from(length) - f64::from(dry.allowed_length);
        let penalty = f64::from(dry.multiplier) * f64::from(dry.base).powf(exponent);
        let logit = &mut logits[id as usize];
        // An infinite penalty is never subtracted from an infinite logit.
        *logit = (f64::from(*logit) - penalty.min(f64::from(f32::MAX))) as f32;
    }
}

/// The tokens that would continue a repetition, and the length of the longest copy that each
/// continues, where it is long enough.
fn continuations(history: History<'_>, dry: &Dry) -> BTreeMap<u32, u32> {
    let range = if dry.range == 0 { usize::MAX } else { dry.range as usize };
    let last = history.reply.iter().rev().chain(history.prompt.iter().rev()).take(range);
    // The youngest token comes first; behind a breaker nothing continues a copy.
    let tokens: Vec<u32> = last.copied().collect();
    let own = tokens.iter().position(|id| dry.breakers.contains(id)).unwrap_or(tokens.len());
    let mut found = BTreeMap::new();
    for (at, length) in (1..).zip(&common_prefixes(&tokens)[1.min(tokens.len())..]) {
        let (next, length) = (tokens[at - 1], (*length).min(own) as u32);
        if length >= dry.allowed_length && length > 0 && !dry.breakers.contains(&next) {
            let longest = found.entry(next).or_insert(length);
            *longest = length.max(*longest);
        }
    }
    found
}

/// For each position, the number of tokens from there on that equal the first tokens (the Z
/// function; Gusfield 1997, "Algorithms on Strings, Trees, and Sequences", section 1.4).
fn common_prefixes(tokens: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; tokens.len()];
    let (mut start, mut end) = (0, 0);
    for at in 1..tokens.len() {
        if at < end {
            lengths[at] = lengths[at - start].min(end - at);
        }
        while tokens.get(at + lengths[at]).is_some_and(|id| *id == tokens[lengths[at]]) {
            lengths[at] += 1;
        }
        if at + lengths[at] > end {
            (start, end) = (at, at + lengths[at]);
        }
    }
    lengths
}
