//! Whether a drafter that costs time drafts, and how many tokens.

use std::time::Duration;

use super::acceptance::AcceptanceRate;
use super::budget::DraftBudget;
use crate::DraftQuery;

/// The number of tokens after which a drafter that stopped drafts one token as a trial; it doubles
/// with each trial that fails.
const TRIAL_DISTANCE: usize = 32;

/// The number of trials after which a drafter stops for good if all failed. Before a trial, the
/// drafter runs the tokens that it missed, which takes time.
const MAX_TRIALS: u32 = 3;

/// The first estimate of the acceptance rate.
const FIRST_RATE: f32 = 0.8;

/// The drafts of one request so far, as far as they tell whether to go on.
#[derive(Debug)]
pub(super) struct Trials {
    rate: AcceptanceRate,
    budget: DraftBudget,
    /// The tokens of the last draft, and the number of tokens before it.
    drafted: (usize, Vec<u32>),
    /// The number of tokens at which a drafter that stopped drafts a token.
    next_trial: usize,
    /// The number of trials since a drafted token was accepted.
    failed: u32,
    /// What a drafted token took so far, in steps of one row; 0 before the first one.
    seen_cost: f32,
}

/// A draft to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedDraft {
    /// The number of tokens, at least 1.
    pub count: u32,
    /// Whether no draft promised to pay.
    pub is_trial: bool,
    /// What a drafted token is expected to take, in steps of one row.
    cost: f32,
}

/// The part of the seen cost that stays at the next draft.
const KEPT_COST: f32 = 0.75;

impl Trials {
    pub fn new() -> Trials {
        Trials {
            rate: AcceptanceRate::new(FIRST_RATE),
            budget: DraftBudget::default(),
            drafted: (0, Vec::new()),
            next_trial: 0,
            failed: 0,
            seen_cost: 0.0,
        }
    }

    /// Compares the last draft with the tokens that were chosen, and plans the next one, of at most `max` tokens that
    /// each take `cost` steps of one row to draft, or more if they did so before.
    pub fn plan(&mut self, query: &DraftQuery<'_>, cost: f32, max: u32) -> Option<PlannedDraft> {
        let cost = cost.max(self.seen_cost);
        let (position, guess) = std::mem::take(&mut self.drafted);
        let chosen = query.tokens.get(position..).unwrap_or_default();
        self.rate.count(&guess, chosen);
        if !guess.is_empty() && guess.first() == chosen.first() {
            self.failed = 0;
        }
        self.budget.settle(query.tokens);
        let most = self.budget.most(query, cost, max.min(query.max));
        let count = self.rate.best_length(query.costs, cost, query.other_rows, most);
        let is_trial = count == 0;
        let waits = is_trial && (query.tokens.len() < self.next_trial || self.is_over());
        (most > 0 && !waits).then_some(PlannedDraft { count: count.max(1), is_trial, cost })
    }

    /// Records a planned draft of these tokens, which were drafted in the time `spent`, without that of the tokens before
    /// them.
    pub fn record(&mut self, query: &DraftQuery<'_>, planned: PlannedDraft, draft: &[u32], spent: Duration) {
        let known = query.tokens.len();
        if let (Some(step), false) = (query.costs.one_row(), draft.is_empty()) {
            let seen = (spent.as_secs_f64() / step.as_secs_f64()) as f32 / draft.len() as f32;
            let kept = if self.seen_cost > 0.0 { KEPT_COST } else { 0.0 };
            self.seen_cost = kept * self.seen_cost + (1.0 - kept) * seen;
        }
        self.budget.open(query, planned.cost.max(self.seen_cost), draft);
        if planned.is_trial && !draft.is_empty() {
            self.next_trial = known + (TRIAL_DISTANCE << self.failed);
            self.failed += 1;
        }
        self.drafted = (known, draft.to_vec());
    }

    /// Whether all trials failed, so that no further draft is made.
    pub fn is_over(&self) -> bool {
        self.failed >= MAX_TRIALS
    }

    /// The share of the last drafted tokens that were accepted.
    pub fn acceptance(&self) -> f32 {
        self.rate.share()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use girih_tensor::Random;

    use super::*;
    use crate::{Sampling, StepCosts};

    /// Tables of times: of a model that reads its weights from memory, of a small one, and of one whose rows cost as
    /// much as steps.
    const TABLES: [[u64; 5]; 3] =
        [[100, 105, 115, 135, 190], [100, 120, 150, 230, 400], [100, 180, 330, 640, 1250]];

    fn costs(times: [u64; 5]) -> StepCosts {
        let times: Vec<_> = [1, 2, 4, 8, 16].into_iter().zip(times.map(Duration::from_micros)).collect();
        StepCosts::of(&times)
    }

    /// As [`costs`], of a model that carries values.
    fn repeating(times: [u64; 5]) -> StepCosts {
        costs(times).repeating(true)
    }

    /// The time after each of `count` tokens, in steps of one row, of a reply whose drafted token at a position is right
    /// with the probability that `share` gives for it.
    fn times(
        costs: &StepCosts,
        cost: f32,
        count: usize,
        seed: u64,
        share: impl Fn(usize) -> f32,
    ) -> Vec<f32> {
        let mut random = Random(seed);
        let is_right: Vec<bool> =
            (0..count + 64).map(|at| (random.below(1 << 20) as f32) < share(at) * (1 << 20) as f32).collect();
        let (sampling, mut trials) = (Sampling::greedy(), Trials::new());
        let (mut times, mut time, mut tokens, mut again) = (vec![0.0], 0.0, vec![0u32], 0);
        while times.len() <= count {
            let query = DraftQuery {
                tokens: &tokens,
                replied: 1,
                sampling: &sampling,
                max: 15,
                other_rows: 0,
                costs,
            };
            let mut drafted = Vec::new();
            if again == 0
                && let Some(planned) = trials.plan(&query, cost, 15)
            {
                // Token 1 is right.
                let guess = |at: usize| if is_right[tokens.len() + at] { 1 } else { 2 };
                drafted = (0..planned.count as usize).map(guess).collect();
                trials.record(&query, planned, &drafted, Duration::ZERO);
            }
            time += costs.of_rows(1 + again + drafted.len() as u32) + drafted.len() as f32 * cost;
            let right = drafted.iter().take_while(|guess| **guess == 1).count();
            again = if right < drafted.len() && costs.repeats() { right as u32 + 1 } else { 0 };
            (0..=right).for_each(|_| {
                tokens.push(1);
                times.push(time);
            });
        }
        times
    }

    /// The least share of the speed without drafts over 256 tokens.
    fn slowest(times: &[f32]) -> f32 {
        times.windows(257).map(|window| 256.0 / (window[256] - window[0])).fold(f32::INFINITY, f32::min)
    }

    #[test]
    fn over_any_256_tokens_drafts_are_never_three_percent_slower_than_none() {
        for (seed, table) in (0..).zip(TABLES.iter().cycle().take(60)) {
            let costs = if seed % 2 == 0 { costs(*table) } else { repeating(*table) };
            let shares: Vec<f32> = {
                let mut random = Random(seed + 1000);
                (0..64).map(|_| [0.0, 0.02, 0.3, 0.6, 0.9, 1.0][random.below(6)]).collect()
            };
            for cost in [0.0, 0.06, 0.3, 0.8] {
                let constant = shares[0];
                let slow = slowest(&times(&costs, cost, 3000, seed, |_| constant));
                assert!(slow >= 0.97, "{slow} at {constant}, cost {cost}, table {table:?}, seed {seed}");
                let phase = 40 + 37 * (seed as usize % 9);
                let slow = slowest(&times(&costs, cost, 3000, seed, |at| shares[at / phase % 64]));
                assert!(
                    slow >= 0.97,
                    "{slow} in phases of {phase}, cost {cost}, table {table:?}, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn drafts_that_are_mostly_right_pay() {
        let costs = costs(TABLES[0]);
        let speed = |share: f32| {
            let times = times(&costs, 0.06, 4000, 3, |_| share);
            (times.len() - 1) as f32 / times.last().unwrap()
        };
        let speeds = [0.5, 0.8, 0.95].map(speed);
        assert!(speeds[0] > 1.3 && speeds[1] > 2.1 && speeds[2] > 3.2, "{speeds:?}");
    }
}
