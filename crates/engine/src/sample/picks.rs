//! Choosing a token from the largest logits only, which a device hands out more cheaply than a
//! row. The token is the one that [`pick`](super::pick) chooses from the row.

use std::collections::{BTreeMap, BTreeSet};

use girih_graph::Picks;

use super::draw::{draw, uniform};
use super::history::History;
use super::pick::{SAMPLERS, none_left};
use crate::{Result, Sampling};

/// The number of samplers of [`SAMPLERS`] up to the temperature; the others are filters.
const BEFORE_FILTERS: usize = 7;

/// What a device is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickQuery {
    /// The number of largest logits.
    pub top: usize,
    /// Further ids: those whose logits a bias or a penalty changes, in ascending order.
    pub asked: Vec<u32>,
}

impl PickQuery {
    /// The query for a choice with these settings; `None` if the whole row is needed, or more
    /// than `max` logits.
    ///
    /// A greedy choice needs the largest logit that nothing changes, and `top_k` the `k`
    /// largest. Among the largest, each changed logit may hide one. One more logit bounds
    /// those that were not picked.
    pub fn of(sampling: &Sampling, history: History<'_>, max: usize) -> Option<PickQuery> {
        let largest = match (sampling.temperature == 0.0, sampling.top_k as usize) {
            (true, _) => 0,
            (false, 0) => return None,
            (false, k) => k,
        };
        if largest >= max || sampling.needs_row() {
            return None;
        }
        let history = history.last(sampling.penalty_range);
        let mut asked: BTreeSet<u32> = sampling.bias.iter().map(|(id, _)| *id).collect();
        if sampling.repetition_penalty != 1.0 {
            asked.extend(history.prompt);
        }
        if sampling.has_penalties() {
            asked.extend(history.reply);
        }
        let top = largest.saturating_add(asked.len()).saturating_add(1);
        (top <= max).then(|| PickQuery { top, asked: asked.into_iter().collect() })
    }
}

/// Chooses the next token from what `query` asked for; `None` if the whole row is needed: a logit
/// is NaN, or the temperature rounds a logit that was not picked to one that `top_k` keeps, so
/// that their order follows from their ids.
///
/// # Errors
/// As [`pick`](super::pick).
pub fn pick_from(
    picks: &Picks,
    query: &PickQuery,
    sampling: &Sampling,
    history: History<'_>,
) -> Result<Option<u32>> {
    if picks.has_nan {
        return Ok(None);
    }
    let asked = query.asked.iter().copied().zip(picks.asked.iter().copied());
    let known: BTreeMap<u32, f32> = picks.top.iter().copied().chain(asked).collect();
    // The samplers run on the known logits, which are numbered in order of their ids.
    let index: BTreeMap<u32, u32> = known.keys().copied().zip(0..).collect();
    let numbered = |ids: &[u32]| -> Vec<u32> { ids.iter().filter_map(|id| index.get(id).copied()).collect() };
    // The range counts tokens that have no number, too, so it is applied here and not by the samplers.
    let penalized = history.last(sampling.penalty_range);
    let (prompt, reply) = (numbered(penalized.prompt), numbered(penalized.reply));
    let bias = sampling.bias.iter().map(|(id, bias)| (index[id], *bias)).collect();
    let set = Sampling { bias, penalty_range: 0, ..sampling.clone() };
    let numbered = History { prompt: &prompt, reply: &reply };
    let mut logits: Vec<f32> = known.values().copied().collect();
    // No logit that was not picked is above the lowest pick, which goes along unchanged. If fewer
    // logits came than were asked for, all are known.
    let is_whole = picks.top.len() < query.top;
    let lowest = picks.top.last().filter(|_| !is_whole).map(|(_, logit)| *logit);
    logits.push(lowest.unwrap_or(f32::NEG_INFINITY));
    let (changes, filters) = SAMPLERS.split_at(BEFORE_FILTERS);
    changes.iter().for_each(|(_, sampler)| sampler(&mut logits, &set, numbered));
    let lowest = logits.pop().expect("it was pushed above");
    let (top_k, filters) = filters.split_first().expect("top-k is the first filter");
    top_k.1(&mut logits, &set, numbered);
    let kept = logits.iter().copied().filter(|logit| *logit > f32::NEG_INFINITY);
    if lowest > f32::NEG_INFINITY && kept.fold(f32::INFINITY, f32::min) <= lowest {
        return Ok(None);
    }
    filters.iter().for_each(|(_, sampler)| sampler(&mut logits, &set, numbered));
    let choice = draw(&logits, uniform(sampling.seed, history.reply.len() as u64));
    let number = choice.ok_or_else(|| none_left("allow at least one in the logit bias"))?;
    Ok(known.keys().nth(number as usize).copied())
}
