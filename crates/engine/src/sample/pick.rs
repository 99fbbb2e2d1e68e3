//! The order of the samplers, and the choice of a token from a row of logits.

use super::bias::bias;
use super::draw::{draw, uniform};
use super::history::History;
use super::logits::first;
use super::penalty::{frequency, presence, repetition};
use super::temperature::{argmax, temperature};
use super::top::{min_p, top_k, top_p};
use crate::{Error, ErrorKind, Result, Sampling};

/// Changes logits according to the settings; neutral settings change nothing.
pub type Sampler = fn(&mut [f32], &Sampling, History<'_>);

/// The samplers and their names, in the order in which they apply.
pub const SAMPLERS: &[(&str, Sampler)] = &[
    ("bias", |logits, set, _| bias(logits, &set.bias)),
    ("repetition_penalty", |logits, set, history| repetition(logits, history, set.repetition_penalty)),
    ("frequency_penalty", |logits, set, history| frequency(logits, history.reply, set.frequency_penalty)),
    ("presence_penalty", |logits, set, history| presence(logits, history.reply, set.presence_penalty)),
    ("temperature", |logits, set, _| temperature(logits, set.temperature)),
    ("top_k", |logits, set, _| top_k(logits, set.top_k)),
    ("top_p", |logits, set, _| top_p(logits, set.top_p)),
    ("min_p", |logits, set, _| min_p(logits, set.min_p)),
];

/// Chooses the next token. All ids of `history` and of the settings must be below the
/// number of logits.
///
/// # Errors
/// Of the kind [`ErrorKind::NotANumber`] when a logit is NaN, and
/// [`ErrorKind::Refused`] when every token is ruled out.
pub fn pick(logits: &[f32], sampling: &Sampling, history: History<'_>) -> Result<u32> {
    refuse_nan(logits, history)?;
    let choice = if sampling.temperature == 0.0 && sampling.keeps_logits() {
        argmax(logits)
    } else {
        let mut logits = logits.to_vec();
        for (_, sampler) in SAMPLERS {
            sampler(&mut logits, sampling, history);
        }
        draw(&logits, uniform(sampling.seed, history.reply.len() as u64))
    };
    choice.ok_or_else(|| none_left("allow at least one in the logit bias"))
}

/// As [`pick`], among the tokens whose entry in `allowed` is true. The others are ruled
/// out before all samplers, and no bias restores them.
///
/// # Errors
/// As [`pick`].
pub fn pick_allowed(
    logits: &[f32],
    allowed: &[bool],
    sampling: &Sampling,
    history: History<'_>,
) -> Result<u32> {
    refuse_nan(logits, history)?;
    let mut logits = logits.to_vec();
    // The bias is the first sampler and the only one that could restore a token, so the
    // mask is applied to what it leaves.
    let (biased, others) = SAMPLERS.split_first().expect("the list is not empty");
    (biased.1)(&mut logits, sampling, history);
    let ruled_out = logits.iter_mut().zip(allowed).filter(|(_, allowed)| !**allowed);
    ruled_out.for_each(|(logit, _)| *logit = f32::NEG_INFINITY);
    let choice = if sampling.temperature == 0.0 && sampling.keeps_logits() {
        argmax(&logits)
    } else {
        others.iter().for_each(|(_, sampler)| sampler(&mut logits, sampling, history));
        draw(&logits, uniform(sampling.seed, history.reply.len() as u64))
    };
    choice.ok_or_else(|| none_left("allow at least one in the constraint and the logit bias"))
}

/// Whether a logit is NaN.
pub(crate) fn has_nan(logits: &[f32]) -> bool {
    first(logits, f32::is_nan).is_some()
}

/// Returns an error if a logit is NaN.
pub(crate) fn refuse_nan(logits: &[f32], history: History<'_>) -> Result<()> {
    let Some(id) = first(logits, f32::is_nan) else { return Ok(()) };
    let position = (history.prompt.len() + history.reply.len()).saturating_sub(1);
    let sentence = format!(
        "the model produced NaN for token {id} at position {position}; \
         its weights are damaged, or its values overflow"
    );
    Err(Error::with_kind(ErrorKind::NotANumber, sentence))
}

pub(super) fn none_left(remedy: &str) -> Error {
    Error::with_kind(ErrorKind::Refused, format!("every token is ruled out; {remedy}"))
}
