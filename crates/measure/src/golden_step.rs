//! One step of a golden's greedy continuation, and what logits that agree with it satisfy.
//!
//! If every logit differs from the golden's by at most `b`, two facts follow for a step,
//! whatever the tokens are:
//!
//! 1. The lead of the golden's token, its logit less the largest other one, differs from the
//!    golden's margin by at most `2b`, because each of the two terms differs by at most `b`.
//!    So the largest logit is another token's only if the margin is at most `2b`.
//! 2. A token that the golden ranks behind another exceeds it by at most `2b`. The golden
//!    ranks its five largest logits, and all others behind them.
//!
//! [`GoldenStep::disagreement`] tests both, and the choice with an allowance that may be smaller.
//! The tokens before the step must be the golden's.

use std::cmp::Ordering;

use serde::Serialize;

use crate::{Error, Result};

/// What a golden has for one greedy step.
#[derive(Clone, Debug, PartialEq)]
pub struct GoldenStep {
    /// The chosen token.
    pub token: u32,
    /// The difference between the two largest logits.
    pub margin: f32,
    /// The ids of the five largest logits, largest first.
    pub top5: [u32; 5],
}

/// How a row of logits contradicts a golden's step. All numbers are logits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Disagreement {
    /// The lead of the golden's token is not the golden's margin.
    Lead {
        /// The golden's token.
        token: u32,
        /// Its lead in the row; negative if another token has the largest logit.
        lead: f64,
        /// The golden's margin.
        margin: f64,
    },
    /// A token exceeds one that the golden ranks before it.
    Rank {
        /// The token with the larger logit.
        above: u32,
        /// The token that the golden ranks before it.
        below: u32,
        /// The difference of their logits.
        excess: f64,
    },
    /// Another token has the largest logit, though the golden's margin is large.
    Choice {
        /// The token with the largest logit.
        ours: u32,
        /// The golden's token.
        golden: u32,
        /// The golden's margin.
        margin: f64,
    },
}

/// The ranks of both sides' choices at a step, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChoiceRanks {
    /// The rank of the golden's token among the model's logits.
    pub golden_in_model: usize,
    /// The rank of the model's token among the golden's five; none if it is not among them.
    pub model_in_golden: Option<usize>,
}

impl ChoiceRanks {
    /// Whether the golden's token is among the model's best `k`, and the model's among the golden's.
    pub fn within(self, k: usize) -> [bool; 2] {
        [self.golden_in_model <= k, self.model_in_golden.is_some_and(|rank| rank <= k)]
    }
}

/// What a row may differ from a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepAllowance {
    /// Twice the permitted difference of a logit: that of leads and ranks.
    pub logits: f64,
    /// The largest margin at which another token may have the largest logit; at most `logits`.
    pub choice: f64,
}

impl StepAllowance {
    /// The allowance of a row whose logits may each differ by half of `twice`.
    pub(crate) fn of(twice: f64) -> StepAllowance {
        StepAllowance { logits: twice, choice: twice }
    }
}

/// The token with the largest logit; the last one if several have it.
///
/// # Panics
/// When the row is empty.
pub(crate) fn largest(row: &[f32]) -> u32 {
    let ids = 0..row.len() as u32;
    ids.max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).expect("a vocabulary is not empty")
}

impl GoldenStep {
    /// Checks what does not need logits: the margin is a number of at least 0, the five ids
    /// are distinct, and the chosen token is the first of them. If the margin is 0, several
    /// tokens have the largest logit, and the chosen one may be any of the five.
    ///
    /// # Errors
    /// A sentence that begins with `place`, the tensors' step.
    pub(crate) fn check(&self, place: &str) -> Result<()> {
        let GoldenStep { token, margin, top5 } = self;
        let fault = |what: String| Err(Error::new(format!("{place}: {what}; make the golden again")));
        if !(margin.is_finite() && *margin >= 0.0) {
            return fault(format!("the margin is {margin}; a number of at least 0 is needed"));
        }
        let repeated = (1..top5.len()).find(|index| top5[..*index].contains(&top5[*index]));
        if let Some(index) = repeated {
            return fault(format!("'step_top5' has the id {} twice", top5[index]));
        }
        if *token != top5[0] && !(*margin == 0.0 && top5.contains(token)) {
            return fault(format!(
                "the greedy token is {token}, but 'step_top5' begins with {}, and the margin is {margin}",
                top5[0]
            ));
        }
        Ok(())
    }

    /// Returns the first disagreement of a row of logits with this step that exceeds its
    /// allowance. A row that is not finite disagrees.
    ///
    /// # Panics
    /// When the row does not have the golden's vocabulary.
    pub(crate) fn disagreement(&self, row: &[f32], allowance: StepAllowance) -> Option<Disagreement> {
        let (lead, margin) = (self.lead(row), f64::from(self.margin));
        if !row.iter().all(|logit| logit.is_finite()) || (lead - margin).abs() > allowance.logits {
            return Some(Disagreement::Lead { token: self.token, lead, margin });
        }
        let choice = || {
            let differs = lead < 0.0 && margin > allowance.choice;
            differs.then(|| Disagreement::Choice { ours: largest(row), golden: self.token, margin })
        };
        self.wrong_rank(row, allowance.logits).or_else(choice)
    }

    /// The lead of the chosen token in a row: its logit less the largest other one.
    pub(crate) fn lead(&self, row: &[f32]) -> f64 {
        let (before, rest) = row.split_at(self.token as usize);
        let others = before.iter().chain(&rest[1..]).copied().fold(f32::NEG_INFINITY, f32::max);
        f64::from(rest[0]) - f64::from(others)
    }

    /// The ranks of the golden's token in a row of logits, and of the row's token in the golden. A row
    /// whose largest logit is the golden's token, too, chooses that.
    pub(crate) fn choice_ranks(&self, row: &[f32]) -> ChoiceRanks {
        let own = row[self.token as usize];
        let larger = row.iter().filter(|logit| logit.partial_cmp(&&own).is_none_or(Ordering::is_gt)).count();
        let ours = if larger == 0 { self.token } else { largest(row) };
        // Tied logits of the golden are in any order, and its token is one of them.
        let rank = if ours == self.token { Some(0) } else { self.top5.iter().position(|id| *id == ours) };
        ChoiceRanks { golden_in_model: larger + 1, model_in_golden: rank.map(|rank| rank + 1) }
    }

    fn wrong_rank(&self, row: &[f32], allowance: f64) -> Option<Disagreement> {
        let logit = |id: u32| f64::from(row[id as usize]);
        let others = (0..row.len() as u32).filter(|id| !self.top5.contains(id));
        // The largest of the tokens behind `below`.
        let mut behind = others.max_by(|a, b| logit(*a).total_cmp(&logit(*b)));
        for below in self.top5.into_iter().rev() {
            if let Some(above) = behind {
                let excess = logit(above) - logit(below);
                if excess > allowance {
                    return Some(Disagreement::Rank { above, below, excess });
                }
                if excess >= 0.0 {
                    continue;
                }
            }
            behind = Some(below);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits 6, 5, 4, 3, 2, 1 of the tokens 5, 4, 3, 2, 1, 0.
    const ROW: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

    fn step() -> GoldenStep {
        GoldenStep { token: 5, margin: 1.0, top5: [5, 4, 3, 2, 1] }
    }

    #[test]
    fn a_step_agrees_with_its_own_row() {
        step().check("step 0").expect("it is consistent");
        assert_eq!(step().disagreement(&ROW, StepAllowance::of(0.0)), None);
        assert_eq!(step().lead(&ROW), 1.0);
    }

    #[test]
    fn both_choices_have_a_rank_on_the_other_side() {
        let ranks = |golden_in_model, model_in_golden| ChoiceRanks { golden_in_model, model_in_golden };
        assert_eq!(step().choice_ranks(&ROW), ranks(1, Some(1)));
        let other = GoldenStep { token: 3, margin: 1.0, top5: [3, 4, 5, 2, 1] };
        assert_eq!(other.choice_ranks(&ROW), ranks(3, Some(3)));
        assert_eq!(ranks(3, Some(3)).within(3), [true, true]);
        assert_eq!(ranks(3, Some(3)).within(2), [false, false]);
        let absent = GoldenStep { token: 0, margin: 1.0, top5: [0, 4, 3, 2, 1] };
        assert_eq!(absent.choice_ranks(&ROW), ranks(6, None));
        assert_eq!(absent.choice_ranks(&ROW).within(5), [false, false]);
        // A logit that is no number is before every other one.
        assert_eq!(step().choice_ranks(&[f32::NAN, 2.0, 3.0, 4.0, 5.0, 6.0]).golden_in_model, 2);
    }

    #[test]
    fn tied_tokens_may_be_in_any_order() {
        let tied = [1.0, 2.0, 3.0, 4.0, 6.0, 6.0];
        for (token, top5) in [(5, [5, 4, 3, 2, 1]), (5, [4, 5, 3, 2, 1]), (4, [5, 4, 3, 2, 1])] {
            let step = GoldenStep { token, margin: 0.0, top5 };
            step.check("step 0").expect("a tie");
            assert_eq!(step.disagreement(&tied, StepAllowance::of(0.0)), None);
            assert!(step.disagreement(&ROW, StepAllowance::of(0.0)).is_some(), "no tie");
        }
        let step = GoldenStep { token: 4, margin: 0.5, top5: [5, 4, 3, 2, 1] };
        let error = step.check("step 0").unwrap_err().to_string();
        assert!(error.contains("the greedy token is 4, but 'step_top5' begins with 5"), "{error}");
    }

    #[test]
    fn every_wrong_field_is_refused_or_disagrees() {
        for margin in [f32::NAN, f32::INFINITY, -0.5] {
            let error = GoldenStep { margin, ..step() }.check("step 3").unwrap_err().to_string();
            assert!(error.starts_with("step 3: the margin is "), "{error}");
        }
        let error = GoldenStep { top5: [5, 4, 3, 4, 1], ..step() }.check("step 3").unwrap_err();
        assert!(error.to_string().contains("has the id 4 twice"), "{error}");
        let wrong = [
            GoldenStep { margin: 1.5, ..step() },
            GoldenStep { token: 4, top5: [4, 5, 3, 2, 1], ..step() },
            GoldenStep { top5: [5, 4, 3, 2, 0], ..step() },
            GoldenStep { top5: [5, 3, 4, 2, 1], ..step() },
            GoldenStep { top5: [5, 4, 0, 2, 1], ..step() },
        ];
        for wrong in wrong {
            wrong.check("step 0").expect("only the row shows the fault");
            assert!(wrong.disagreement(&ROW, StepAllowance::of(0.4)).is_some(), "{wrong:?}");
        }
    }

    #[test]
    fn the_allowance_is_exact() {
        let off = GoldenStep { margin: 1.5, ..step() };
        assert_eq!(off.disagreement(&ROW, StepAllowance::of(0.5)), None);
        let lead = Disagreement::Lead { token: 5, lead: 1.0, margin: 1.5 };
        assert_eq!(off.disagreement(&ROW, StepAllowance::of(0.49)), Some(lead));
        let swapped = GoldenStep { top5: [5, 3, 4, 2, 1], ..step() };
        assert_eq!(swapped.disagreement(&ROW, StepAllowance::of(1.0)), None);
        let rank = Disagreement::Rank { above: 4, below: 3, excess: 1.0 };
        assert_eq!(swapped.disagreement(&ROW, StepAllowance::of(0.99)), Some(rank));
        // A token outside the five may exceed each of them by the allowance.
        let outside = GoldenStep { token: 5, margin: 1.0, top5: [5, 3, 2, 1, 0] };
        assert_eq!(outside.disagreement(&ROW, StepAllowance::of(4.0)), None);
        let rank = Disagreement::Rank { above: 4, below: 0, excess: 4.0 };
        assert_eq!(outside.disagreement(&ROW, StepAllowance::of(3.99)), Some(rank));
    }

    #[test]
    fn a_choice_has_an_allowance_of_its_own() {
        let other = GoldenStep { token: 4, margin: 1.0, top5: [4, 5, 3, 2, 1] };
        assert_eq!(other.disagreement(&ROW, StepAllowance { logits: 2.0, choice: 1.0 }), None);
        let choice = Disagreement::Choice { ours: 5, golden: 4, margin: 1.0 };
        assert_eq!(other.disagreement(&ROW, StepAllowance { logits: 2.0, choice: 0.9 }), Some(choice));
        assert_eq!(step().disagreement(&ROW, StepAllowance { logits: 0.0, choice: 0.0 }), None);
    }

    #[test]
    fn a_row_that_is_not_finite_disagrees() {
        for wrong in [f32::INFINITY, f32::NAN, f32::NEG_INFINITY] {
            let mut row = ROW;
            row[5] = wrong;
            assert!(step().disagreement(&row, StepAllowance::of(1e9)).is_some(), "{wrong}");
            assert!(step().disagreement(&row, StepAllowance::of(f64::INFINITY)).is_some(), "{wrong}");
        }
        assert!(step().disagreement(&[f32::INFINITY; 6], StepAllowance::of(f64::INFINITY)).is_some());
    }
}
