//! What a caller may attach to a request: objects of its own that the engine calls while
//! the request runs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::step_costs::StepCosts;
use crate::text::Detokenize;
use crate::{Error, ErrorKind, Result, Sampling};

/// The objects attached to a request. The default has none.
#[derive(Default)]
pub struct Hooks {
    /// Turns ids into text. Without it, events have ids but no text, and stop strings are
    /// refused.
    pub detokenizer: Option<Box<dyn Detokenize>>,
    /// Rules out tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Proposes tokens, so that one step can choose several.
    pub drafter: Option<Box<dyn Drafter>>,
}

/// Calls code that is not the engine's own. If it panics, that is an error of the kind
/// [`ErrorKind::DeviceFailed`], so that other requests continue. What the code was changing must
/// not be used again.
pub(crate) fn guard<T>(code: &str, call: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| {
        let sentence = format!("{code} panicked; the message is on standard error");
        Error::with_kind(ErrorKind::DeviceFailed, sentence)
    })
}

/// Rules out tokens of a reply, such as those that a grammar does not allow next. If a
/// call fails or panics, the request ends with that error; other requests continue.
pub trait Constraint: Send {
    /// Clears the entries of the tokens that may not come next; all entries are true at
    /// first. The cleared tokens cannot be chosen, whatever the samplers do. A stop token
    /// must be allowed for the reply to end by it. If no token is left, the request ends
    /// with an error of the kind [`ErrorKind::Refused`](crate::ErrorKind::Refused).
    ///
    /// `allowed` has one entry per logit, which may be more than the tokenizer's vocabulary
    /// has tokens.
    ///
    /// # Errors
    /// When the constraint cannot decide.
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()>;

    /// Whether every token may come next; then [`Constraint::mask`] is not called, and the request needs no whole
    /// row of logits for it. Default false.
    fn allows_all(&self) -> bool {
        false
    }

    /// Receives each chosen token, stop tokens included, in order.
    ///
    /// # Errors
    /// When the constraint cannot continue after this token.
    fn accept(&mut self, id: u32) -> Result<()>;

    /// Whether the reply is complete; then it ends with
    /// [`Stop::Complete`](crate::Stop::Complete). Asked after each [`Constraint::accept`].
    fn is_complete(&self) -> bool;
}

/// Proposes tokens of a reply for speculative decoding. The engine runs the proposed
/// tokens as further rows of the same step and keeps them as far as they are the tokens
/// that it would have chosen. Drafts change the speed of a reply, not its tokens, on
/// backends whose results do not depend on the number of rows of a step (all but `npu`).
///
/// Each proposed token takes an output row beyond the one per sequence. Load programs with
/// more output rows than sequences; a step without spare output rows runs no draft.
///
/// A drafter works together with a [`Constraint`]: a proposed token that the constraint
/// rules out is rejected, because it is not chosen.
pub trait Drafter: Send {
    /// Proposes the tokens that follow those of `query`. At most [`DraftQuery::max`] are used,
    /// up to the first invalid id. Called at most once per step, and only if there is room.
    fn draft(&mut self, query: DraftQuery<'_>) -> Vec<u32>;

    /// Whether [`Drafter::read`] is to receive hidden states of the model's steps. Asked before each step. Then the
    /// step computes them for all of its rows.
    fn reads_rows(&self) -> bool {
        false
    }

    /// Receives hidden states of the rows that a step ran for the request, without those of rejected tokens.
    fn read(&mut self, _: HiddenRows<'_>) {}
}

/// Hidden states of consecutive rows of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct HiddenRows<'a> {
    /// The prompt and the reply so far, with the tokens that the step chose.
    pub tokens: &'a [u32],
    /// The position of the first row.
    pub first: u32,
    /// The number of values in a row.
    pub width: usize,
    /// The values, row after row.
    pub values: &'a [f32],
}

/// What a drafter is to continue.
#[derive(Clone, Copy, Debug)]
pub struct DraftQuery<'a> {
    /// The prompt and the reply so far, without truncated tokens.
    pub tokens: &'a [u32],
    /// The number of tokens at the end of `tokens` that belong to the reply.
    pub replied: usize,
    /// How the next token is chosen.
    pub sampling: &'a Sampling,
    /// The maximum number of drafted tokens.
    pub max: u32,
    /// The number of rows that the step runs for other sequences. With many, drafts pay only if
    /// they are nearly always right.
    pub other_rows: u32,
    /// The times of the model's steps by number of rows.
    pub costs: &'a StepCosts,
}
