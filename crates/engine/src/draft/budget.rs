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
    /// The last draft.
    open: Option<OpenDraft>,
}

/// A draft that is not known to be right.
#[derive(Debug)]
struct OpenDraft {
    /// The number of tokens before it.
    before: usize,
    tokens: Vec<u32>,
    /// The time of its step, in steps without a draft.
    time: f32,
    /// The time of a rejection after all of its tokens but one.
    rejection: f32,
}

/// The time of a step with a draft of `count` tokens, in steps without a draft. It includes the time to draft them: `cost`
/// steps of one row for each.
fn time(query: &DraftQuery<'_>, cost: f32, count: u32) -> f32 {
    let rows = query.other_rows.saturating_add(1);
    let drafted = query.costs.of_rows(rows.saturating_add(count)) + count as f32 * cost;
    drafted / query.costs.of_rows(rows)
}

/// The most that a rejected draft of `count` tokens adds to the next step, in steps without a draft.
fn rejection(query: &DraftQuery<'_>, count: u32) -> f32 {
    let rows = query.other_rows.saturating_add(1);
    query.costs.of_rejection(query.other_rows, count.saturating_sub(1)) / query.costs.of_rows(rows)
}

impl DraftBudget {
    /// Records what the last draft yielded, now that there are these tokens. Steps without a draft may have followed it.
    pub fn settle(&mut self, tokens: &[u32]) {
        let known = tokens.len();
        if let Some(open) = self.open.take().filter(|open| open.before < known) {
            let chosen = open.tokens.iter().zip(&tokens[open.before..]);
            let accepted = chosen.take_while(|(drafted, chosen)| drafted == chosen).count();
            let rejection = if accepted < open.tokens.len() { open.rejection } else { 0.0 };
            self.losses.push_back((open.before, open.time + rejection - (accepted + 1) as f32));
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
        let worst = |count: u32| time(query, cost, count) + rejection(query, count);
        let fits = |count: &u32| most + worst(*count) - 1.0 <= MOST_LOST;
        (1..=max).take_while(fits).last().unwrap_or(0)
    }

    /// Records a draft of these tokens, which is to be run.
    pub fn open(&mut self, query: &DraftQuery<'_>, cost: f32, tokens: &[u32]) {
        let count = tokens.len() as u32;
        self.open = (count > 0).then(|| OpenDraft {
            before: query.tokens.len(),
            tokens: tokens.to_vec(),
            time: time(query, cost, count),
            rejection: rejection(query, count),
        });
    }
}
