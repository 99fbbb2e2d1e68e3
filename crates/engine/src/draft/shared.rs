//! What a draft model and a head that reads hidden states have in common.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cached_runner::{CachedRunner, failed};
use crate::sample::{History, pick};
use crate::{Error, ErrorKind, Result, Sampling};

/// The id of a drafter of one model; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrafterId(pub u64);

/// What a program that drafts tells people, each at most once.
pub(super) struct DraftNotes {
    note: Box<dyn Fn(String) + Send>,
    /// The program in these sentences.
    what: &'static str,
    has_failed: bool,
    has_stopped: bool,
}

impl DraftNotes {
    pub fn new(what: &'static str, note: impl Fn(String) + Send + 'static) -> DraftNotes {
        DraftNotes { note: Box::new(note), what, has_failed: false, has_stopped: false }
    }

    /// Whether the program has failed, so that it drafts no more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Ends all drafts.
    pub fn fail(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.has_failed, true) {
            (self.note)(format!("{} failed, so replies continue without drafts: {error}", self.what));
        }
    }

    /// Says that the drafts of a request ended because they did not pay. `share` of the last drafted tokens were
    /// accepted.
    pub fn stop(&mut self, share: f32) {
        if !std::mem::replace(&mut self.has_stopped, true) {
            (self.note)(format!(
                "drafts did not pay for a request, so its reply continued without them: {} was right for {:.0} % of \
                 its last tokens",
                self.what,
                100.0 * share
            ));
        }
    }
}

/// The number of tokens to draft, at most `count`; 0 if `tokens` fill the context or the program's vocabulary of
/// `width` tokens lacks one of them.
pub(super) fn room(tokens: &[u32], context: u32, width: usize, count: u32) -> usize {
    if tokens.iter().any(|token| *token as usize >= width) {
        return 0;
    }
    (context as usize + 1).saturating_sub(tokens.len()).min(count as usize)
}

/// Chooses the next token from the first result row, as the request would. The last `replied` of `tokens` are the
/// reply. `None` if the request allows only tokens that this program lacks.
pub(super) fn choose(
    runner: &mut CachedRunner,
    sampling: &Sampling,
    (tokens, replied): (&[u32], usize),
) -> Result<Option<u32>> {
    let (prompt, reply) = tokens.split_at(tokens.len() - replied);
    let logits = runner.output().rows(0..1).map_err(failed)?;
    match pick(logits, sampling, History { prompt, reply }) {
        Ok(token) => Ok(Some(token)),
        Err(error) if error.kind() == ErrorKind::Refused => Ok(None),
        Err(error) => Err(error),
    }
}

/// Settings without biases of tokens that a vocabulary of `width` tokens lacks.
pub(super) fn with_known_bias(sampling: &Sampling, width: usize) -> Cow<'_, Sampling> {
    let is_known = |bias: &&(u32, f32)| (bias.0 as usize) < width;
    if sampling.bias.iter().all(|bias| is_known(&bias)) {
        return Cow::Borrowed(sampling);
    }
    let bias = sampling.bias.iter().filter(is_known).copied().collect();
    Cow::Owned(Sampling { bias, ..sampling.clone() })
}

/// A program that panicked has failed, and is not used again.
pub(super) fn lock<T>(program: &Mutex<T>) -> MutexGuard<'_, T> {
    program.lock().unwrap_or_else(PoisonError::into_inner)
}
