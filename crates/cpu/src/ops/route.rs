//! The choice of experts.

use girih_graph::{ExpertGroups, Graph, Router, RouterScore, ValueId};

use super::executor::Executor;
use super::rows::ROW_PIECE_VALUES;
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::{CpuKernel, exponential};
use crate::pool::Grid;

/// `y` = the weights of the experts of one row. The number of operations is small beside that of the experts.
pub struct RouteRow<'a> {
    pub router: Router,
    pub scores: &'a [f32],
    pub bias: Option<&'a [f32]>,
    /// At least [`RouteRow::scratch_len`] values.
    pub scratch: &'a mut [f32],
    pub y: &'a mut [f32],
}

impl CpuKernel for RouteRow<'_> {
    #[inline(always)]
    fn run(self) {
        self.choose(exponential::exp);
    }

    fn run_portable(self) {
        self.choose(|x| f64::from(x).exp() as f32);
    }
}

impl RouteRow<'_> {
    /// The values of `scratch` for a number of experts: their probabilities, their ranks, and whether they
    /// are taken; and the ranks of groups.
    pub fn scratch_len(experts: usize) -> usize {
        4 * experts
    }

    #[inline(always)]
    fn choose(self, exp: impl Fn(f32) -> f32) {
        let RouteRow { router, scores, bias, scratch, y } = self;
        let experts = scores.len();
        let (probabilities, rest) = scratch.split_at_mut(experts);
        let (ranks, rest) = rest.split_at_mut(experts);
        let (taken, of_groups) = rest.split_at_mut(experts);
        match router.score {
            RouterScore::Sigmoid => {
                for (p, score) in probabilities.iter_mut().zip(scores) {
                    *p = 1.0 / (1.0 + exp(-score));
                }
            }
            RouterScore::Softmax => {
                let largest = scores.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
                let mut sum = 0.0;
                for (p, score) in probabilities.iter_mut().zip(scores) {
                    *p = exp(score - largest);
                    sum += *p;
                }
                probabilities.iter_mut().for_each(|p| *p /= sum);
            }
        }
        match bias {
            None if router.groups.is_none() => ranks.copy_from_slice(scores),
            None => ranks.copy_from_slice(probabilities),
            Some(bias) => {
                for ((rank, p), bias) in ranks.iter_mut().zip(&*probabilities).zip(bias) {
                    *rank = p + bias;
                }
            }
        }
        taken.fill(0.0);
        if let Some(groups) = router.groups {
            take_others(groups, ranks, taken, of_groups);
        }
        y.fill(0.0);
        for _ in 0..router.used {
            let best = take_best(ranks, taken);
            if let Some(near) = router.near {
                probabilities[best] = share_of_near(scores, y, best, near, &exp);
            }
            y[best] = 1.0;
        }
        let is_chosen = |(y, _): &(&f32, &f32)| **y != 0.0;
        if router.normalized == Some(0.0)
            && y.iter().zip(&*probabilities).filter(is_chosen).all(|(_, p)| *p == 0.0)
        {
            // Sigmoids of scores below −87 are 0 in `f32`. Their shares are those of powers.
            let chosen = y.iter().zip(scores).filter(is_chosen);
            let largest = chosen.fold(f32::NEG_INFINITY, |a, (_, b)| a.max(*b));
            probabilities.iter_mut().zip(scores).for_each(|(p, score)| *p = exp(score - largest));
        }
        let mut sum = 0.0;
        for (y, p) in y.iter_mut().zip(&*probabilities).filter(|(y, _)| **y != 0.0) {
            *y = *p;
            sum += p;
        }
        let divisor = router.normalized.map_or(1.0, |epsilon| sum + epsilon);
        let factor = router.factor.unwrap_or(1.0);
        y.iter_mut().filter(|y| **y != 0.0).for_each(|y| *y = *y / divisor * factor);
    }
}

/// The share of an expert among those that are not chosen yet, whose `y` is 0, and whose scores are near its own.
#[inline(always)]
fn share_of_near(scores: &[f32], y: &[f32], index: usize, near: f32, exp: &impl Fn(f32) -> f32) -> f32 {
    let own = scores[index];
    let mut sum = 0.0;
    for (score, y) in scores.iter().zip(y) {
        if *y == 0.0 && own - score <= near * score.abs().max(own) {
            sum += exp(score - own);
        }
    }
    1.0 / sum
}

/// Takes the experts of groups that are not chosen.
#[inline(always)]
fn take_others(groups: ExpertGroups, ranks: &[f32], taken: &mut [f32], of_groups: &mut [f32]) {
    let (count, size) = (groups.count as usize, ranks.len() / groups.count as usize);
    let of_groups = &mut of_groups[..count];
    for (group, rank) in of_groups.iter_mut().enumerate() {
        let (ranks, taken) = (&ranks[group * size..][..size], &mut taken[group * size..][..size]);
        *rank = ranks[take_best(ranks, taken)];
        for _ in 1..groups.best {
            *rank += ranks[take_best(ranks, taken)];
        }
    }
    // All experts count as taken, then those of the chosen groups do not.
    taken.fill(1.0);
    for _ in 0..groups.used {
        let mut best = None;
        for (group, rank) in of_groups.iter().enumerate() {
            let is_free = taken[group * size] == 1.0;
            if is_free && best.is_none_or(|best: usize| is_above(*rank, of_groups[best])) {
                best = Some(group);
            }
        }
        if let Some(best) = best {
            taken[best * size..][..size].fill(0.0);
        }
    }
}

/// The first of those with the largest rank that are not taken; it is taken then.
#[inline(always)]
fn take_best(ranks: &[f32], taken: &mut [f32]) -> usize {
    let mut best = None;
    for (index, rank) in ranks.iter().enumerate() {
        if taken[index] == 0.0 && best.is_none_or(|best: usize| is_above(*rank, ranks[best])) {
            best = Some(index);
        }
    }
    let best = best.expect("the checker refuses to choose more experts than there are");
    taken[best] = 1.0;
    best
}

/// Whether a rank comes before another: NaN comes first.
#[inline(always)]
fn is_above(a: f32, b: f32) -> bool {
    a > b || a.is_nan() && !b.is_nan()
}

pub(crate) fn bind(
    graph: &Graph,
    router: Router,
    scores: ValueId,
    bias: Option<ValueId>,
    y: ValueId,
) -> BoundOp {
    let experts = graph.value(scores).shape.columns();
    let run = BoundOp::new(move |step| {
        let bias = bias.map(|bias| step.weights.vector(bias));
        let (y, [scores]) = step.values.split(y, [scores]);
        let Executor { table, pool, locals, .. } = &mut step.executor;
        // A row takes longer than as many values of other kernels.
        let rows = ROW_PIECE_VALUES / (8 * experts);
        let grid = Grid { width: experts, row_step: rows.max(1), column_step: experts };
        pool.tiles(locals, y, grid, |tile, scratch| {
            for row in tile.rows() {
                let scores = &scores[row * experts..][..experts];
                table.run(RouteRow { router, scores, bias, scratch, y: tile.row(row) });
            }
        });
    });
    BoundOp { scratch: OpScratch { local: RouteRow::scratch_len(experts), ..OpScratch::default() }, ..run }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tables;

    #[test]
    fn sigmoids_that_underflow_have_shares() {
        let score = RouterScore::Sigmoid;
        let router = Router { score, used: 2, normalized: Some(0.0), groups: None, factor: None, near: None };
        let scores = [-101.0, -300.0, -100.0];
        for table in tables() {
            let (mut scratch, mut y) = ([0.0; 12], [0.0; 3]);
            table.run(RouteRow { router, scores: &scores, bias: None, scratch: &mut scratch, y: &mut y });
            let want = router.weights(&scores, None);
            assert!(y.iter().zip(&want).all(|(y, want)| (y - want).abs() < 1e-6), "{y:?} {want:?}");
            assert!(y[2] > 0.7 && y[1] == 0.0, "{y:?}");
        }
    }
}
