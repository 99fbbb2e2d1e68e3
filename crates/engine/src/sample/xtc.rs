//! XTC, "exclude top choices" (p-e-w, text-generation-webui pull request 6335, 2024).

use super::draw::uniform;
use super::logits::{candidates, highest, rank, rule_out, weight};

/// What is added to a seed, so that this choice and the draw of the token use other numbers.
const STREAM: u64 = 0x7874_635f_6368_6f69;

/// With a probability of `probability`, rules out all tokens of at least the probability
/// `threshold` but the least likely of them. The choice is number `n` of a stream of `seed`.
pub fn xtc(logits: &mut [f32], probability: f32, threshold: f32, seed: u64, n: u64) {
    if probability <= 0.0 || uniform(seed.wrapping_add(STREAM), n) >= f64::from(probability) {
        return;
    }
    let highest = highest(logits);
    let total: f64 = logits.iter().map(|logit| weight(*logit, highest)).sum();
    let mut ids = candidates(logits);
    ids.retain(|id| weight(logits[*id as usize], highest) / total >= f64::from(threshold));
    ids.sort_unstable_by(|a, b| rank(logits, *a, *b));
    ids.pop();
    rule_out(logits, &ids);
}
