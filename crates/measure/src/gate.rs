//! The accuracy gate. A model passes if its hidden states and logits are within the
//! derived bound, and if its logits agree with every greedy step of the golden.
//!
//! The golden's own tokens are run, so that each step is compared, also after one at which
//! the model would choose another token. Each step is run as a generated token is: one row
//! that reads the state of the tokens before it.
//!
//! [`crate::golden_step`] derives what holds for a step if every logit is within `b` of the
//! golden's; `2b` is the step's allowance. `b` is the derived bound of a logit for the row's root
//! mean square. The golden has no logits for the steps after the prompt, so the row is the
//! model's. If the row agrees, the two root mean squares differ by at most `b`.
//!
//! The rows of images in a prompt are those of the golden, so that what the image tower makes is compared by itself
//! ([`crate::tower_gate`]).
//!
//! If weights were quantized after the golden was made, the derived bound is no test of a choice:
//! it adds up the roundings of all layers, for four bits up to several times the row's root mean
//! square. So a model with such weights may choose another token only where the golden's margin
//! is also within twice the error that hidden states and logits show: the largest share of its
//! bound that one of them reaches in any prompt, times `2b`. Single rows of a step may have larger
//! errors than the prompts' rows, so the other comparisons keep `2b`.

use girih_engine::{Engine, EventKind, Hooks, TokenPrompt, TokenRequest};
use serde::Serialize;

use crate::bound::rms;
use crate::golden::{Golden, GoldenPrompt};
use crate::golden_step::{ChoiceRanks, Disagreement, StepAllowance, largest};
use crate::layers::{LayerRow, diagnose, logit_errors};
use crate::progress::{ProgressWatcher, TokenCounter};
use crate::{BoundUse, Error, ErrorBound, ErrorKind, Result};

/// The outcome for a model.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Whether every prompt passed.
    pub passed: bool,
    /// How the bound was found.
    pub bound: BoundUse,
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
    /// The ranks of the choices of each greedy step.
    pub ranks: Vec<ChoiceRanks>,
}

/// How many greedy steps have each side's token among the other's best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TopChoices {
    /// Steps with the golden's token among the model's best.
    pub golden_in_model: usize,
    /// Steps with the model's token among the golden's best.
    pub model_in_golden: usize,
    /// The first step with a token that is not among the other's best.
    pub first_outside: Option<usize>,
}

impl PromptVerdict {
    /// How many steps have each side's token among the other's best `k`.
    ///
    /// # Panics
    /// Unless `k` is from 1 to 5: a golden has the five best tokens of a step.
    pub fn top_choices(&self, k: usize) -> TopChoices {
        assert!((1..=5).contains(&k), "a golden has the five best tokens of a step, not {k}");
        let within: Vec<[bool; 2]> = self.ranks.iter().map(|ranks| ranks.within(k)).collect();
        let count = |side: usize| within.iter().filter(|step| step[side]).count();
        TopChoices {
            golden_in_model: count(0),
            model_in_golden: count(1),
            first_outside: within.iter().position(|step| *step != [true; 2]),
        }
    }
}

impl Verdict {
    /// Lets inclusion in the best `k` decide the greedy steps instead of the bound, which is wide for
    /// weights that were quantized after the golden was made. A step that failed by the bound does not fail any more.
    /// Hidden states and logits of the prompts still keep their bound.
    pub fn decide_by_top(&mut self, k: usize) {
        for prompt in &mut self.prompts {
            let is_included = prompt.top_choices(k).first_outside.is_none();
            prompt.failed_step = None;
            prompt.passed = prompt.first_out_of_bound.is_none() && is_included;
        }
        self.passed = self.prompts.iter().all(|prompt| prompt.passed);
    }
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
    /// The largest margin of the golden at which another choice passes.
    pub allowance: f64,
    /// Whether the step passes.
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
pub fn verify(
    engine: &mut Engine,
    golden: &Golden,
    layers: usize,
    bound: &ErrorBound,
    progress: ProgressWatcher<'_>,
) -> Result<Verdict> {
    // Each prompt runs to follow errors, to compare layers, and to compare steps.
    let mut counter = TokenCounter::new(3 * golden.prompts.iter().map(length).sum::<u64>(), progress);
    for (index, prompt) in golden.prompts.iter().enumerate() {
        check_length(engine, index, prompt)?;
    }
    // Before the prompts run, because the steps are to read the state that those leave.
    let (mut errors, mut diagnoses, mut used) = (Vec::new(), Vec::new(), bound.all_followed());
    for prompt in &golden.prompts {
        errors.push(step_errors(engine, prompt, bound, &mut used)?);
        counter.add(length(prompt));
    }
    // Not added to `used`: the run of the steps has counted the rows of the prompts.
    let mut of_prompts = BoundUse::default();
    for prompt in &golden.prompts {
        diagnoses.push(diagnose(engine, prompt, layers, bound, &mut of_prompts)?);
        counter.add(length(prompt));
    }
    let step_bound = StepBound::new(bound, &diagnoses);
    let mut prompts = Vec::with_capacity(golden.prompts.len());
    for (index, (prompt, rows)) in golden.prompts.iter().zip(&diagnoses).enumerate() {
        let steps = compare_steps(engine, prompt, &step_bound, &errors[index])?;
        counter.add(length(prompt));
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
            ranks: steps.ranks,
        });
    }
    Ok(Verdict { passed: prompts.iter().all(|prompt| prompt.passed), bound: used, prompts })
}

/// The tokens of a prompt with its greedy steps.
fn length(prompt: &GoldenPrompt) -> u64 {
    (prompt.tokens.len() + prompt.reference.greedy.len()) as u64
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
struct StepBound<'a> {
    bound: &'a ErrorBound,
    /// The share of the bound within which a choice may differ.
    choice_share: f64,
}

impl<'a> StepBound<'a> {
    fn new(bound: &'a ErrorBound, diagnoses: &[Vec<LayerRow>]) -> StepBound<'a> {
        let choice_share = if bound.has_quantized_weights() {
            diagnoses.iter().flatten().fold(0.0f64, |max, row| max.max(row.of_bound)).min(1.0)
        } else {
            1.0
        };
        StepBound { bound, choice_share }
    }

    /// The allowance of a step at which the model has this row of logits, whose followed error is
    /// `error`.
    fn allowance(&self, row: &[f32], error: Option<f64>) -> StepAllowance {
        let logits = 2.0 * self.bound.at("logits", rms(row), error);
        StepAllowance { logits, choice: self.choice_share * logits }
    }
}

/// Returns the followed error of the logits of each greedy step.
fn step_errors(
    engine: &mut Engine,
    prompt: &GoldenPrompt,
    bound: &ErrorBound,
    used: &mut BoundUse,
) -> Result<Vec<Option<f64>>> {
    let steps = &prompt.reference.greedy[..prompt.reference.greedy.len().saturating_sub(1)];
    let tokens: Vec<u32> = prompt.tokens.iter().copied().chain(steps.iter().map(|step| step.token)).collect();
    let (given, spans) = (prompt.given(), prompt.spans());
    let run = TokenPrompt { tokens: &tokens, given: &given, spans: &spans };
    let errors = logit_errors(engine, run, bound, used)?;
    Ok(errors[prompt.tokens.len().saturating_sub(1)..].to_vec())
}

/// The comparison of all greedy steps of a prompt: the number of equal choices, and the first
/// step of each kind.
#[derive(Default)]
struct GreedyComparison {
    equal: usize,
    divergence: Option<Divergence>,
    failed: Option<FailedStep>,
    ranks: Vec<ChoiceRanks>,
}

/// Runs the golden's tokens and compares the logits of each step.
fn compare_steps(
    engine: &mut Engine,
    prompt: &GoldenPrompt,
    bound: &StepBound<'_>,
    errors: &[Option<f64>],
) -> Result<GreedyComparison> {
    let mut all = GreedyComparison::default();
    let mut tokens = prompt.tokens.clone();
    let (given, spans) = (prompt.given(), prompt.spans());
    for (index, step) in prompt.reference.greedy.iter().enumerate() {
        let row = next_logits(engine, TokenPrompt { tokens: &tokens, given: &given, spans: &spans })?;
        let allowance = bound.allowance(&row, errors.get(index).copied().flatten());
        let failed = step.disagreement(&row, allowance);
        let excess = -step.lead(&row);
        all.equal += usize::from(excess <= 0.0);
        all.ranks.push(step.choice_ranks(&row));
        if excess > 0.0 && all.divergence.is_none() {
            all.divergence = Some(Divergence {
                step: index,
                ours: largest(&row),
                golden: step.token,
                margin: step.margin.into(),
                excess,
                allowance: allowance.choice,
                tolerated: failed.is_none(),
            });
        }
        if let (Some(disagreement), None) = (failed, &all.failed) {
            let allowance = match disagreement {
                Disagreement::Choice { .. } => allowance.choice,
                Disagreement::Lead { .. } | Disagreement::Rank { .. } => allowance.logits,
            };
            all.failed = Some(FailedStep { step: index, disagreement, allowance });
        }
        tokens.push(step.token);
    }
    Ok(all)
}

/// Feeds the tokens that the engine has not seen, and returns the next logits.
fn next_logits(engine: &mut Engine, prompt: TokenPrompt<'_>) -> Result<Vec<f32>> {
    let TokenPrompt { tokens, given, spans } = prompt;
    let request = TokenRequest {
        tokens: tokens.to_vec(),
        given: given.to_vec(),
        spans: spans.to_vec(),
        logits: true,
        ..TokenRequest::default()
    };
    engine.submit(request, Hooks::default())?;
    let mut logits = None;
    while !engine.is_idle() {
        for event in engine.step() {
            match &event.kind {
                EventKind::Logits(row) => logits = Some(row.clone()),
                EventKind::Failed(error) => return Err(error.clone()),
                _ => {}
            }
        }
    }
    Ok(logits.expect("a request for logits ends with them or fails"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(ranks: &[(usize, Option<usize>)]) -> PromptVerdict {
        let ranks = ranks
            .iter()
            .map(|&(golden_in_model, model_in_golden)| ChoiceRanks { golden_in_model, model_in_golden });
        PromptVerdict {
            prompt: 0,
            tokens: 1,
            passed: false,
            logits_max_abs: 0.0,
            first_out_of_bound: None,
            equal_tokens: 0,
            greedy_tokens: 2,
            divergence: None,
            failed_step: None,
            ranks: ranks.collect(),
        }
    }

    #[test]
    #[should_panic(expected = "the five best tokens")]
    fn six_best_tokens_are_refused() {
        prompt(&[]).top_choices(6);
    }

    #[test]
    fn tokens_among_the_best_of_the_other_side_are_counted() {
        let found = prompt(&[(1, Some(1)), (3, Some(2)), (2, None)]);
        let choices = |k: usize| {
            let TopChoices { golden_in_model, model_in_golden, first_outside } = found.top_choices(k);
            (golden_in_model, model_in_golden, first_outside)
        };
        assert_eq!(choices(1), (1, 1, Some(1)));
        assert_eq!(choices(2), (2, 2, Some(1)));
        assert_eq!(choices(3), (3, 2, Some(2)));
        assert_eq!(prompt(&[(3, Some(2)), (1, Some(1))]).top_choices(3).first_outside, None);
    }
}
