//! The accuracy gate. A model passes if its hidden states and logits are within the
//! derived bound, and its greedy text equals the golden's up to a step at which each
//! side's token is in the other's top five.

use girih_engine::{Engine, EventKind, Hooks, Sampling, TokenRequest};
use serde::Serialize;

use crate::golden::{Golden, GoldenPrompt};
use crate::layers::{LayerRow, diagnose};
use crate::{ErrorBound, Result};

/// The outcome for a model.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Whether every prompt passed.
    pub passed: bool,
    /// One entry per prompt.
    pub prompts: Vec<PromptVerdict>,
}

/// The outcome for one prompt.
#[derive(Clone, Debug, Serialize)]
pub struct PromptVerdict {
    /// Its index in the golden.
    pub prompt: usize,
    /// Its number of tokens.
    pub tokens: usize,
    /// Whether it passed.
    pub passed: bool,
    /// The largest absolute difference of a logit.
    pub logits_max_abs: f64,
    /// The first layer with a value beyond its bound, and its token.
    pub first_out_of_bound: Option<LayerRow>,
    /// The number of greedy tokens before the first difference.
    pub equal_tokens: usize,
    /// The number of greedy tokens in the golden.
    pub greedy_tokens: usize,
    /// The first difference of the greedy texts, if any.
    pub divergence: Option<Divergence>,
}

/// The first difference of two greedy texts.
#[derive(Clone, Debug, Serialize)]
pub struct Divergence {
    /// The step, counted from 0.
    pub step: usize,
    /// The token that the model chose.
    pub ours: u32,
    /// The token of the golden.
    pub golden: u32,
    /// Whether the model's token is in the golden's top five.
    pub ours_in_golden_top5: bool,
    /// Whether the golden's token is in the model's top five.
    pub golden_in_our_top5: bool,
}

impl Divergence {
    /// Whether each side's token is in the other's top five.
    pub fn tolerable(&self) -> bool {
        self.ours_in_golden_top5 && self.golden_in_our_top5
    }
}

/// Compares a model of `layers` layers with every prompt of a golden, which must have
/// been read for the model's sizes.
///
/// # Errors
/// When a prompt does not fit into the context, or a step fails.
pub fn verify(engine: &mut Engine, golden: &Golden, layers: usize, bound: &ErrorBound) -> Result<Verdict> {
    let mut prompts = Vec::with_capacity(golden.prompts.len());
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let rows = diagnose(engine, prompt, layers, bound)?;
        let (equal_tokens, divergence) = greedy(engine, prompt)?;
        let first_out_of_bound = rows.iter().find(|row| !row.within()).cloned();
        let tolerable = divergence.as_ref().is_none_or(Divergence::tolerable);
        prompts.push(PromptVerdict {
            prompt: index,
            tokens: prompt.tokens.len(),
            passed: first_out_of_bound.is_none() && tolerable,
            logits_max_abs: rows.last().map_or(0.0, |row| row.max_abs),
            first_out_of_bound,
            equal_tokens,
            greedy_tokens: prompt.reference.greedy.len(),
            divergence,
        });
    }
    Ok(Verdict { passed: prompts.iter().all(|prompt| prompt.passed), prompts })
}

/// Continues the prompt greedily, up to the first token that differs.
fn greedy(engine: &mut Engine, prompt: &GoldenPrompt) -> Result<(usize, Option<Divergence>)> {
    let reference = &prompt.reference;
    let request = TokenRequest {
        tokens: prompt.tokens.clone(),
        sampling: Sampling::greedy(),
        max_new: Some(reference.greedy.len() as u32),
        logprobs: Some(5),
        ..TokenRequest::default()
    };
    let id = engine.submit(request, Hooks::default())?;
    let mut equal = 0;
    while !engine.is_idle() {
        for event in engine.step() {
            let (ours, top) = match &event.kind {
                EventKind::Token { id, logprobs, .. } => (*id, logprobs),
                EventKind::Failed(error) => return Err(error.clone()),
                EventKind::Prefilled(_) | EventKind::Logits(_) | EventKind::Finished { .. } => continue,
            };
            let golden = reference.greedy[equal];
            if ours == golden {
                equal += 1;
                continue;
            }
            let ours_in_golden_top5 = reference.top5[equal].contains(&ours);
            let golden_in_our_top5 = top.iter().any(|top| top.top.iter().any(|likely| likely.id == golden));
            let divergence =
                Divergence { step: equal, ours, golden, ours_in_golden_top5, golden_in_our_top5 };
            engine.cancel(id);
            return Ok((equal, Some(divergence)));
        }
    }
    Ok((equal, None))
}
