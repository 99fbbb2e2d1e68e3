//! How far a right result may lie from a golden: derived, not guessed.
//!
//! Two programs that compute the same function differ because they round.
//! Five facts give the size of it.
//!
//! 1. Rounding to the nearest number, in a format with unit roundoff `u`, is
//!    off by up to `u` of the number's power of two, evenly spread. Where the
//!    leading digits follow Benford's law, the root mean square of the relative
//!    error is `√(1/3 · 3/(8 ln 2)) · u`, which is [`ROOT_MEAN_SQUARE`]` · u`.
//! 2. A sum of `K` products is rounded at each step. The roundings are as good
//!    as independent, so they add up like a random walk (Higham & Mary 2019, *A
//!    new approach to probabilistic rounding error analysis*), and so do the
//!    products: after `i` steps the sum has `√(i/K)` of its final size, which
//!    leaves `√(K/2)` roundings of the whole. Both programs do so, each in its
//!    order: their results are `√K` roundings apart. Sums in sequences or blocks
//!    have smaller errors; the bound holds for every order.
//! 3. What a golden's program stores in a coarser format is off by one rounding
//!    of that format. These are independent too, so their squares add up: with
//!    `r` a rounding of sums and `s` of stores, an operator that sums adds noise
//!    of the relative size `√(K r² + s²)`, another one of `√(FEW · r² + s²)`.
//!    If a weight was quantized, each of its products is off by the weight's
//!    relative error `q`, and so is their sum. If this program rounds the
//!    activations before they meet weights, each product is off by the
//!    activation's relative error `a` as well.
//! 4. Rounding to bytes under one scale per group, as Q8_0 and activations in
//!    int8 are rounded, is off by up to half a step of `max/127`, evenly spread:
//!    `max / (127 √12)` as root mean square, where `max` is the largest size in
//!    the group, which is itself met exactly, so that 31 of 32 values are off.
//!    A program that takes the best of several steps stays below it. The largest
//!    of 32 normal values is [`LARGEST`] times their root mean
//!    square, so that is 0.53 % of the latter. Values that are less alike
//!    have more, up to `√32` in place of [`LARGEST`] where one value is all of
//!    its group; that is part of what [`GAIN`] leaves room for.
//! 5. A layer has [`ROUNDINGS`] operators in a row between one hidden state and
//!    the next, [`SUMS`] of them with sums, [`PRODUCTS`] with weights and
//!    [`STATES`] with what was kept as state, and the residual stream carries the
//!    noise of all before it: after `l` layers it is `η = √((2 + SUMS · l) K r² +
//!    (ROUNDINGS − SUMS) · l · FEW · r² + (2 + ROUNDINGS · l) s² + STATES · l · k² +
//!    (1 + PRODUCTS · l) q² + PRODUCTS · l · a²)`, with `k` a rounding of state. The
//!    embedding is a row of weights, which meets no activations, and the last
//!    state has been through the head's norm. Logits are a product more, whose
//!    weights are off by `q` and whose activations by what this program rounds
//!    those to. The largest of `n` such errors lies within `√(2 ln 2n)` standard
//!    deviations, seven for the largest models here, and the operators' own gain
//!    (norms divide, heads select) stays below [`GAIN`].
//!
//! A value may so lie `7 · GAIN · η · rms` away, where `rms` is the root mean
//! square of its row in the golden. The goldens of the tests take up to 25 % of
//! it in single precision, and 15 to 85 % where weights, activations, the state
//! or the golden itself are coarser.

use girih_tensor::{DType, Shape};

/// Values under one scale: 16 in Q2_K, Q3_K and Q6_K, 32 elsewhere; the larger
/// gives the larger bound.
const GROUP: usize = 32;

/// Levels of Q8_0 between −127 and 127.
const Q8_0_LEVELS: f64 = 254.0;

/// The relative error of a rounding, as root mean square and in unit roundoffs:
/// `√(1 / (8 ln 2))`.
const ROOT_MEAN_SQUARE: f64 = 0.424_661;

/// Operators that round between two hidden states: norm, projections, norm of
/// heads, rotation, scores, softmax, values, projection, norm, addition; norm,
/// projections, gate, projection, norm, addition.
const ROUNDINGS: f64 = 16.0;

/// Those of them that add up many terms: all but rotation, gate and additions.
const SUMS: f64 = 12.0;

/// Roundings of an operator that does not, at the most: a gate's polynomial,
/// exponential, sum, quotient and products.
const FEW: f64 = 16.0;

/// Products with weights in a row: projections, projection of heads, gate and
/// the other half, projection back.
const PRODUCTS: f64 = 4.0;

/// Operators in a row that read what was kept as state: scores and values.
const STATES: f64 = 2.0;

/// The largest of [`GROUP`] independent normal values, in standard deviations:
/// `√∫ x² d(erf(x/√2)^32)`, the root mean square of its size.
const LARGEST: f64 = 2.389_457;

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

    /// The type in which results are stored.
    fn stored(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

/// The bound for one model, golden and precision.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The relative error of an operator's sum.
    summed: f64,
    /// The relative error of a store.
    stored: f64,
    /// The relative error of what is kept as state.
    kept: f64,
    /// The relative error of weights.
    weights: f64,
    /// The relative error of what meets weights in layers.
    met: f64,
    /// The relative error of what meets the weights of the head.
    met_by_head: f64,
}

/// Where in a model a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A hidden state after so many layers; what the head's norm yields counts as one
    /// after the last.
    Layers(usize),
    /// A logit of a model of so many layers.
    Logits(usize),
}

impl Bound {
    /// The bound where the longest sum has `terms` terms, the KV cache is kept
    /// as `state`, and weights were quantized with the relative error
    /// `quantized` (zero if they were not).
    pub fn new(precision: Precision, terms: usize, state: DType, quantized: f64) -> Bound {
        let summed = (terms as f64).sqrt() * rounding(DType::F32);
        let stored = rounding(precision.stored());
        Bound { summed, stored, kept: coarser(state), weights: quantized, met: 0.0, met_by_head: 0.0 }
    }

    /// The same where this program rounds activations before they meet weights:
    /// to `layers` in layers and to `head` in the product that yields logits.
    /// [`DType::Q8_0`] is int8 with a scale per 32 values.
    pub fn meeting(self, layers: DType, head: DType) -> Bound {
        Bound { met: coarser(layers), met_by_head: coarser(head), ..self }
    }

    /// The same where this program stores what its operators yield as
    /// `activations`, as an array of brain floats does.
    pub fn storing(self, activations: DType) -> Bound {
        Bound { stored: self.stored.hypot(rounding(activations)), ..self }
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

    /// How far a value may lie from its golden, in a row whose golden has the
    /// root mean square `rms`.
    pub fn at(&self, depth: Depth, rms: f64) -> f64 {
        // Operators and products beyond those of the layers: the embedding and the
        // head's norm, then the head.
        let (layers, operators, products, head) = match depth {
            Depth::Layers(layers) => (layers, 2.0, 1.0, 0.0),
            Depth::Logits(layers) => (layers, 3.0, 2.0, self.met_by_head),
        };
        let layers = layers as f64;
        let noise = (operators + SUMS * layers) * self.summed.powi(2)
            + (ROUNDINGS - SUMS) * layers * FEW * rounding(DType::F32).powi(2)
            + (operators + ROUNDINGS * layers) * self.stored.powi(2)
            + STATES * layers * self.kept.powi(2)
            + (products + PRODUCTS * layers) * self.weights.powi(2)
            + PRODUCTS * layers * self.met.powi(2)
            + head.powi(2);
        DEVIATIONS * GAIN * noise.sqrt() * rms
    }
}

/// The relative error of rounding what a program computes to a format, as root
/// mean square.
///
/// # Panics
/// When no program stores what it computes in such a format.
fn rounding(dtype: DType) -> f64 {
    // The digits of the significand, the implicit one included.
    let digits = match dtype {
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::Q8_0 => {
            let off = (GROUP - 1) as f64 / GROUP as f64;
            return 2.0 * LARGEST / Q8_0_LEVELS * (off / 12.0).sqrt();
        }
        other => panic!("activations and states are not rounded to {other}"),
    };
    ROOT_MEAN_SQUARE * 2f64.powi(-digits)
}

/// The relative error of keeping single precision in a format; none in its own.
fn coarser(dtype: DType) -> f64 {
    if dtype == DType::F32 { 0.0 } else { rounding(dtype) }
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
        DType::Q8_0 => Q8_0_LEVELS,
    })
}

/// The root mean square of a row.
pub(crate) fn rms(row: &[f32]) -> f64 {
    girih_tensor::reference::root_mean_square(row, 0.0)
}

#[cfg(test)]
mod tests {
    use girih_tensor::View;

    use super::*;

    #[test]
    fn a_rounding_is_as_large_as_derived() {
        // Every leading digit, as often as Benford's law has it.
        let numbers: Vec<f32> = (0..100_000).map(|index| (index as f32 * 2e-5).exp2()).collect();
        let squares = numbers.iter().map(|number| f64::from((to_bf16(*number) - number) / number).powi(2));
        let measured = (squares.sum::<f64>() / numbers.len() as f64).sqrt();
        assert!((measured / rounding(DType::BF16) - 1.0).abs() < 0.01, "{measured}");
    }

    /// The nearest brain float, halves to the even one.
    fn to_bf16(number: f32) -> f32 {
        let bits = number.to_bits();
        f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
    }

    /// Normal values by the method of Box and Muller (1958), rounded as Q8_0 is:
    /// activations take the best of four scales and so come nearer.
    #[test]
    fn a_rounding_to_bytes_is_as_large_as_derived() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let numbers: Vec<f32> = (0..32 * 10_000).map(|_| normal() as f32).collect();
        let bytes = DType::Q8_0.pack_matrix(1, numbers.len(), &numbers).expect("whole blocks");
        let mut rounded = vec![0.0; numbers.len()];
        View::new(DType::Q8_0, 1, numbers.len(), &bytes)
            .expect("just packed")
            .unpack_rows(0..1, &mut rounded);
        let errors = numbers.iter().zip(&rounded).map(|(a, b)| f64::from(a - b).powi(2));
        let measured = (errors.sum::<f64>() / numbers.len() as f64).sqrt() / rms(&numbers);
        assert!((measured / rounding(DType::Q8_0) - 1.0).abs() < 0.01, "{measured}");
    }

    #[test]
    fn rounded_activations_add_to_quantized_weights() {
        let bound = Bound::new(Precision::F32, 64, DType::F32, 0.01);
        let (states, logits) = (Depth::Layers(4), Depth::Logits(4));
        let meeting = |layers, head, depth| bound.meeting(layers, head).at(depth, 1.0);
        assert_eq!(meeting(DType::F32, DType::F32, states), bound.at(states, 1.0));
        let after = [DType::F32, DType::BF16, DType::Q8_0].map(|dtype| meeting(dtype, dtype, states));
        assert!(after.is_sorted(), "{after:?}");
        // 17 times a hundredth of weights, and 16 times 0.5346 hundredths of activations.
        assert!((after[2] / after[0] - 1.1265).abs() < 1e-3, "{after:?}");
        // What the head reads is in the logits only.
        assert_eq!(meeting(DType::Q8_0, DType::F32, states), after[2]);
        let logits = [DType::F32, DType::F16, DType::Q8_0].map(|head| meeting(DType::Q8_0, head, logits));
        assert!(after[2] < logits[0] && logits.is_sorted(), "{logits:?}");
    }

    #[test]
    fn coarser_arithmetic_has_the_wider_bound() {
        let after = |precision, state, quantized| {
            Bound::new(precision, 64, state, quantized).at(Depth::Layers(4), 1.0)
        };
        let single = after(Precision::F32, DType::F32, 0.0);
        assert!(single > 0.0 && single < 1e-4, "{single}");
        let wider = [
            after(Precision::F32, DType::F16, 0.0),
            after(Precision::F32, DType::BF16, 0.0),
            after(Precision::Bf16, DType::BF16, 0.0),
            Bound::new(Precision::Bf16, 64, DType::BF16, 0.0).storing(DType::BF16).at(Depth::Layers(4), 1.0),
            after(Precision::Bf16, DType::BF16, 0.1),
        ];
        assert!(wider.is_sorted() && wider[0] > 100.0 * single, "{wider:?}");
    }
}
