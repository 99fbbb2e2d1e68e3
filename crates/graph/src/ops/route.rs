//! The choice of experts: the scores of a router become weights, 0 for experts that are not chosen.

use std::cmp::Ordering;

use girih_tensor::Shape;

use crate::constant::{ExpertGroups, RouterScore};
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(scores: &Value, bias: Option<&Value>, y: &Value) -> bool {
    scores.rank() == 2 && y.is_like(scores) && bias.is_none_or(|bias| bias.is_vector(scores.columns()))
}

/// The constants of a `route`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// What scores become.
    pub score: RouterScore,
    /// The number of experts that are chosen.
    pub used: u32,
    /// If set, the weights of a row are divided by their sum plus this.
    pub normalized: Option<f32>,
    /// The groups of experts, if groups are chosen first.
    pub groups: Option<ExpertGroups>,
    /// Multiplies every weight.
    pub factor: Option<f32>,
    /// If set, the probability of an expert is its softmax over those near it that are not chosen before it: they are
    /// not farther below it than this share of the larger score.
    pub near: Option<f32>,
}

impl Router {
    /// Whether the router can choose among this number of experts.
    pub fn suits(&self, experts: usize) -> bool {
        let used = self.used as usize;
        let in_groups = |ExpertGroups { count, used: groups, best }: ExpertGroups| {
            let (count, size) = (count as usize, experts.checked_div(count as usize).unwrap_or(0));
            groups > 0
                && groups as usize <= count
                && size * count == experts
                && (1..=size).contains(&(best as usize))
                && used <= groups as usize * size
        };
        let knows_near = self.near.is_none() || self.score == RouterScore::Softmax;
        (1..=experts).contains(&used) && knows_near && self.groups.is_none_or(in_groups)
    }

    /// What the scores of a row become, before the choice.
    fn probabilities(&self, scores: &[f32]) -> Vec<f64> {
        let scores = scores.iter().map(|score| f64::from(*score));
        match self.score {
            RouterScore::Sigmoid => scores.map(|score| 1.0 / (1.0 + (-score).exp())).collect(),
            RouterScore::Softmax => {
                let largest = scores.clone().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = scores.map(|score| (score - largest).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.into_iter().map(|power| power / sum).collect()
            }
        }
    }

    /// The numbers by which experts are chosen. Scores order experts like what they become, without its
    /// ties.
    fn rank_by(&self, scores: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
        if bias.is_none() && self.groups.is_none() {
            return scores.iter().map(|score| f64::from(*score)).collect();
        }
        let mut ranks = self.probabilities(scores);
        for (rank, bias) in ranks.iter_mut().zip(bias.into_iter().flatten()) {
            *rank += f64::from(*bias);
        }
        ranks
    }

    /// The rank of each group: the sum of its largest ranks, of two (DeepSeek-AI 2024, arXiv 2412.19437) or of one
    /// (DeepSeek-AI 2024, arXiv 2405.04434).
    fn group_ranks(ranks: &[f64], groups: ExpertGroups) -> Vec<f64> {
        let sum =
            |group: &[f64]| largest(group, groups.best as usize).iter().map(|index| group[*index]).sum();
        ranks.chunks_exact(ranks.len() / groups.count as usize).map(sum).collect()
    }

    /// The chosen experts of a row, the largest rank first.
    fn choice(&self, ranks: &[f64]) -> Vec<usize> {
        let candidates: Vec<usize> = match self.groups {
            None => (0..ranks.len()).collect(),
            Some(groups) => {
                let size = ranks.len() / groups.count as usize;
                let mut chosen = largest(&Router::group_ranks(ranks, groups), groups.used as usize);
                chosen.sort_unstable();
                chosen.into_iter().flat_map(|group| group * size..(group + 1) * size).collect()
            }
        };
        let of_candidates: Vec<f64> = candidates.iter().map(|index| ranks[*index]).collect();
        let chosen = largest(&of_candidates, self.used as usize);
        chosen.into_iter().map(|index| candidates[index]).collect()
    }

    /// How much farther than near each score is below that of an expert, for those that are not chosen before it.
    fn beyond_near<'s>(
        scores: &'s [f32],
        before: &'s [usize],
        expert: usize,
        near: f32,
    ) -> impl Iterator<Item = (usize, f64)> + 's {
        let own = f64::from(scores[expert]);
        let others = (0..scores.len()).filter(|index| !before.contains(index));
        others.map(move |index| {
            let score = f64::from(scores[index]);
            (index, own - score - f64::from(near) * score.abs().max(own))
        })
    }

    /// The probabilities of the chosen experts, which are in the order of their ranks.
    fn of_chosen(&self, scores: &[f32], chosen: &[usize]) -> Vec<f64> {
        let Some(near) = self.near else {
            let probabilities = self.probabilities(scores);
            return chosen.iter().map(|index| probabilities[*index]).collect();
        };
        let share = |(place, expert): (usize, &usize)| {
            let power = |index: usize| f64::from(scores[index]) - f64::from(scores[*expert]);
            let all = Router::beyond_near(scores, &chosen[..place], *expert, near);
            let sum: f64 =
                all.filter(|(_, beyond)| *beyond <= 0.0).map(|(index, _)| power(index).exp()).sum();
            1.0 / sum
        };
        chosen.iter().enumerate().map(share).collect()
    }

    /// The weights of a row's experts.
    pub fn weights(&self, scores: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let chosen = self.choice(&self.rank_by(scores, bias));
        let probabilities = self.of_chosen(scores, &chosen);
        let sum: f64 = probabilities.iter().sum();
        let divisor = self.normalized.map_or(1.0, |epsilon| sum + f64::from(epsilon));
        let factor = self.factor.map_or(1.0, f64::from);
        let mut weights = vec![0.0; scores.len()];
        for (index, probability) in chosen.into_iter().zip(probabilities) {
            weights[index] = (probability / divisor * factor) as f32;
        }
        weights
    }

    /// The chosen experts that might not be chosen, or be near other ones, if each score were off by up to `error`.
    pub fn uncertain(&self, scores: &[f32], bias: Option<&[f32]>, error: f64) -> Vec<usize> {
        let ranks = self.rank_by(scores, bias);
        let chosen = self.choice(&ranks);
        // A sigmoid changes by a quarter of its score's change at most, a probability by half of all changes.
        let slope = match self.score {
            _ if bias.is_none() && self.groups.is_none() => 1.0,
            RouterScore::Sigmoid => 0.25,
            RouterScore::Softmax => 0.5,
        };
        let below = |ranks: &[f64], taken: &[usize]| {
            let others = (0..ranks.len()).filter(|index| !taken.contains(index)).map(|index| ranks[index]);
            others.fold(f64::NEG_INFINITY, f64::max)
        };
        let mut candidates = vec![true; ranks.len()];
        if let Some(groups) = self.groups {
            let of_groups = Router::group_ranks(&ranks, groups);
            let taken = largest(&of_groups, groups.used as usize);
            let next = below(&of_groups, &taken);
            // A group's rank is a sum.
            let error = f64::from(groups.best) * error;
            if taken.iter().any(|group| of_groups[*group] - next <= 2.0 * slope * error) {
                return chosen;
            }
            let size = ranks.len() / groups.count as usize;
            candidates = (0..ranks.len()).map(|index| taken.contains(&(index / size))).collect();
        }
        let others = (0..ranks.len()).filter(|index| candidates[*index] && !chosen.contains(index));
        let next = others.map(|index| ranks[index]).fold(f64::NEG_INFINITY, f64::max);
        let may_leave = |index: usize| ranks[index] - next <= 2.0 * slope * error;
        // With `near`, a probability also depends on the order of the chosen ones, and jumps where another expert
        // becomes near.
        let may_jump = |place: usize| {
            let Some(near) = self.near else { return false };
            let gaps = chosen.windows(2).map(|pair| ranks[pair[0]] - ranks[pair[1]]);
            let is_close = |gap: f64| gap <= 2.0 * slope * error;
            let turns = gaps.enumerate().any(|(at, gap)| is_close(gap) && [at, at + 1].contains(&place));
            let mut others = Router::beyond_near(scores, &chosen[..place], chosen[place], near);
            let reach = (2.0 + f64::from(near)) * error;
            turns || others.any(|(index, beyond)| index != chosen[place] && beyond.abs() <= reach)
        };
        let places = (0..chosen.len()).filter(|place| may_leave(chosen[*place]) || may_jump(*place));
        let mut uncertain: Vec<usize> = places.map(|place| chosen[place]).collect();
        uncertain.sort_unstable();
        uncertain
    }
}

/// The indexes of the `count` largest numbers: NaN is the largest, and of equal ones the first.
fn largest(numbers: &[f64], count: usize) -> Vec<usize> {
    let mut indexes: Vec<usize> = (0..numbers.len()).collect();
    let descending = |a: &usize, b: &usize| {
        let (a, b) = (numbers[*a], numbers[*b]);
        b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(Ordering::Equal))
    };
    indexes.sort_by(descending);
    indexes.truncate(count);
    indexes
}

/// A row has a score for each of `experts` experts.
pub(crate) fn define(scores: &[f32], bias: Option<&[f32]>, experts: usize, router: Router) -> Vec<f32> {
    scores.chunks_exact(experts).flat_map(|row| router.weights(row, bias)).collect()
}

#[allow(clippy::too_many_arguments, reason = "the constants and operands of the table")]
pub(super) fn work(
    _score: RouterScore,
    used: u32,
    _normalized: Option<f32>,
    _groups: Option<ExpertGroups>,
    _factor: Option<f32>,
    _near: Option<f32>,
    scores: Shape,
    _bias: Option<Shape>,
    step: WorkStep<'_>,
) -> NodeWork {
    NodeWork::each(2, (10 + u64::from(used)) * step.elements(scores))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Router = Router {
        score: RouterScore::Softmax,
        used: 2,
        normalized: None,
        groups: None,
        factor: None,
        near: None,
    };

    fn assert_near(found: &[f32], want: &[f32]) {
        assert!(found.iter().zip(want).all(|(found, want)| (found - want).abs() < 1e-6), "{found:?}");
        assert_eq!(found.len(), want.len());
    }

    /// `ln 1`, `ln 2`, `ln 4` and `ln 3` have the softmax 0.1, 0.2, 0.4 and 0.3.
    const LOGARITHMS: [f32; 4] = [0.0, std::f32::consts::LN_2, 2.0 * std::f32::consts::LN_2, 1.098_612_3];

    #[test]
    fn weights_are_probabilities_or_shares_of_the_chosen() {
        assert_near(&PLAIN.weights(&LOGARITHMS, None), &[0.0, 0.0, 0.4, 0.3]);
        let shares = Router { normalized: Some(0.0), factor: Some(7.0), ..PLAIN };
        assert_near(&shares.weights(&LOGARITHMS, None), &[0.0, 0.0, 4.0, 3.0]);
        let epsilon = Router { normalized: Some(0.7), ..PLAIN };
        assert_near(&epsilon.weights(&LOGARITHMS, None), &[0.0, 0.0, 0.4 / 1.4, 0.3 / 1.4]);
    }

    #[test]
    fn a_bias_changes_the_choice_and_no_weight() {
        let router = Router { score: RouterScore::Sigmoid, used: 1, ..PLAIN };
        let scores = [0.0, 5.0, 0.0, 0.0];
        assert_near(&router.weights(&scores, Some(&[0.0, 0.0, 0.6, 0.0])), &[0.0, 0.0, 0.5, 0.0]);
        assert_near(&router.weights(&scores, Some(&[0.0, 0.2, 0.6, 0.0])), &[0.0, 0.993_307_1, 0.0, 0.0]);
    }

    #[test]
    fn the_first_of_equal_experts_is_chosen_and_nan_is_chosen_first() {
        let equal = PLAIN.weights(&[1.0; 4], None);
        assert_eq!(equal, [0.25, 0.25, 0.0, 0.0]);
        let sigmoid = Router { score: RouterScore::Sigmoid, ..PLAIN };
        let with_nan = sigmoid.weights(&[0.0, 9.0, 8.0, f32::NAN], None);
        assert!(with_nan[3].is_nan() && with_nan[1] > 0.9 && with_nan[2] == 0.0, "{with_nan:?}");
    }

    /// The group of the best expert has the lower sum of two.
    #[test]
    fn groups_are_chosen_by_their_two_best() {
        let groups = Some(ExpertGroups { count: 2, used: 1, best: 2 });
        let router = Router { score: RouterScore::Sigmoid, groups, ..PLAIN };
        let weights = router.weights(&[3.0, -9.0, 1.0, 2.0], None);
        assert!(
            weights[0] == 0.0 && weights[1] == 0.0 && weights[2] > 0.7 && weights[3] > 0.8,
            "{weights:?}"
        );
    }

    #[test]
    fn groups_may_be_chosen_by_their_best() {
        let groups = Some(ExpertGroups { count: 2, used: 1, best: 1 });
        let weights = Router { groups, used: 1, ..PLAIN }.weights(&[3.0, -9.0, 1.0, 2.0], None);
        assert!(weights[0] > 0.6 && weights[1..] == [0.0; 3], "{weights:?}");
        assert!(Router { groups: Some(ExpertGroups { count: 4, used: 2, best: 1 }), ..PLAIN }.suits(4));
    }

    #[test]
    fn a_router_suits_a_number_of_experts() {
        let groups = |count, used| Router { groups: Some(ExpertGroups { count, used, best: 2 }), ..PLAIN };
        assert!(PLAIN.suits(2) && !PLAIN.suits(1));
        assert!(groups(2, 1).suits(4) && !groups(2, 1).suits(5) && !groups(2, 3).suits(4));
        assert!(
            !groups(4, 2).suits(4) && !groups(0, 0).suits(4) && !Router { used: 3, ..groups(2, 1) }.suits(4)
        );
    }

    /// The second expert is near the first one by 0.2 of 4, the third one is not. The second choice is among what is
    /// left.
    #[test]
    fn experts_near_a_chosen_one_share_its_probability() {
        let router = Router { near: Some(0.06), ..PLAIN };
        let scores = [4.0, 3.8, 3.0, 3.6];
        let share = |gap: f32| 1.0 / (1.0 + (-gap).exp());
        assert_near(&router.weights(&scores, None), &[share(0.2), share(0.2), 0.0, 0.0]);
        assert_eq!(router.weights(&[-4.0, -3.0, -5.0, -9.0], None), [1.0, 1.0, 0.0, 0.0]);
        // Below zero, the share is that of the other score: 0.06 · 4.25.
        assert_near(&router.weights(&[-4.0, -4.25, -9.0, -9.0], None), &[share(0.25), 1.0, 0.0, 0.0]);
        // 3.8 is 0.04 above the border of 4, and 3.6 is 0.028 above that of 3.8.
        let uncertain = |error| router.uncertain(&scores, None, error);
        assert_eq!([uncertain(0.02), uncertain(0.015), uncertain(0.01)], [vec![0, 1], vec![1], vec![]]);
        assert!(!Router { score: RouterScore::Sigmoid, ..router }.suits(4));
    }

    /// Experts 2 and 3 are chosen, 3 by a lead of a half.
    #[test]
    fn a_choice_is_uncertain_if_scores_may_change_places() {
        let scores = [0.0, 1.0, 3.0, 1.5];
        let uncertain = |error| PLAIN.uncertain(&scores, None, error);
        assert_eq!([uncertain(0.24), uncertain(0.26), uncertain(1.1)], [vec![], vec![3], vec![2, 3]]);
        let moved = |by: f32| PLAIN.choice(&PLAIN.rank_by(&[0.0, 1.0 + by, 3.0, 1.5 - by], None));
        assert_eq!([moved(0.24), moved(0.26)], [vec![2, 3], vec![2, 1]]);
        let groups = Router {
            score: RouterScore::Sigmoid,
            groups: Some(ExpertGroups { count: 2, used: 1, best: 2 }),
            ..PLAIN
        };
        assert_eq!(groups.uncertain(&[0.1, 0.0, 0.1, 0.1], None, 0.2), [2, 3]);
        assert!(groups.uncertain(&[-5.0, -5.0, 5.0, 5.0], None, 0.2).is_empty());
    }
}
