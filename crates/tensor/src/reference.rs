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

/// Returns the mean of a row, and the root of its variance with `epsilon` added: the mean
/// squared distance from the mean.
pub fn mean_and_deviation(row: &[f32], epsilon: f64) -> (f64, f64) {
    let count = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean) * (f64::from(x) - mean)).sum();
    (mean, (squares / count + epsilon).sqrt())
}

/// Returns the error function, `2/√π · ∫₀ˣ e^(−t²) dt`, with an absolute error below 5·10⁻¹⁵: the rounding of the
/// square is a relative error of the exponential.
///
/// The series of Abramowitz & Stegun, *Handbook of Mathematical Functions*, 7.1.6, whose terms
/// all have the sign of `x`, so that nothing cancels. Beyond 6 the result rounds to ±1.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * f64::EPSILON / 8.0 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
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
