//! How far a right result may lie from a golden: derived, not guessed.
//!
//! Two programs that compute the same function differ because they round.
//! Three facts give the size of it.
//!
//! 1. A sum of `K` products that is rounded at every step with unit roundoff
//!    `u` is off by about `√K · u` of its size (Higham & Mary 2019, *A new
//!    approach to probabilistic rounding error analysis*: the roundings are as
//!    good as independent, so they add up like a random walk). A result that is
//!    then stored with unit roundoff `s` is off by a further `s`. If a weight
//!    was quantized, each product is off by the weight's relative error `q`,
//!    and so is the sum. One operator thus adds noise of the relative size
//!    `η = √K · u + s + q`.
//! 2. A layer has [`ROUNDINGS`] operators in a row between one hidden state and
//!    the next, and the residual stream carries the noise of all before it:
//!    after `l` layers it is `√(1 + ROUNDINGS · l) · η`.
//! 3. The largest of `n` such errors lies within `√(2 ln 2n)` standard
//!    deviations, seven for the largest models here, and the operators'
//!    own gain (norms divide, heads select) stays below [`GAIN`].
//!
//! A value may so lie `7 · GAIN · √(1 + ROUNDINGS · l) · η · rms` away, where
//! `rms` is the root mean square of its row in the golden.

/// Operators that round between two hidden states: norm, projections, norm of
/// heads, rotation, scores, softmax, values, projection, norm, addition; norm,
/// projections, gate, projection, norm, addition.
const ROUNDINGS: f64 = 16.0;

/// How much an operator may enlarge the relative error of what it reads.
const GAIN: f64 = 2.0;

/// Standard deviations within which the largest error lies.
const DEVIATIONS: f64 = 7.0;

/// The arithmetic of a golden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Weights and arithmetic in single precision.
    F32,
    /// Weights and stored results in brain float, sums in single.
    Bf16,
}

impl Precision {
    /// The suffix of tensors in golden files, and the word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }

    /// The unit roundoff of a stored result.
    fn stored(self) -> f64 {
        match self {
            Precision::F32 => f64::from(f32::EPSILON) / 2.0,
            Precision::Bf16 => 2f64.powi(-9),
        }
    }
}

/// The bound for one model, golden and precision.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    noise: f64,
}

impl Bound {
    /// The bound where the longest sum has `terms` terms and weights were
    /// quantized with the relative error `quantized` (zero if they were not).
    pub fn new(precision: Precision, terms: usize, quantized: f64) -> Bound {
        let unit = f64::from(f32::EPSILON) / 2.0;
        Bound { noise: (terms as f64).sqrt() * unit + precision.stored() + quantized }
    }

    /// How far a value may lie from its golden after `layers` layers, in a row
    /// whose golden has the root mean square `rms`.
    pub fn after(&self, layers: usize, rms: f64) -> f64 {
        DEVIATIONS * GAIN * (1.0 + ROUNDINGS * layers as f64).sqrt() * self.noise * rms
    }
}

/// The root mean square of a row.
pub(crate) fn rms(row: &[f32]) -> f64 {
    girih_tensor::reference::root_mean_square(row, 0.0)
}
