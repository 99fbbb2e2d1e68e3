//! The number of tokens to draft: the one that promises the most tokens per time.

use crate::step_costs::StepCosts;

/// The part of a count that stays at the next trial; earlier trials count less and less.
const KEPT: f32 = 15.0 / 16.0;

/// The number of trials that the first estimate stands for.
const PRIOR_TRIALS: f32 = 2.0;

/// The share of drafted tokens that the reply accepted, mostly of the last 16.
#[derive(Clone, Copy, Debug)]
pub struct AcceptanceRate {
    accepted: f32,
    tried: f32,
}

impl AcceptanceRate {
    /// Returns a rate that begins with this estimate.
    pub fn new(share: f32) -> AcceptanceRate {
        AcceptanceRate { accepted: share * PRIOR_TRIALS, tried: PRIOR_TRIALS }
    }

    /// Counts the tokens of a guess up to the first one that the reply does not have.
    pub fn count(&mut self, guess: &[u32], reply: &[u32]) {
        for (guessed, chosen) in guess.iter().zip(reply) {
            let is_accepted = guessed == chosen;
            self.accepted = self.accepted * KEPT + f32::from(u8::from(is_accepted));
            self.tried = self.tried * KEPT + 1.0;
            if !is_accepted {
                break;
            }
        }
    }

    /// The share.
    pub fn share(&self) -> f32 {
        self.accepted / self.tried
    }

    /// Returns the number of tokens to draft, at most `max`, for the most tokens per time; 0 if any
    /// draft would be slower than none. To draft a token takes the time of `cost` steps of one row.
    ///
    /// If each token is accepted with probability p, n drafted tokens yield 1 + p + … + pⁿ tokens in
    /// the time of a step with n more rows and of n drafted tokens: Leviathan, Kalman and Matias, "Fast Inference
    /// from Transformers via Speculative Decoding", ICML 2023, theorem 3.8, with a table of times instead of one.
    /// Each of `other_rows` rows of the same step adds a token.
    pub fn best_length(&self, costs: &StepCosts, cost: f32, other_rows: u32, max: u32) -> u32 {
        let (share, others) = (self.share(), other_rows as f32);
        let first = other_rows.saturating_add(1);
        let (mut best, mut length) = ((others + 1.0) / costs.of_rows(first), 0);
        let (mut reached, mut tokens) = (1.0, 1.0);
        for drafted in 1..=max {
            reached *= share;
            tokens += reached;
            let time = costs.of_rows(first.saturating_add(drafted)) + drafted as f32 * cost;
            let time = time + (1.0 - reached) * costs.of_rejection(other_rows, tokens as u32 - 1);
            let speed = (others + tokens) / time;
            if speed > best {
                (best, length) = (speed, drafted);
            }
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate after `trials` single tokens; every `every`-th one is wrong.
    fn after(trials: usize, every: usize) -> AcceptanceRate {
        let mut rate = AcceptanceRate::new(0.5);
        (0..trials).for_each(|trial| rate.count(&[7], &[7 + u32::from(trial % every == 0)]));
        rate
    }

    #[test]
    fn the_length_follows_the_acceptance() {
        let costs = StepCosts::default();
        let lengths = [usize::MAX, 8, 4, 2, 1].map(|every| after(64, every).best_length(&costs, 0.0, 0, 15));
        assert_eq!((lengths[0], lengths[4]), (15, 0), "{lengths:?}");
        assert!(lengths.is_sorted_by(|longer, shorter| longer > shorter), "{lengths:?}");
        assert_eq!(after(64, 4).best_length(&costs, 0.875, 0, 15), 0, "a row that costs a step never pays");
        let beside = [0, 1, 7, 63].map(|others| after(64, 4).best_length(&costs, 0.0, others, 15));
        assert!(beside.is_sorted_by(|fewer, more| fewer >= more) && beside[3] == 0, "{beside:?}");
        assert_eq!(after(64, usize::MAX).best_length(&costs, 0.0, 7, 15), 15);
    }

    #[test]
    fn a_guess_counts_up_to_its_first_wrong_token() {
        let mut rate = AcceptanceRate::new(0.5);
        rate.count(&[1, 2, 3, 4], &[1, 9, 3, 4]);
        assert!((rate.tried - (2.0 * KEPT * KEPT + KEPT + 1.0)).abs() < 1e-5);
        rate.count(&[1, 2], &[]);
        assert!((rate.accepted - (KEPT * KEPT + KEPT)).abs() < 1e-5);
    }
}
