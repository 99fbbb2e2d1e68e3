//! The order of the samplers, and the choice of a token from a row of logits.

use super::bias::bias;
use super::draw::{draw, uniform};
use super::dry::dry;
use super::history::History;
use super::logits::first;
use super::mirostat::SamplerState;
use super::penalty::{frequency, presence, repetition};
use super::sigma::top_n_sigma;
use super::temperature::{argmax, argmax_allowed, dynamic_temperature};
use super::top::{min_p, top_k, top_p};
use super::typical::typical_p;
use super::xtc::xtc;
use crate::{Error, ErrorKind, Result, Sampling};

/// Changes logits according to the settings; neutral settings change nothing.
pub type Sampler = fn(&mut [f32], &Sampling, History<'_>);

/// The samplers and their names, in the order in which they apply. Mirostat follows them.
pub const SAMPLERS: &[(&str, Sampler)] = &[
    ("bias", |logits, set, _| bias(logits, &set.bias)),
    ("repetition_penalty", |logits, set, history| {
        repetition(logits, history.last(set.penalty_range), set.repetition_penalty);
    }),
    ("frequency_penalty", |logits, set, history| {
        frequency(logits, history.last(set.penalty_range).reply, set.frequency_penalty);
    }),
    ("presence_penalty", |logits, set, history| {
        presence(logits, history.last(set.penalty_range).reply, set.presence_penalty);
    }),
    ("dry", |logits, set, history| dry(logits, history, &set.dry)),
    ("top_n_sigma", |logits, set, _| top_n_sigma(logits, set.top_n_sigma)),
    ("temperature", |logits, set, _| {
        dynamic_temperature(logits, set.temperature, set.dynatemp_range, set.dynatemp_exponent);
    }),
    ("top_k", |logits, set, _| top_k(logits, set.top_k)),
    ("top_p", |logits, set, _| top_p(logits, set.top_p)),
    ("min_p", |logits, set, _| min_p(logits, set.min_p)),
    ("typical_p", |logits, set, _| typical_p(logits, set.typical_p)),
    ("xtc", |logits, set, history| {
        xtc(logits, set.xtc_probability, set.xtc_threshold, set.seed, history.reply.len() as u64);
    }),
];

/// Chooses the first token of a reply, or any if no sampler keeps a state. All ids of `history`
/// and of the settings must be below the number of logits.
///
/// # Errors
/// Of the kind [`ErrorKind::NotANumber`] when a logit is NaN, and
/// [`ErrorKind::Refused`] when every token is ruled out.
pub fn pick(logits: &[f32], sampling: &Sampling, history: History<'_>) -> Result<u32> {
    pick_next(logits, None, sampling, history, &mut SamplerState::default())
}

/// As [`pick`], among the tokens whose entry in `allowed`, one for each logit, is true. The others are
/// ruled out before all samplers, and no bias restores them.
///
/// # Errors
/// As [`pick`].
pub fn pick_allowed(
    logits: &[f32],
    allowed: &[bool],
    sampling: &Sampling,
    history: History<'_>,
) -> Result<u32> {
    pick_next(logits, Some(allowed), sampling, history, &mut SamplerState::default())
}

/// As [`pick`] or [`pick_allowed`], with what the samplers keep from token to token. A reply has
/// one state, which each of its tokens changes once.
///
/// # Errors
/// As [`pick`]; then the state is unchanged.
pub fn pick_next(
    logits: &[f32],
    allowed: Option<&[bool]>,
    sampling: &Sampling,
    history: History<'_>,
    state: &mut SamplerState,
) -> Result<u32> {
    refuse_nan(logits, (history.prompt.len() + history.reply.len()).saturating_sub(1))?;
    let remedy = match allowed {
        None => "allow at least one in the logit bias",
        Some(_) => "allow at least one in the constraint and the logit bias",
    };
    if sampling.temperature == 0.0 && sampling.keeps_logits() {
        let chosen = allowed.map_or_else(|| argmax(logits), |allowed| argmax_allowed(logits, allowed));
        return chosen.ok_or_else(|| none_left(remedy));
    }
    let mut logits = logits.to_vec();
    // The bias is the first sampler and the only one that could restore a token, so the
    // mask is applied to what it leaves.
    let (biased, others) = SAMPLERS.split_first().expect("the list is not empty");
    (biased.1)(&mut logits, sampling, history);
    let ruled_out = logits.iter_mut().zip(allowed.into_iter().flatten()).filter(|(_, allowed)| !**allowed);
    ruled_out.for_each(|(logit, _)| *logit = f32::NEG_INFINITY);
    others.iter().for_each(|(_, sampler)| sampler(&mut logits, sampling, history));
    state.rule_out(&mut logits, sampling);
    let choice = draw(&logits, uniform(sampling.seed, history.reply.len() as u64));
    let chosen = choice.ok_or_else(|| none_left(remedy))?;
    state.learn(&logits, chosen, sampling);
    Ok(chosen)
}

/// Whether a logit is NaN.
pub(crate) fn has_nan(logits: &[f32]) -> bool {
    first(logits, f32::is_nan).is_some()
}

/// Returns an error if a logit of the row at `position` is NaN.
pub(crate) fn refuse_nan(logits: &[f32], position: usize) -> Result<()> {
    let Some(id) = first(logits, f32::is_nan) else { return Ok(()) };
    let sentence = format!(
        "the model produced NaN for token {id} at position {position}; \
         its weights are damaged, or its values overflow"
    );
    Err(Error::with_kind(ErrorKind::NotANumber, sentence))
}

pub(super) fn none_left(remedy: &str) -> Error {
    Error::with_kind(ErrorKind::Refused, format!("every token is ruled out; {remedy}"))
}
