//! Temperature, and greedy choice as its limit at 0.

use super::logits::{first, highest, rule_out};

/// Subtracts the highest logit from all and divides them by `temperature`; 0 is greedy.
///
/// The shift does not change the softmax. With it, a tiny temperature sends the other
/// logits towards −∞ instead of all of them to +∞.
pub fn temperature(logits: &mut [f32], temperature: f32) {
    if temperature == 1.0 {
        return;
    }
    if temperature == 0.0 {
        return greedy(logits);
    }
    let highest = highest(logits);
    for logit in logits.iter_mut().filter(|logit| **logit > f32::NEG_INFINITY) {
        let below = if *logit == highest { 0.0 } else { f64::from(*logit) - f64::from(highest) };
        *logit = (below / f64::from(temperature)) as f32;
    }
}

/// Rules out all tokens but the most likely one; if several are equally likely, the
/// lowest id remains.
pub fn greedy(logits: &mut [f32]) {
    let highest = highest(logits);
    let first = logits.iter().position(|logit| *logit == highest);
    let others: Vec<u32> = (0..logits.len() as u32).filter(|id| Some(*id as usize) != first).collect();
    rule_out(logits, &others);
}

/// Returns the only token that [`greedy`] leaves, so that no random number is needed;
/// `None` if every token is ruled out.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let highest = highest(logits);
    let found = first(logits, |logit| logit == highest)?;
    (highest > f32::NEG_INFINITY).then_some(found as u32)
}
