//! Temperature, fixed or dynamic, and greedy choice as its limit at 0.

use super::logits::{first, highest, rule_out, weight};

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

/// Divides the logits by a temperature between `temperature − range`, at least 0, and `temperature +
/// range`: the more, the higher the entropy of the distribution (llama.cpp, `dynatemp`). It is
/// `(H / ln n)^exponent` of the way, for the entropy `H` of `n` tokens.
pub fn dynamic_temperature(logits: &mut [f32], temperature: f32, range: f32, exponent: f32) {
    if range <= 0.0 || temperature == 0.0 {
        return self::temperature(logits, temperature);
    }
    let highest = highest(logits);
    let weights = || logits.iter().map(|logit| weight(*logit, highest)).filter(|weight| *weight > 0.0);
    let (total, count) = (weights().sum::<f64>(), weights().count());
    let entropy: f64 = weights().map(|weight| weight / total * (total.ln() - weight.ln())).sum();
    let share = if count > 1 { (entropy / (count as f64).ln()).clamp(0.0, 1.0) } else { 0.0 };
    // Of an infinite temperature, no share of 0 would be a number.
    let (low, high) = ((temperature - range).max(0.0), (temperature + range).min(f32::MAX));
    let chosen = f64::from(low) + f64::from(high - low) * share.powf(f64::from(exponent));
    self::temperature(logits, chosen as f32);
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

/// As [`argmax`], among the tokens whose entry in `allowed`, one for each logit, is true. Copies no
/// row: it reads each logit and each entry once.
pub fn argmax_allowed(logits: &[f32], allowed: &[bool]) -> Option<u32> {
    /// The logits that are masked at once, in the L1 cache.
    const RUN: usize = 256;
    let mut best = (f32::NEG_INFINITY, None);
    for (run, (logits, allowed)) in logits.chunks(RUN).zip(allowed.chunks(RUN)).enumerate() {
        let mut masked = [f32::NEG_INFINITY; RUN];
        for ((masked, logit), allowed) in masked.iter_mut().zip(logits).zip(allowed) {
            *masked = if *allowed { *logit } else { f32::NEG_INFINITY };
        }
        let top = highest(&masked);
        if top > best.0 {
            best = (top, first(&masked, |logit| logit == top).map(|at| (run * RUN + at) as u32));
        }
    }
    best.1
}
