//! Reference arithmetic in `f64`, with which tests compare kernels and the
//! interpreter.
//!
//! A dot product comes with **the sum of the absolute values of its terms**, from
//! which a test derives the tolerance for a fast result.

/// A sum and the sum of the absolute values of its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exact {
    /// The sum.
    pub sum: f64,
    /// The sum of the terms' absolute values; never less than `|sum|`.
    pub size: f64,
}

impl Exact {
    /// The largest error of a sum of `terms` products that is rounded to `f32`
    /// after every step, in any order.
    ///
    /// This is the standard bound γ(n) = n·u / (1 − n·u) with u = 2⁻²⁴ (Higham,
    /// *Accuracy and Stability of Numerical Algorithms*, §3.1), with one more
    /// rounding for the product.
    pub fn bound(&self, terms: usize) -> f64 {
        let n = (terms + 1) as f64 * f64::from(f32::EPSILON) / 2.0;
        self.size * n / (1.0 - n)
    }
}

/// Returns the dot product of two rows of equal length.
///
/// # Panics
/// When the lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> Exact {
    assert_eq!(a.len(), b.len(), "a dot product of rows of equal length");
    let mut exact = Exact::default();
    for (&a, &b) in a.iter().zip(b) {
        let term = f64::from(a) * f64::from(b);
        exact.sum += term;
        exact.size += term.abs();
    }
    exact
}

/// Returns the root mean square of a row, with `epsilon` added to the mean square.
pub fn root_mean_square(row: &[f32], epsilon: f64) -> f64 {
    let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    (squares / row.len() as f64 + epsilon).sqrt()
}

/// Replaces scores by their softmax; −∞ becomes exactly zero.
pub fn softmax(scores: &mut [f64]) {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += *score;
    }
    for score in scores.iter_mut() {
        *score /= sum;
    }
}
