//! Cases of norms.

use girih_tensor::reference;

use super::case::Case;
use super::draft::{Begin, CaseDraft};
use super::roundoff::{Roundoff, TINY};
use crate::ops::{Op, OpName};

/// Epsilons of models, and one that changes every result.
const EPSILONS: [f32; 4] = [1e-12, 1e-6, 1e-5, 1.0];

impl CaseDraft {
    /// The inner dimensions of a normed value: one row, or heads.
    fn normed(&mut self, size: usize) -> Vec<usize> {
        if self.random.once_in(2) { vec![size] } else { vec![1 + self.random.below(4), size] }
    }
}

/// The sum of squares has one rounding for each term and one for the product, and the root halves their error;
/// the mean, epsilon, the root, the quotient and two products follow.
pub(super) fn norm(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Norm, seed, round, Begin::Anywhere);
    let (format, has_weight) = (draft.format(), !draft.random.once_in(4));
    let format = if draft.random.once_in(2) { format } else { draft.vector_format() };
    // A weight is whole blocks.
    let size = match format.tile() {
        (1, _) => draft.columns_of(format),
        (_, _) => draft.columns(),
    };
    let (inner, epsilon) = (draft.normed(size), draft.random.of(&EPSILONS));
    let (x, numbers) = draft.any_rows("x", &inner);
    // Of groups of a row, each may have a weight of its own.
    let count = if draft.random.once_in(3) { inner.iter().product() } else { size };
    let weight = has_weight.then(|| draft.weight("weight", &[count], format));
    let relative = round.gamma(size + 1) / 2.0 + round.gamma(7);
    let bounds = numbers.chunks_exact(size).enumerate().flat_map(|(run, row)| {
        let root = reference::root_mean_square(row, f64::from(epsilon));
        let weight = weight.as_ref().map(|(_, weight)| weight);
        row.iter().enumerate().map(move |(index, x)| {
            let weight = weight.map_or(1.0, |weight| f64::from(weight[(run * size + index) % count]));
            relative * (f64::from(*x) / root * weight).abs() + TINY
        })
    });
    let bounds = bounds.collect();
    let operands: Vec<_> = [x].into_iter().chain(weight.iter().map(|(id, _)| *id)).collect();
    let y = draft.builder.same("y", Op::Norm { epsilon }, &operands);
    let with = if has_weight { format.name() } else { "no" };
    draft.gathered(format!("{inner:?}, {with} weight, epsilon {epsilon}"), y, bounds)
}

/// The mean has an error of gamma(n) of the mean size of terms; it is added to each distance, and its
/// square to the variance, because distances from the exact mean add up to zero. The sum of squares has
/// one rounding per term and two for the square of a rounded distance, and the root halves their error.
/// A quotient, epsilon, the root, the quotient, a distance, two products and the sum with the bias follow.
fn layer_norm_bounds(
    x: &[f32],
    [weight, bias]: [Option<&[f32]>; 2],
    epsilon: f32,
    round: Roundoff,
) -> Vec<f64> {
    let count = x.len();
    let (mean, root) = reference::mean_and_deviation(x, f64::from(epsilon));
    let size = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / count as f64;
    let mean_error = round.gamma(count + 1) * size;
    let relative = round.gamma(count + 4) / 2.0 + (mean_error / root).powi(2) / 2.0 + round.gamma(7);
    let value = |index: usize| {
        let weight = weight.map_or(1.0, |weight| f64::from(weight[index])).abs() / root;
        let bias = bias.map_or(0.0, |bias| f64::from(bias[index]));
        let distance = (f64::from(x[index]) - mean).abs() * weight;
        // A tenth more for products of errors.
        1.1 * (mean_error * weight + relative * distance) + round.gamma(1) * bias.abs() + TINY
    };
    (0..count).map(value).collect()
}

/// A layer norm with no vector, a weight, or a weight and a bias.
pub(super) fn layer_norm(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::LayerNorm, seed, round, Begin::Anywhere);
    let size = draft.columns();
    let (inner, epsilon) = (draft.normed(size), draft.random.of(&EPSILONS));
    let (x, numbers) = draft.any_rows("x", &inner);
    let count = draft.random.below(3);
    let vectors: Vec<_> = ["weight", "bias"][..count]
        .iter()
        .map(|name| {
            let format = draft.vector_format();
            draft.weight(name, &[size], format)
        })
        .collect();
    let of = |index: usize| vectors.get(index).map(|(_, numbers)| numbers.as_slice());
    let rows = numbers.chunks_exact(size);
    let bounds = rows.flat_map(|row| layer_norm_bounds(row, [of(0), of(1)], epsilon, round)).collect();
    let operands: Vec<_> = [x].into_iter().chain(vectors.iter().map(|(id, _)| *id)).collect();
    let y = draft.builder.same("y", Op::LayerNorm { epsilon }, &operands);
    draft.gathered(format!("{inner:?}, {count} vectors, epsilon {epsilon}"), y, bounds)
}
