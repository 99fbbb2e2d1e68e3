//! What drafts may cost: over any 256 tokens of a reply they take at most 3 % longer than no drafts, by the table of step
//! times.

use std::collections::VecDeque;

use crate::DraftQuery;

/// The number of tokens over which drafts may not lose more than [`MOST_LOST`].
const WINDOW: usize = 256;

/// The time that drafts may lose over [`WINDOW`] tokens, in steps without a draft: 256 / 0.97 − 256 is 7.9. A step that
/// begins or ends within the window may add a part of its own, so this is less.
const MOST_LOST: f32 = 6.5;

/// The time that the drafts of one request lost, step by step. A reply that gained time before gets no larger budget: its
/// reader would notice that the text slows down.
#[derive(Debug, Default)]
pub(super) struct DraftBudget {
    /// Of steps with a draft that began within the last [`WINDOW`] tokens: the number of tokens before each, and the
    /// steps without drafts that it lost; less than 0 if it gained time.
    losses: VecDeque<(usize, f32)>,
    /// The last draft: the number of tokens before it, and the time of its step in steps without a draft.
    open: Option<(usize, f32)>,
}

/// The time of a step with a draft of `count` tokens, each of which took `cost` steps of one row to draft, in steps
/// without a draft.
fn time(query: &DraftQuery<'_>, cost: f32, count: u32) -> f32 {
    let rows = query.other_rows.saturating_add(1);
    let drafted = query.costs.of_rows(rows.saturating_add(count)) + count as f32 * cost;
    drafted / query.costs.of_rows(rows)
}

impl DraftBudget {
    /// Records what the last draft yielded, now that there are `known` tokens.
    pub fn settle(&mut self, known: usize) {
        if let Some((before, time)) = self.open.take().filter(|(before, _)| *before < known) {
            self.losses.push_back((before, time - (known - before) as f32));
        }
        // Fewer tokens than before are a piece after truncation.
        self.losses.retain(|(before, _)| *before < known && *before + WINDOW >= known);
    }

    /// The maximum length of the next draft, at most `max`: the one that may be wrong in every token.
    pub fn most(&self, query: &DraftQuery<'_>, cost: f32, max: u32) -> u32 {
        // The largest loss of the last steps, of whatever number.
        let (mut sum, mut most) = (0.0f32, 0.0f32);
        for (_, loss) in self.losses.iter().rev() {
            sum += loss;
            most = most.max(sum);
        }
        let fits = |count: &u32| most + time(query, cost, *count) - 1.0 <= MOST_LOST;
        (1..=max).take_while(fits).last().unwrap_or(0)
    }

    /// Records a draft of `count` tokens that is to be run.
    pub fn open(&mut self, query: &DraftQuery<'_>, cost: f32, count: u32) {
        self.open = (count > 0).then(|| (query.tokens.len(), time(query, cost, count)));
    }
}
