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

use girih_tensor::{DType, Shape};

/// Values under one scale: 16 in Q2_K, Q3_K and Q6_K, 32 elsewhere; the larger
/// gives the larger bound.
const GROUP: usize = 32;

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

    /// The relative error of weights that are stored as `dtype`, as root mean
    /// squares: half a step of the format against the numbers themselves. A
    /// rounding is uniform over a step, so its root mean square is a `√12`th
    /// of the step; the step is that of the format's own levels.
    pub fn relative_step(dtype: DType, shape: &Shape, numbers: &[f32]) -> f64 {
        let Some(levels) = levels(dtype) else { return 0.0 };
        let (_, columns) = dtype.tile();
        let group = columns.min(GROUP).min(shape.columns());
        let mut noise = 0.0;
        for group in numbers.chunks(group) {
            let largest = group.iter().fold(0.0f64, |most, number| most.max(f64::from(number.abs())));
            noise += (2.0 * largest / levels).powi(2) / 12.0 * group.len() as f64;
        }
        let signal: f64 = numbers.iter().map(|number| f64::from(*number).powi(2)).sum();
        if signal == 0.0 { 0.0 } else { (noise / signal).sqrt() }
    }

    /// How far a value may lie from its golden after `layers` layers, in a row
    /// whose golden has the root mean square `rms`.
    pub fn after(&self, layers: usize, rms: f64) -> f64 {
        DEVIATIONS * GAIN * (1.0 + ROUNDINGS * layers as f64).sqrt() * self.noise * rms
    }
}

/// How many levels lie between the negative and the positive largest value of a
/// group; `None` for formats that do not quantize.
fn levels(dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::I8 | DType::U8 => return None,
        DType::Q2_K => 3.0,
        DType::Q3_K => 7.0,
        // The levels of a four-bit float lie up to a third of the largest apart.
        DType::MXFP4 => 6.0,
        DType::Q4_0 | DType::Q4_1 | DType::Q4_K | DType::Q4NX | DType::IQ4_NL | DType::IQ4_XS => 15.0,
        DType::Q5_0 | DType::Q5_1 | DType::Q5_K => 31.0,
        DType::Q6_K => 63.0,
        DType::Q8_0 => 254.0,
    })
}

/// The root mean square of a row.
pub(crate) fn rms(row: &[f32]) -> f64 {
    girih_tensor::reference::root_mean_square(row, 0.0)
}
