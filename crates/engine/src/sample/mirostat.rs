//! Mirostat 2 (Basu et al. 2020, arXiv 2007.14966, algorithm 2): keeps the surprise of the reply's
//! tokens near a target.

use super::logits::{highest, rule_out, weight};
use crate::Sampling;

/// What a sampler keeps from one token of a reply to the next. It follows from the request and
/// the chosen tokens alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplerState {
    /// The largest surprise in bits that Mirostat allows; twice the target at first.
    limit: Option<f64>,
}

impl SamplerState {
    /// Rules out tokens whose surprise exceeds the limit; keeps at least the most likely ones.
    pub(super) fn rule_out(&self, logits: &mut [f32], sampling: &Sampling) {
        if sampling.mirostat_tau <= 0.0 {
            return;
        }
        let limit = self.limit.unwrap_or(2.0 * f64::from(sampling.mirostat_tau));
        let surprise = surprises(logits);
        let highest = highest(logits);
        let outside: Vec<u32> = (0..)
            .zip(&*logits)
            .filter(|(_, logit)| **logit < highest && surprise(**logit) > limit)
            .map(|(id, _)| id)
            .collect();
        drop(surprise);
        rule_out(logits, &outside);
    }

    /// Moves the limit by the surprise of the chosen token among those that were left.
    pub(super) fn learn(&mut self, logits: &[f32], chosen: u32, sampling: &Sampling) {
        if sampling.mirostat_tau <= 0.0 {
            return;
        }
        let (target, rate) = (f64::from(sampling.mirostat_tau), f64::from(sampling.mirostat_eta));
        let limit = self.limit.unwrap_or(2.0 * target);
        let error = surprises(logits)(logits[chosen as usize]) - target;
        self.limit = Some(limit - rate * error);
    }
}

/// Returns the function from a logit to its token's surprise in bits.
fn surprises(logits: &[f32]) -> impl Fn(f32) -> f64 + use<> {
    let highest = highest(logits);
    let total: f64 = logits.iter().map(|logit| weight(*logit, highest)).sum();
    move |logit| total.log2() - weight(logit, highest).log2()
}
