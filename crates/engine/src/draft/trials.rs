//! Whether a drafter that costs time drafts, and how many tokens.

use super::acceptance::AcceptanceRate;
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
    /// The tokens of the last draft, and the number of tokens before it.
    drafted: (usize, Vec<u32>),
    /// The number of tokens at which a drafter that stopped drafts a token.
    next_trial: usize,
    /// The number of trials since a drafted token was accepted.
    failed: u32,
}

/// A draft to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedDraft {
    /// The number of tokens, at least 1.
    pub count: u32,
    /// Whether no draft promised to pay.
    pub is_trial: bool,
}

impl Trials {
    pub fn new() -> Trials {
        Trials { rate: AcceptanceRate::new(FIRST_RATE), drafted: (0, Vec::new()), next_trial: 0, failed: 0 }
    }

    /// Compares the last draft with the tokens that were chosen, and plans the next one, of at most `max` tokens that
    /// each take `cost` steps of one row to draft.
    pub fn plan(&mut self, query: &DraftQuery<'_>, cost: f32, max: u32) -> Option<PlannedDraft> {
        let (position, guess) = std::mem::take(&mut self.drafted);
        let chosen = query.tokens.get(position..).unwrap_or_default();
        self.rate.count(&guess, chosen);
        if !guess.is_empty() && guess.first() == chosen.first() {
            self.failed = 0;
        }
        let count = self.rate.best_length(query.costs, cost, query.other_rows, max.min(query.max));
        let is_trial = count == 0;
        let waits = is_trial && (query.tokens.len() < self.next_trial || self.is_over());
        (!waits).then_some(PlannedDraft { count: count.max(1), is_trial })
    }

    /// Records a planned draft of these tokens after `known` tokens.
    pub fn record(&mut self, known: usize, planned: PlannedDraft, draft: &[u32]) {
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
