//! The accuracy gate. A model passes if its hidden states and logits are within the
//! derived bound, and if its logits agree with every greedy step of the golden.
//!
//! The golden's own tokens are run, so that each step is compared, also behind one at which
//! the model would choose another token. Each step is run as a generated token is: one row
//! that reads the state of the tokens before it. [`crate::golden_step`] derives what must hold
//! if every logit is within `b` of the golden's; the allowance of a step is `2b`.
//!
//! `b` is the derived bound of a logit for the row's root mean square. The golden has no
//! logits for the steps behind the prompt, so the row is the model's. If the row agrees, the
//! two root mean squares differ by at most `b`. If a wrong row is larger, its allowance grows
//! only as its lead does, and the lead must be the golden's margin.
//!
//! The derived bound for weights that were quantized after the golden was made is no test of a
//! choice: it adds up all roundings in all layers, up to several times the row's root mean
//! square for four bits. So for such weights `b` is the share of that bound which the hidden
//! states and logits of all prompts reach, which is never more than the bound of a model that
//! passes.

use girih_engine::{Engine, EventKind, Hooks, TokenRequest};
use serde::Serialize;

use crate::bound::{ValueDepth, rms};
use crate::golden::{Golden, GoldenPrompt};
use crate::golden_step::{Disagreement, GoldenStep};
use crate::layers::{LayerRow, diagnose, logit_errors};
use crate::{Error, ErrorBound, ErrorKind, Result};

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
    /// The number of greedy steps at which the model chooses the golden's token.
    pub equal_tokens: usize,
    /// The number of greedy steps in the golden.
    pub greedy_tokens: usize,
    /// The first step at which the model chooses another token.
    pub divergence: Option<Divergence>,
    /// The first step that differs by more than its allowance.
    pub failed_step: Option<FailedStep>,
}

/// A step at which the model chooses another token than the golden.
#[derive(Clone, Debug, Serialize)]
pub struct Divergence {
    /// The step, counted from 0.
    pub step: usize,
    /// The token that the model chooses.
    pub ours: u32,
    /// The token of the golden.
    pub golden: u32,
    /// The golden's margin: the difference between its two largest logits.
    pub margin: f64,
    /// The logit of the model's token less that of the golden's, in the model.
    pub excess: f64,
    /// What margin and excess may be together.
    pub allowance: f64,
    /// Whether they are within the allowance.
    pub tolerated: bool,
}

/// A step whose logits contradict the golden.
#[derive(Clone, Debug, Serialize)]
pub struct FailedStep {
    /// The step, counted from 0.
    pub step: usize,
    /// What the golden and the model disagree about.
    pub disagreement: Disagreement,
    /// The difference that is permitted.
    pub allowance: f64,
}

/// Compares a model of `layers` layers with every prompt of a golden, which must have
/// been read for the model's sizes.
///
/// # Errors
/// When a prompt with its greedy steps does not fit into the context, or a step fails.
pub fn verify(engine: &mut Engine, golden: &Golden, layers: usize, bound: &ErrorBound) -> Result<Verdict> {
    for (index, prompt) in golden.prompts.iter().enumerate() {
        check_length(engine, index, prompt)?;
    }
    // Before the prompts run, because the steps are to read the state that those leave.
    let errors = golden.prompts.iter().map(|prompt| step_errors(engine, prompt, bound));
    let errors: Vec<Vec<Option<f64>>> = errors.collect::<Result<_>>()?;
    let diagnoses = golden.prompts.iter().map(|prompt| diagnose(engine, prompt, layers, bound));
    let diagnoses: Vec<Vec<LayerRow>> = diagnoses.collect::<Result<_>>()?;
    let allowance = Allowance::new(bound, layers, &diagnoses);
    let mut prompts = Vec::with_capacity(golden.prompts.len());
    for (index, (prompt, rows)) in golden.prompts.iter().zip(&diagnoses).enumerate() {
        let steps = compare_steps(engine, prompt, &allowance, &errors[index])?;
        let first_out_of_bound = rows.iter().find(|row| !row.within()).cloned();
        prompts.push(PromptVerdict {
            prompt: index,
            tokens: prompt.tokens.len(),
            passed: first_out_of_bound.is_none() && steps.failed.is_none(),
            logits_max_abs: rows.last().map_or(0.0, |row| row.max_abs),
            first_out_of_bound,
            equal_tokens: steps.equal,
            greedy_tokens: prompt.reference.greedy.len(),
            divergence: steps.divergence,
            failed_step: steps.failed,
        });
    }
    Ok(Verdict { passed: prompts.iter().all(|prompt| prompt.passed), prompts })
}

/// Checks that a prompt fits into the context with all its greedy steps but the last, whose
/// token is not run.
fn check_length(engine: &Engine, index: usize, prompt: &GoldenPrompt) -> Result<()> {
    let (tokens, steps) = (prompt.tokens.len(), prompt.reference.greedy.len());
    let context = engine.limits().context;
    if tokens + steps - 1 <= context as usize {
        return Ok(());
    }
    let sentence = format!(
        "prompt {index} of the golden has {tokens} tokens and {steps} greedy steps; the context is {context}: \
         enlarge the context"
    );
    Err(Error::with_kind(ErrorKind::TooLong, sentence))
}

/// What a step may differ from the golden.
struct Allowance<'a> {
    bound: &'a ErrorBound,
    depth: ValueDepth,
    /// The share of the bound that applies to logits of steps.
    share: f64,
}

impl<'a> Allowance<'a> {
    fn new(bound: &'a ErrorBound, layers: usize, diagnoses: &[Vec<LayerRow>]) -> Allowance<'a> {
        let share = if bound.has_quantized_weights() {
            diagnoses.iter().flatten().fold(0.0f64, |max, row| max.max(row.of_bound)).min(1.0)
        } else {
            1.0
        };
        Allowance { bound, depth: ValueDepth::Logits(layers), share }
    }

    /// Twice the permitted difference of a logit of this row of the model, whose followed error
    /// is `error`.
    fn at(&self, row: &[f32], error: Option<f64>) -> f64 {
        2.0 * self.share * self.bound.at_row(self.depth, rms(row), error)
    }
}

/// Returns the followed error of the logits of each greedy step.
fn step_errors(engine: &mut Engine, prompt: &GoldenPrompt, bound: &ErrorBound) -> Result<Vec<Option<f64>>> {
    let steps = &prompt.reference.greedy[..prompt.reference.greedy.len().saturating_sub(1)];
    let tokens: Vec<u32> = prompt.tokens.iter().copied().chain(steps.iter().map(|step| step.token)).collect();
    let errors = logit_errors(engine, &tokens, bound)?;
    Ok(errors[prompt.tokens.len().saturating_sub(1)..].to_vec())
}

/// The comparison of all greedy steps of a prompt.
#[derive(Default)]
struct StepComparison {
    equal: usize,
    divergence: Option<Divergence>,
    failed: Option<FailedStep>,
}

/// Runs the golden's tokens and compares the logits of each step.
fn compare_steps(
    engine: &mut Engine,
    prompt: &GoldenPrompt,
    allowance: &Allowance<'_>,
    errors: &[Option<f64>],
) -> Result<StepComparison> {
    let mut steps = StepComparison::default();
    let mut tokens = prompt.tokens.clone();
    for (index, step) in prompt.reference.greedy.iter().enumerate() {
        let row = next_logits(engine, &tokens)?;
        let allowance = allowance.at(&row, errors.get(index).copied().flatten());
        let disagreement = step.disagreement(&row, allowance);
        match divergence(index, step, &row, allowance, disagreement.is_none()) {
            None => steps.equal += 1,
            found => steps.divergence = steps.divergence.or(found),
        }
        let failed = disagreement.map(|disagreement| FailedStep { step: index, disagreement, allowance });
        steps.failed = steps.failed.or(failed);
        tokens.push(step.token);
    }
    Ok(steps)
}

/// The difference of the chosen tokens, if the golden's token does not have the largest logit.
fn divergence(
    index: usize,
    step: &GoldenStep,
    row: &[f32],
    allowance: f64,
    tolerated: bool,
) -> Option<Divergence> {
    let excess = -step.lead(row);
    if excess <= 0.0 {
        return None;
    }
    let largest = (0..row.len() as u32).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize]));
    Some(Divergence {
        step: index,
        ours: largest.expect("a row that has a lead has logits"),
        golden: step.token,
        margin: step.margin.into(),
        excess,
        allowance,
        tolerated,
    })
}

/// Runs what the engine does not have of `tokens` yet, which is one token behind those of the
/// step before, and returns the logits that follow.
fn next_logits(engine: &mut Engine, tokens: &[u32]) -> Result<Vec<f32>> {
    let request = TokenRequest { tokens: tokens.to_vec(), logits: true, ..TokenRequest::default() };
    engine.submit(request, Hooks::default())?;
    let mut logits = None;
    while !engine.is_idle() {
        for event in engine.step() {
            match &event.kind {
                EventKind::Logits(row) => logits = Some(row.clone()),
                EventKind::Failed(error) => return Err(error.clone()),
                EventKind::Prefilled(_) | EventKind::Token { .. } | EventKind::Finished { .. } => {}
            }
        }
    }
    Ok(logits.expect("a request for logits ends with them or fails"))
}
