//! The noise of rows that are cut, and of sums of heads.

use super::attention::HeadPart;
use crate::rounding::mean_square;

/// The noise of a row, most of whose numbers may be cut: that of the numbers above the cutoff, and that of the cutoff,
/// which all of them have. Both are at most those of whole rows, as a cutoff is no larger than the mean and the
/// deviations together, whose squares are at most those of the row.
pub(super) fn noise(made: &[f32], error: f64, size: f64, deviations: f64, cutoff: f64) -> f64 {
    let above = made.iter().filter(|x| **x != 0.0).count();
    let share = above as f64 / made.len().max(1) as f64;
    share * (error + (1.0 + deviations.powi(2)) * cutoff) * size
}

/// The noise of heads by the squares of their weights, and that of weights, a mean square, by the squares of their
/// heads. A product has an error of its `own`.
pub(super) fn noise_of_heads<'a>(
    weights: &[f32],
    of_weights: f64,
    own: f64,
    head: impl Fn(usize) -> HeadPart<'a>,
) -> f64 {
    let noise = weights.iter().enumerate().map(|(index, weight)| {
        let head = head(index);
        let size = mean_square(head.numbers.iter().copied());
        f64::from(*weight).powi(2) * (head.noise + own * size) + of_weights * size
    });
    noise.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of four numbers one is left: a quarter of the noise of the row, and of the cutoff of one deviation.
    #[test]
    fn numbers_that_are_cut_have_no_noise() {
        assert_eq!(noise(&[0.0, 0.0, 3.0, 0.0], 0.5, 8.0, 1.0, 0.25), 0.25 * (0.5 + 0.5) * 8.0);
        assert_eq!(noise(&[0.0; 4], 0.5, 8.0, 1.0, 0.25), 0.0);
    }

    /// A head of the size 1 and noise 0.1 counts four times, one of the size 9 once.
    #[test]
    fn heads_have_the_noise_of_their_weights() {
        let heads = [[1.0, -1.0], [3.0, 3.0]];
        let part = |head: usize| HeadPart { numbers: &heads[head], error: 0.0, noise: 0.1 };
        let found = noise_of_heads(&[2.0, -1.0], 0.01, 0.5, part);
        let want = 4.0 * (0.1 + 0.5) + 0.01 + (0.1 + 4.5) + 0.09;
        assert!((found - want).abs() < 1e-12, "{found} {want}");
    }
}
