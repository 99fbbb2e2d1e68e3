//! Filters: each keeps the most likely tokens, and at least one.

use super::logits::{candidates, highest, rank, rule_out, weight};

/// Keeps the `k` most likely tokens; 0 keeps all.
pub fn top_k(logits: &mut [f32], k: u32) {
    let mut ids = candidates(logits);
    let k = k as usize;
    if k == 0 || k >= ids.len() {
        return;
    }
    ids.select_nth_unstable_by(k, |a, b| rank(logits, *a, *b));
    rule_out(logits, &ids[k..]);
}

/// Keeps the smallest set of most likely tokens whose cumulative probability reaches `p`
/// (nucleus sampling, Holtzman et al. 2019, arXiv 1904.09751).
pub fn top_p(logits: &mut [f32], p: f32) {
    if p >= 1.0 {
        return;
    }
    let (highest, ids) = (highest(logits), candidates(logits));
    let weight = |id: u32| weight(logits[id as usize], highest);
    let total: f64 = ids.iter().map(|id| weight(*id)).sum();
    // Tokens with a probability below (1 − p) / n add up to less than 1 − p, so none of
    // them is needed for the nucleus. This avoids sorting the whole vocabulary.
    let least = total * (1.0 - f64::from(p)) / ids.len() as f64;
    let (mut nucleus, mut outside): (Vec<u32>, Vec<u32>) = ids.iter().partition(|id| weight(**id) >= least);
    nucleus.sort_unstable_by(|a, b| rank(logits, *a, *b));
    let mut sum = 0.0;
    let reached = nucleus.iter().position(|id| {
        sum += weight(*id);
        sum >= total * f64::from(p)
    });
    let keep = reached.map_or(nucleus.len(), |last| last + 1);
    outside.extend_from_slice(&nucleus[keep..]);
    rule_out(logits, &outside);
}

/// Keeps the tokens at least `p` times as likely as the most likely one
/// (Nguyen et al. 2024, arXiv 2407.01082).
pub fn min_p(logits: &mut [f32], p: f32) {
    if p <= 0.0 {
        return;
    }
    let highest = highest(logits);
    for logit in logits.iter_mut().filter(|logit| weight(**logit, highest) < f64::from(p)) {
        *logit = f32::NEG_INFINITY;
    }
}
