//! The gate: a model passes if its hidden states and logits lie within the
//! derived bound and its greedy text is that of the golden, or leaves it only
//! where both sides found both tokens likely.

use girih_graph::Runner;
use serde::Serialize;

use crate::golden::{Golden, Prompt};
use crate::layers::{LayerRow, diagnose};
use crate::pass::Pass;
use crate::{Bound, Result};

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
    /// Its length.
    pub tokens: usize,
    /// Whether it passed.
    pub passed: bool,
    /// The largest difference of a logit.
    pub logits_max_abs: f64,
    /// The first layer with a value out of bound, and which token's it is.
    pub first_out_of_bound: Option<LayerRow>,
    /// How many greedy tokens are equal.
    pub equal_tokens: usize,
    /// How many greedy tokens the golden has.
    pub greedy_tokens: usize,
    /// Where the greedy texts part, if they do.
    pub divergence: Option<Divergence>,
}

/// Where two greedy texts part.
#[derive(Clone, Debug, Serialize)]
pub struct Divergence {
    /// The step, counted from 0.
    pub step: usize,
    /// The token that the model chose.
    pub ours: u32,
    /// The token of the golden.
    pub golden: u32,
    /// Whether the model's token is among the golden's five likeliest.
    pub ours_in_golden_top5: bool,
    /// Whether the golden's token is among the model's five likeliest.
    pub golden_in_our_top5: bool,
}

impl Divergence {
    /// Whether each side's token stands in the other's top five.
    pub fn tolerable(&self) -> bool {
        self.ours_in_golden_top5 && self.golden_in_our_top5
    }
}

/// Holds a model of `layers` layers against every prompt of a golden.
///
/// # Errors
/// When the golden is of another model's sizes, or a step fails.
pub fn verify(runner: &mut dyn Runner, golden: &Golden, layers: usize, bound: &Bound) -> Result<Verdict> {
    let mut prompts = Vec::with_capacity(golden.prompts.len());
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let rows = diagnose(runner, prompt, layers, bound)?;
        let (equal_tokens, divergence) = greedy(runner, prompt)?;
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

/// Continues the prompt by greatest logit, up to the first token that differs.
fn greedy(runner: &mut dyn Runner, prompt: &Prompt) -> Result<(usize, Option<Divergence>)> {
    let mut pass = Pass::new(runner);
    let mut logits = Vec::new();
    let last = prompt.tokens.len() - 1;
    pass.extend(&prompt.tokens, &mut girih_graph::backend::Unwatched, |index, row| {
        if index == last {
            logits = row.to_vec();
        }
    })?;
    for (step, &golden) in prompt.reference.greedy.iter().enumerate() {
        let top = top5(&logits);
        let ours = top[0];
        if ours != golden {
            let divergence = Divergence {
                step,
                ours,
                golden,
                ours_in_golden_top5: prompt.reference.top5[step].contains(&ours),
                golden_in_our_top5: top.contains(&golden),
            };
            return Ok((step, Some(divergence)));
        }
        if step + 1 < prompt.reference.greedy.len() {
            logits = pass.push(golden)?;
        }
    }
    Ok((prompt.reference.greedy.len(), None))
}

/// The ids of the five greatest logits, greatest first; of equals the lower id.
fn top5(logits: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    ids.truncate(5);
    ids
}
