//! The permitted difference between a correct result and a golden, derived from the
//! roundings of both programs.
//!
//! Two programs that compute the same function differ because they round. These facts
//! give the size of the difference.
//!
//! 1. Rounding to nearest in a format with unit roundoff `u` has an error of up to
//!    `u · 2^e`, uniformly distributed, where `e` is the number's exponent. If the leading
//!    digits follow Benford's law, the root mean square of the relative error is
//!    `√(1/3 · 3/(8 ln 2)) · u`, which is [`ROOT_MEAN_SQUARE`]` · u`.
//! 2. A sum of `K` products is rounded at each step. The roundings are nearly independent,
//!    so their sum grows like a random walk (Higham & Mary 2019, *A new approach to
//!    probabilistic rounding error analysis*), and so does the sum of the products: after
//!    `i` steps it has `√(i/K)` of its final size. So the error is `√(K/2)` times one
//!    rounding of the result. Both programs sum, each in its own order, so their results
//!    differ by `√K` roundings. Sums in sequences or blocks have smaller errors; the bound
//!    holds for every order.
//! 3. If the program that made the golden stores a value in a coarser format, that adds
//!    one rounding to this format. These errors are independent too, so their squares add
//!    up. Let `r` be the relative error of one rounding in a sum and `s` that of one
//!    store: an operator that sums adds noise of the relative size `√(K r² + s²)`, an
//!    elementwise operator `√(ELEMENTWISE_ROUNDINGS · r² + s²)`. If a weight was
//!    quantized, each of its products has the weight's relative error `q`, and so does
//!    their sum. If this program rounds activations before a matmul, each product has the
//!    activation's relative error `a` as well.
//! 4. Rounding to bytes with one scale per group, as in Q8_0 and int8 activations, has an
//!    error of up to half a step of `max/127`, uniformly distributed: `max / (127 √12)` as
//!    root mean square, where `max` is the largest magnitude in the group. The largest
//!    value itself is exact, so 31 of 32 values have an error. A program that chooses the
//!    best of several scales has a smaller error. The largest of 32 normal values is
//!    [`LARGEST_OF_GROUP`] times their root mean square, so the error is 0.53 % of the
//!    latter. Other distributions have larger errors, up to `√32` in place of
//!    [`LARGEST_OF_GROUP`] if one value dominates its group; [`GAIN`] leaves room for
//!    this.
//! 5. The errors of sums, of stored results and of state are followed through the graph, with
//!    the sizes of the rows of this program's own run. `running_error.rs` lists the stores of
//!    transformers, cast by cast, and how each operator passes errors on. The number of
//!    operators alone is not enough: errors grow where scores are large, and where a norm or
//!    a residual meets a row that is smaller than others.
//! 6. Other errors are counted: those of weights, of activations and of results that this
//!    program stores. So are those of fact 5 for encoders, for another backend as the
//!    reference, and for a backend that does not report every value. A layer has
//!    [`ROUNDINGS`] operators in a row between one hidden state and the next, [`SUMS`] of them
//!    with sums, [`MATMULS`] with weights and [`STATE_READS`] with state, and the residual
//!    stream carries the noise of all layers before it: after `l` layers it is
//!    `η = √((2 + SUMS · l) K r² + (ROUNDINGS − SUMS) · l · ELEMENTWISE_ROUNDINGS · r² +
//!    (2 + ROUNDINGS · l) s² + STATE_READS · l · k² + (1 + MATMULS · l) q² + MATMULS · l · a²)`,
//!    with `k` the relative error of storing state. The embedding is a row of weights without
//!    activations, and the last hidden state has passed the head's norm. Logits are one more
//!    matmul: its weights have the error `q`, and its activations the error of this program's
//!    rounding.
//! 7. The largest of `n` such errors lies within `√(2 ln 2n)` standard deviations, seven for
//!    the largest models here. Counted errors may be enlarged by operators, up to
//!    [`GAIN`] times; followed errors are not independent, which [`DEPENDENCE`] covers. Followed
//!    errors count at most [`MOST`] times as much as the counted ones in their place: that limit is
//!    measured, not derived.
//! 8. An encoder's layer has at most 15 operators, 11 of them with sums: each of its two layer
//!    norms counts as two operators with sums, one for the mean and one for the variance. The
//!    divisor of a layer norm may be small, as that of any norm; [`GAIN`] covers this. GELU is an
//!    elementwise operator: its polynomial, exponential, sum, quotient and products are as many
//!    as a gate's. A bias is one more term of its sum, and is stored with it. The embedding is the sum of up to [`TABLES`] rows of
//!    weights and its norm, so [`EMBEDDING`] operators take the place of the two outside the
//!    layers, and `TABLES · q²` that of `q²`. A norm after the residual scales noise and value
//!    alike, so noise adds up as above. A pooled row is at most one more sum. A mean of rows may
//!    be much smaller than the rows, because their values cancel. Their errors come from the
//!    same weights and need not cancel, so its `rms` is that of all its rows.
//!
//! So a value may differ by `7 · √((DEPENDENCE · ε)² + (GAIN · η)²) · rms`, where `ε` is the
//! followed error of its row, `η` the counted one, and `rms` the root mean square of the row in
//! the golden. `girih diagnose FIXTURE --golden … --against f32 --kv f32 --json` has the largest
//! `of_bound` and the `bound` of logits relative to `rms`: the decoders of `tests/fixtures` reach 10
//! to 21 % of a bound of `2e-5` to `6e-5`, and the narrowest one, `gemma3_narrow`, 57 % of `8e-5`.
//! Against bf16, with `--kv bf16`, they reach 14 to 47 % of 0.4 to 1.2. The 800 runs of
//! `scripts/random_models.py gemma3 --count 200` reach 26 % of bounds of up to `1.7e-4` in f32, 54 %
//! with a KV cache of f16 (`7e-2`), and 47 % in bf16 (1.6). If weights or activations are coarser, the
//! tests reach up to 85 %.

use std::sync::Arc;

use girih_graph::Graph;
use girih_tensor::{DType, Shape};

use crate::running_error::{RoundingErrors, RowSizes};

/// The number of values that share a scale: 16 in Q2_K, Q3_K and Q6_K, 32 in the other
/// formats; the larger number gives the larger bound.
const SCALE_GROUP: usize = 32;

/// The number of steps of Q8_0 between −127 and 127.
const Q8_0_LEVELS: f64 = 254.0;

/// The root mean square of a rounding's relative error, in unit roundoffs:
/// `√(1 / (8 ln 2))`.
const ROOT_MEAN_SQUARE: f64 = 0.424_661;

/// The number of operators that round between two hidden states: norm, projections, norm
/// of heads, rotation, scores, softmax, values, projection, norm, addition; norm,
/// projections, gate, projection, norm, addition.
const ROUNDINGS: f64 = 16.0;

/// How many of these operators sum many terms: all but rotation, gate and additions.
const SUMS: f64 = 12.0;

/// The maximum number of roundings of an elementwise operator: a gate's polynomial,
/// exponential, sum, quotient and products.
const ELEMENTWISE_ROUNDINGS: f64 = 16.0;

/// The number of consecutive matmuls with weights in a layer: q, k and v projections,
/// output projection, gate and up projections, down projection.
const MATMULS: f64 = 4.0;

/// The number of consecutive operators of a layer that read state: scores and values.
const STATE_READS: f64 = 2.0;

/// The maximum number of tables whose rows an encoder's embedding adds: tokens, token types,
/// positions.
const TABLES: f64 = 3.0;

/// The number of operators of an encoder's embedding: two additions, and a layer norm.
const EMBEDDING: f64 = 4.0;

/// The largest of [`SCALE_GROUP`] independent normal values, in standard deviations:
/// `√∫ x² d(erf(x/√2)^32)`, the root mean square of its size.
const LARGEST_OF_GROUP: f64 = 2.389_457;

/// The factor by which an operator may enlarge the relative error of its inputs, where errors
/// are counted.
const GAIN: f64 = 2.0;

/// The factor by which followed errors may exceed their analysis, because they are not
/// independent: a part of a layer and the residual that it is added to share errors, and so do the
/// rows and elements of narrow models. It is measured, not derived: the logits of
/// `tests/fixtures/gemma3_narrow` reach 0.95 of the bound with 1.5.
const DEPENDENCE: f64 = 3.0;

/// The factor by which followed errors may exceed counted ones; what exceeds that is cut off. It is
/// measured, not derived: random Llamas exceed the counted bound 4.8 times, Gemmas 2.4 times. The
/// scores of a trained model are large, and the analysis takes the errors of keys as independent,
/// so without this limit the bound of stories260K's logits is 0.013 of their size in f32, a thousand
/// times the errors found.
const MOST: f64 = 6.0;

/// The number of standard deviations within which the largest error lies.
const DEVIATIONS: f64 = 7.0;

/// The precision of a golden's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoldenPrecision {
    /// Weights and arithmetic in single precision.
    F32,
    /// Weights and stored results in bf16, sums in single precision.
    Bf16,
}

impl GoldenPrecision {
    /// The suffix of tensors in golden files, and the value on the command line.
    pub fn name(self) -> &'static str {
        match self {
            GoldenPrecision::F32 => "f32",
            GoldenPrecision::Bf16 => "bf16",
        }
    }

    /// The largest difference between a number of this size and its neighbours in the type in
    /// which results are stored.
    pub(crate) fn spacing(self, size: f64) -> f64 {
        let relative = match self {
            GoldenPrecision::F32 => f64::from(f32::EPSILON),
            // Eight bits of significand, including the implicit one.
            GoldenPrecision::Bf16 => 2f64.powi(-7),
        };
        relative * size
    }

    /// The type in which results are stored.
    fn stored(self) -> DType {
        match self {
            GoldenPrecision::F32 => DType::F32,
            GoldenPrecision::Bf16 => DType::BF16,
        }
    }
}

/// The bound for one model, golden and precision.
#[derive(Clone, Debug)]
pub struct ErrorBound {
    /// The relative error of an operator's sum.
    summed: f64,
    /// The relative error of a result that the golden stores.
    golden: f64,
    /// The relative error of a result that this program stores.
    stored: f64,
    /// The relative error of state.
    kept: f64,
    /// The relative error of weights.
    weights: f64,
    /// The relative error of the activations of matmuls in layers.
    activations: f64,
    /// The relative error of the activations of the head's matmul.
    head_activations: f64,
    /// The graph through which the errors of the golden's stores and of state are followed.
    graph: Option<Arc<Graph>>,
}

/// The depth of a value in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueDepth {
    /// A hidden state after this number of layers; the output of the head's norm counts as
    /// that of the last layer.
    Layers(usize),
    /// A logit of a model with this number of layers.
    Logits(usize),
    /// A hidden state of an encoder after this number of layers.
    EncoderLayers(usize),
    /// A pooled row of an encoder with this number of layers.
    Pooled(usize),
}

impl ErrorBound {
    /// Returns the bound for sums of at most `terms` terms, a KV cache stored as `state`, and
    /// weights quantized with the relative error `quantized` (zero if they were not).
    pub fn new(precision: GoldenPrecision, terms: usize, state: DType, quantized: f64) -> ErrorBound {
        let summed = (terms as f64).sqrt() * rounding(DType::F32);
        ErrorBound {
            summed,
            golden: rounding(precision.stored()),
            stored: 0.0,
            kept: coarser(state),
            weights: quantized,
            activations: 0.0,
            head_activations: 0.0,
            graph: None,
        }
    }

    /// Returns the bound if this program also rounds the activations of matmuls: to `layers`
    /// in layers and to `head` in the matmul that computes logits. [`DType::Q8_0`] is int8
    /// with a scale per 32 values.
    pub fn with_activations(self, layers: DType, head: DType) -> ErrorBound {
        ErrorBound { activations: coarser(layers), head_activations: coarser(head), ..self }
    }

    /// Returns the bound if this program also stores the results of its operators as
    /// `activations`, as the NPU array does with bf16.
    pub fn storing(self, activations: DType) -> ErrorBound {
        ErrorBound { stored: self.stored.hypot(rounding(activations)), ..self }
    }

    /// Returns the bound that follows the errors of sums, results and state through the graph of
    /// the model.
    pub fn along(self, graph: &Graph) -> ErrorBound {
        ErrorBound { graph: Some(Arc::new(graph.clone())), ..self }
    }

    /// Returns a watch for the sizes of rows, if the bound [follows](ErrorBound::along) errors.
    pub(crate) fn row_sizes(&self) -> Option<RowSizes<'_>> {
        self.graph.as_deref().map(RowSizes::of)
    }

    /// The mean squares of the errors to be followed.
    pub(crate) fn rounding_errors(&self) -> RoundingErrors {
        let term = rounding(DType::F32).powi(2);
        RoundingErrors { term, result: term + self.golden.powi(2), state: self.kept.powi(2) }
    }

    /// Whether weights were quantized.
    pub(crate) fn has_quantized_weights(&self) -> bool {
        self.weights > 0.0
    }

    /// Returns the relative error of weights stored as `dtype`: the root mean square of the
    /// rounding divided by that of the numbers. A rounding error is uniform over a step
    /// between the format's levels, so its root mean square is the step divided by `√12`.
    pub fn relative_step(dtype: DType, shape: &Shape, numbers: &[f32]) -> f64 {
        let Some(levels) = levels(dtype) else { return 0.0 };
        let (_, columns) = dtype.tile();
        let group = columns.min(SCALE_GROUP).min(shape.columns());
        let mut noise = 0.0;
        for group in numbers.chunks(group) {
            let largest = group.iter().fold(0.0f64, |max, number| max.max(f64::from(number.abs())));
            noise += (2.0 * largest / levels).powi(2) / 12.0 * group.len() as f64;
        }
        let signal: f64 = numbers.iter().map(|number| f64::from(*number).powi(2)).sum();
        if signal == 0.0 { 0.0 } else { (noise / signal).sqrt() }
    }

    /// Returns the permitted difference of a value from its golden, in a row whose golden
    /// has the root mean square `rms`.
    pub fn at(&self, depth: ValueDepth, rms: f64) -> f64 {
        self.at_row(depth, rms, None)
    }

    /// Returns the permitted difference as [`ErrorBound::at`] does. If the mean square
    /// `followed` of the relative errors of sums, results and state is known for this row, it
    /// takes the place of their number.
    pub(crate) fn at_row(&self, depth: ValueDepth, rms: f64, followed: Option<f64>) -> f64 {
        // Operators and weights outside the layers: the embedding and the head's norm,
        // then the head; or an encoder's embedding, then its pooling.
        let (layers, operators, matmuls, head) = match depth {
            ValueDepth::Layers(layers) => (layers, 2.0, 1.0, 0.0),
            ValueDepth::Logits(layers) => (layers, 3.0, 2.0, self.head_activations),
            ValueDepth::EncoderLayers(layers) => (layers, EMBEDDING, TABLES, 0.0),
            ValueDepth::Pooled(layers) => (layers, EMBEDDING + 1.0, TABLES, 0.0),
        };
        let layers = layers as f64;
        let summed = (operators + SUMS * layers) * self.summed.powi(2)
            + (ROUNDINGS - SUMS) * layers * ELEMENTWISE_ROUNDINGS * rounding(DType::F32).powi(2);
        let stored = (operators + ROUNDINGS * layers) * self.golden.powi(2);
        let sums = GAIN.powi(2) * (summed + stored + STATE_READS * layers * self.kept.powi(2));
        let followed = followed.map(|error| (DEPENDENCE.powi(2) * error).min(MOST.powi(2) * sums));
        let sums = followed.unwrap_or(sums);
        let counted = (operators + ROUNDINGS * layers) * self.stored.powi(2)
            + (matmuls + MATMULS * layers) * self.weights.powi(2)
            + MATMULS * layers * self.activations.powi(2)
            + head.powi(2);
        DEVIATIONS * (sums + GAIN.powi(2) * counted).sqrt() * rms
    }
}

/// Returns the largest difference between sums of `terms` products in single precision that
/// differ only in their order, relative to the root mean square of such sums.
pub(crate) fn reordered_sum(terms: usize) -> f64 {
    DEVIATIONS * GAIN * (terms as f64).sqrt() * rounding(DType::F32)
}

/// Returns the root mean square of the relative error of rounding results to a format.
///
/// # Panics
/// When programs do not store results in this format.
fn rounding(dtype: DType) -> f64 {
    // The bits of the significand, including the implicit one.
    let digits = match dtype {
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::Q8_0 => {
            let off = (SCALE_GROUP - 1) as f64 / SCALE_GROUP as f64;
            return 2.0 * LARGEST_OF_GROUP / Q8_0_LEVELS * (off / 12.0).sqrt();
        }
        other => panic!("activations and states are not rounded to {other}"),
    };
    ROOT_MEAN_SQUARE * 2f64.powi(-digits)
}

/// Returns the relative error of storing single precision in a format; 0 for f32.
fn coarser(dtype: DType) -> f64 {
    if dtype == DType::F32 { 0.0 } else { rounding(dtype) }
}

/// Returns the number of levels between the negative and the positive largest value of
/// a group; `None` for formats that do not quantize.
fn levels(dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::I64 | DType::I32 | DType::I8 | DType::U8 => {
            return None;
        }
        DType::Q2_K => 3.0,
        DType::Q3_K => 7.0,
        // Neighbouring levels of a four-bit float differ by up to a third of the largest.
        DType::MXFP4 => 6.0,
        DType::Q4_0 | DType::Q4_1 | DType::Q4_K | DType::Q4NX | DType::IQ4_NL | DType::IQ4_XS => 15.0,
        DType::Q5_0 | DType::Q5_1 | DType::Q5_K => 31.0,
        DType::Q6_K => 63.0,
        DType::Q8_0 => Q8_0_LEVELS,
    })
}

/// Returns the root mean square of a row.
pub(crate) fn rms(row: &[f32]) -> f64 {
    girih_tensor::reference::root_mean_square(row, 0.0)
}

#[cfg(test)]
mod tests {
    use girih_tensor::{Random, View};

    use super::*;

    #[test]
    fn rounding_errors_have_the_derived_size() {
        // Leading digits with the frequencies of Benford's law.
        let numbers: Vec<f32> = (0..100_000).map(|index| (index as f32 * 2e-5).exp2()).collect();
        let squares = numbers.iter().map(|number| f64::from((to_bf16(*number) - number) / number).powi(2));
        let measured = (squares.sum::<f64>() / numbers.len() as f64).sqrt();
        assert!((measured / rounding(DType::BF16) - 1.0).abs() < 0.01, "{measured}");
    }

    /// Rounds to the nearest bf16, ties to even.
    fn to_bf16(number: f32) -> f32 {
        let bits = number.to_bits();
        f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
    }

    /// Normal values by the method of Box and Muller (1958), rounded as in Q8_0. Activations
    /// take the best of four scales and have a smaller error.
    #[test]
    fn byte_rounding_errors_have_the_derived_size() {
        let mut random = Random(1);
        let mut uniform = || ((random.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
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
        let bound = ErrorBound::new(GoldenPrecision::F32, 64, DType::F32, 0.01);
        let (states, logits) = (ValueDepth::Layers(4), ValueDepth::Logits(4));
        let with_activations =
            |layers, head, depth| bound.clone().with_activations(layers, head).at(depth, 1.0);
        assert_eq!(with_activations(DType::F32, DType::F32, states), bound.at(states, 1.0));
        let after =
            [DType::F32, DType::BF16, DType::Q8_0].map(|dtype| with_activations(dtype, dtype, states));
        assert!(after.is_sorted(), "{after:?}");
        // 17 times a hundredth of weights, and 16 times 0.5346 hundredths of activations.
        assert!((after[2] / after[0] - 1.1265).abs() < 1e-3, "{after:?}");
        // The head's activations affect the logits only.
        assert_eq!(with_activations(DType::Q8_0, DType::F32, states), after[2]);
        let logits =
            [DType::F32, DType::F16, DType::Q8_0].map(|head| with_activations(DType::Q8_0, head, logits));
        assert!(after[2] < logits[0] && logits.is_sorted(), "{logits:?}");
    }

    #[test]
    fn coarser_arithmetic_has_a_wider_bound() {
        let after = |precision, state, quantized| {
            ErrorBound::new(precision, 64, state, quantized).at(ValueDepth::Layers(4), 1.0)
        };
        let single = after(GoldenPrecision::F32, DType::F32, 0.0);
        assert!(single > 0.0 && single < 1e-4, "{single}");
        let wider = [
            after(GoldenPrecision::F32, DType::F16, 0.0),
            after(GoldenPrecision::F32, DType::BF16, 0.0),
            after(GoldenPrecision::Bf16, DType::BF16, 0.0),
            ErrorBound::new(GoldenPrecision::Bf16, 64, DType::BF16, 0.0)
                .storing(DType::BF16)
                .at(ValueDepth::Layers(4), 1.0),
            after(GoldenPrecision::Bf16, DType::BF16, 0.1),
        ];
        assert!(wider.is_sorted() && wider[0] > 100.0 * single, "{wider:?}");
    }
}
