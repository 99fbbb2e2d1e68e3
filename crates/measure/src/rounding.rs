//! The sizes of rounding errors, and how many an operation makes.

/// The mean squares of the relative errors of one rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundingErrors {
    /// Of a term of a sum, in single precision.
    pub term: f64,
    /// Of a stored result, in both programs.
    pub result: f64,
    /// Of a row of state in this program.
    pub state: f64,
    /// The largest error of a score, in standard deviations.
    pub largest: f64,
    /// The factor of the mean square of a change of known size. The bound multiplies all mean squares as if they
    /// were those of deviations, and this takes that back.
    pub change: f64,
}

/// Roundings of an exponential and what surrounds it: a gate's polynomial, exponential, sum
/// and quotient, or a softmax.
pub(crate) const EXPONENTIAL_ROUNDINGS: f64 = 16.0;

/// Stores of a cap: the quotient, tanh, and the product.
pub(crate) const CAP_STORES: f64 = 3.0;

/// The mean of the squares of numbers; 0 without any.
pub(crate) fn mean_square<T: Into<f64>>(numbers: impl ExactSizeIterator<Item = T>) -> f64 {
    let count = numbers.len().max(1) as f64;
    numbers.map(|x| x.into().powi(2)).sum::<f64>() / count
}
