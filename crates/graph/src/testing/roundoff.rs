//! How far results may lie from the definition of an op, by the roundings of a backend.

use girih_tensor::DType;

/// The unit roundoff of `f32`: half the distance from 1 to the next number.
pub const U: f64 = f32::EPSILON as f64 / 2.0;

/// Below this, `f32` has no more digits: the smallest positive number, twice.
pub(super) const TINY: f64 = f32::from_bits(2) as f64;

/// How a backend rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roundoff {
    /// The unit roundoff of sums, products and functions.
    pub unit: f64,
    /// The relative error of storing a number: a result, or one of those between that a bound names.
    pub stored: f64,
    /// The type that holds all operands exactly, so that reading them rounds nothing.
    pub operands: DType,
    /// The smallest positive number that can be stored; 0 if nothing is stored but `f32`.
    pub least: f64,
    /// How GELU's tanh form is computed.
    pub gelu: GeluForm,
    /// The largest error of the `erf` in GELU's other form, if it is computed as `x/2 · (1 + erf(x / √2))`; 0 if nothing
    /// cancels.
    pub erf: f64,
}

/// How GELU's tanh form is computed, with `u = √(2/π) · (x + 0.044715·x³)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeluForm {
    /// As `x / (1 + e^−2u)`, where nothing cancels.
    Sigmoid,
    /// As `x/2 · (1 + tanh(u))`, whose sum cancels where the tanh is near −1.
    Tanh,
}

impl Roundoff {
    /// Everything in single precision.
    pub const SINGLE: Roundoff = Roundoff {
        unit: U,
        stored: 0.0,
        operands: DType::F32,
        least: 0.0,
        gelu: GeluForm::Sigmoid,
        erf: 0.0,
    };

    /// The relative error of `n` successive roundings: `n·u / (1 − n·u)` (Higham, *Accuracy and Stability of
    /// Numerical Algorithms*, §3.1). In any order, a sum of `n` rounded terms has this error of the sum of their
    /// sizes.
    pub fn gamma(&self, n: usize) -> f64 {
        let n = n as f64 * self.unit;
        n / (1.0 - n)
    }
}
