//! From the logits of one request's output rows to its tokens: chooses them, row by row,
//! as far as the draft that was run is what was chosen.

use crate::live_request::{LiveRequest, Next};
use crate::sample::has_nan;
use crate::{Error, EventKind, Stop};

/// What a step's logits gave a request.
#[derive(Debug)]
pub(crate) struct Judgement {
    /// Whether the reply had begun before the step.
    pub was_replying: bool,
    /// One event per token of the reply, or the logits.
    pub events: Vec<EventKind>,
    /// The number of rows that were used: one per chosen token, stop tokens included.
    pub used: u32,
    /// Whether a row that was not used has NaN, which may be in the state, too.
    pub spoils_rest: bool,
    /// What happens to the request, unless it continues with its next step.
    pub turn: Option<Turn>,
}

impl Judgement {
    /// Whether the rows gave what the request asked for.
    pub fn is_good(&self) -> bool {
        self.used > 0 && !matches!(self.turn, Some(Turn::Failed(_) | Turn::Spoiled(_)))
    }
}

/// What happens to a request after a step, unless it continues.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Its reply is complete.
    Stop(Stop),
    /// Its oldest tokens are dropped.
    Truncation,
    /// It fails for reasons of its own; its state is good.
    Failed(Error),
    /// It fails because the model produced NaN, which may be in its state, too.
    Spoiled(Error),
}

/// Chooses tokens from `rows`, one row of logits per token of `run`. The first token of
/// `run` is the request's last one, the others are its draft. Without a draft, `run` is
/// empty, and there is one row, or none after a part of a prompt.
pub(crate) fn judge(live: &mut LiveRequest, rows: &[f32], width: usize, run: &[u32]) -> Judgement {
    let (was_replying, events) = (live.is_replying(), Vec::new());
    let mut judgement = Judgement { was_replying, events, used: 0, spoils_rest: false, turn: None };
    if rows.is_empty() {
        return judgement;
    }
    if live.wants_logits() {
        judgement.used = 1;
        judgement.turn = Some(match live.refuse_nan(rows) {
            Ok(()) => {
                judgement.events.push(EventKind::Logits(rows.to_vec()));
                Turn::Stop(Stop::Length)
            }
            Err(error) => Turn::Spoiled(error),
        });
        return judgement;
    }
    let mut rows = rows.chunks_exact(width);
    for (index, row) in rows.by_ref().enumerate() {
        judgement.used += 1;
        let chosen = choose(live, row, &mut judgement);
        if judgement.turn.is_some() || chosen.is_none() || run.get(index + 1).copied() != chosen {
            break;
        }
    }
    judgement.spoils_rest = rows.any(has_nan);
    judgement
}

/// Chooses a token and appends it to the reply. Returns it, or `None` if the request ends
/// without it.
fn choose(live: &mut LiveRequest, row: &[f32], judgement: &mut Judgement) -> Option<u32> {
    let chosen = match live.choose(row) {
        Ok(chosen) => chosen,
        Err(error) => {
            judgement.turn = Some(if has_nan(row) { Turn::Spoiled(error) } else { Turn::Failed(error) });
            return None;
        }
    };
    let id = chosen.0;
    if live.is_stop(id) {
        judgement.turn = Some(Turn::Stop(Stop::Token(id)));
        return None;
    }
    let (event, next) = live.append(chosen);
    judgement.events.push(event);
    judgement.turn = match next {
        Next::Token => None,
        Next::Truncation => Some(Turn::Truncation),
        Next::Stop(stop) => Some(Turn::Stop(stop)),
    };
    Some(id)
}
