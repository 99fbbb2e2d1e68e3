//! Chooses a request's tokens from its output rows: row by row, until a chosen token
//! differs from the draft.

use crate::hooks::guard;
use crate::live_request::{LiveRequest, Next};
use crate::result_rows::ResultRows;
use crate::{Error, EventKind, Stop};

/// What a step brought a request.
#[derive(Debug, Default)]
pub(crate) struct StepOutcome {
    /// Whether the reply had begun before the step.
    pub was_replying: bool,
    /// The tokens of the prompt whose log-probabilities the step gave.
    pub prompt_events: Vec<EventKind>,
    /// One event per token of the reply, or the logits.
    pub events: Vec<EventKind>,
    /// The number of rows that were used: one per chosen token, stop tokens included.
    pub used: u32,
    /// Whether the state of a row that was not used may hold NaN, or a key or value beyond its range.
    pub rest_is_unsound: bool,
    /// What happens to the request, unless it continues with its next step.
    pub outcome: Option<RequestOutcome>,
}

impl StepOutcome {
    /// Whether the rows gave what the request asked for.
    pub fn is_success(&self) -> bool {
        self.used > 0
            && !matches!(
                self.outcome,
                Some(RequestOutcome::Failed(_) | RequestOutcome::Nan(_) | RequestOutcome::OutOfRange(_))
            )
    }
}

/// What happens to a request after a step, unless it continues.
#[derive(Debug)]
pub(crate) enum RequestOutcome {
    /// Its reply is complete.
    Stop(Stop),
    /// Its oldest tokens are dropped.
    Truncation,
    /// It fails for reasons of its own; its state stays valid.
    Failed(Error),
    /// It fails because the model produced NaN, or may have, which may be in its state, too.
    Nan(Error),
    /// It fails because the state cannot hold a key or value of its tokens.
    OutOfRange(Error),
}

/// What output rows give a request: log-probabilities of its prompt, then tokens. `first` is the
/// position of the first row.
pub(crate) fn read_rows(
    live: &mut LiveRequest,
    rows: &mut ResultRows<'_>,
    first: u32,
    draft_rows: &[u32],
) -> StepOutcome {
    match live.score_prompt(rows, first) {
        Ok(prompt_events) => {
            let scored = live.rows_of_prompt(first).min(rows.len());
            let step = choose_tokens_guarded(live, &mut rows.from(scored), draft_rows);
            match step.outcome {
                // The rows may be run again.
                Some(RequestOutcome::Nan(_)) => step,
                _ => StepOutcome { prompt_events, ..step },
            }
        }
        Err(error) => StepOutcome { outcome: Some(RequestOutcome::Nan(error)), ..StepOutcome::default() },
    }
}

/// As [`read_rows`], of a sequence whose state cannot hold a key or value of a row: `rows` are those before
/// that row. The request fails, unless it ends or differs from its draft before that row.
pub(crate) fn read_rows_in_range(
    live: &mut LiveRequest,
    rows: &mut ResultRows<'_>,
    first: u32,
    draft_rows: &[u32],
    error: Error,
) -> StepOutcome {
    let mut step = read_rows(live, rows, first, draft_rows);
    let is_reached =
        draft_rows.is_empty() || draft_rows.get(step.used as usize).copied() == live.tokens.last().copied();
    if step.outcome.is_none() && is_reached {
        step.outcome = Some(RequestOutcome::OutOfRange(error));
    } else {
        step.rest_is_unsound = true;
    }
    step
}

/// As [`choose_tokens`]; a panic of a hook fails the request.
fn choose_tokens_guarded(
    live: &mut LiveRequest,
    rows: &mut ResultRows<'_>,
    draft_rows: &[u32],
) -> StepOutcome {
    let was_replying = live.is_replying();
    guard("a hook of the request", || choose_tokens(live, rows, draft_rows)).unwrap_or_else(|error| {
        let first = rows.len().min(1);
        let is_nan = rows.have_nan(0..first);
        let outcome = if is_nan { RequestOutcome::Nan(error) } else { RequestOutcome::Failed(error) };
        let rest_is_unsound = rows.have_nan(first..rows.len());
        StepOutcome {
            was_replying,
            used: 1,
            rest_is_unsound,
            outcome: Some(outcome),
            ..StepOutcome::default()
        }
    })
}

/// Chooses tokens from `rows`, one row of logits per token of `draft_rows`. The first of
/// these is the request's last token, the others are its draft. Without a draft, they are
/// empty, and there is one row of logits, or none after a part of a prompt.
fn choose_tokens(live: &mut LiveRequest, rows: &mut ResultRows<'_>, draft_rows: &[u32]) -> StepOutcome {
    let mut step = StepOutcome { was_replying: live.is_replying(), ..StepOutcome::default() };
    if rows.len() == 0 {
        return step;
    }
    if live.wants_logits() {
        step.used = 1;
        step.outcome = Some(match rows.row(0).map(|row| live.refuse_nan(row).map(|()| row.to_vec())) {
            Ok(Ok(row)) => {
                step.events.push(EventKind::Logits(row));
                RequestOutcome::Stop(Stop::Length)
            }
            // A row that cannot be read may have NaN.
            Ok(Err(error)) | Err(error) => RequestOutcome::Nan(error),
        });
        return step;
    }
    if live.wants_no_reply() {
        step.used = 1;
        step.outcome = Some(RequestOutcome::Stop(Stop::Length));
        return step;
    }
    for index in 0..rows.len() {
        step.used += 1;
        let chosen = choose_token(live, rows, index, &mut step);
        if step.outcome.is_some() || chosen.is_none() || draft_rows.get(index + 1).copied() != chosen {
            break;
        }
    }
    step.rest_is_unsound = rows.have_nan(step.used as usize..rows.len());
    step
}

/// Chooses a token and appends it to the reply. Returns it, or `None` if the request ends
/// without it.
fn choose_token(
    live: &mut LiveRequest,
    rows: &mut ResultRows<'_>,
    index: usize,
    step: &mut StepOutcome,
) -> Option<u32> {
    let chosen = match live.choose(rows, index) {
        Ok(chosen) => chosen,
        Err(error) => {
            let is_nan = rows.have_nan(index..index + 1);
            step.outcome =
                Some(if is_nan { RequestOutcome::Nan(error) } else { RequestOutcome::Failed(error) });
            return None;
        }
    };
    let id = chosen.0;
    if live.is_stop(id) {
        step.outcome = Some(RequestOutcome::Stop(Stop::Token(id)));
        return None;
    }
    let (event, next) = live.append(chosen);
    step.events.push(event);
    step.outcome = match next {
        Next::Token => None,
        Next::Truncation => Some(RequestOutcome::Truncation),
        Next::Stop(stop) => Some(RequestOutcome::Stop(stop)),
    };
    Some(id)
}
