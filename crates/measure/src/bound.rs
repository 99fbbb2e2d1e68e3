//! The permitted difference between a correct result and a golden, derived from the roundings of
//! both programs.
//!
//! Two programs that compute the same function differ because they round. All errors here are root
//! mean squares, relative to that of their row. Independent errors add up in squares.
//!
//! **One rounding.** In a format with unit roundoff `u` it has the error
//! `√(1/3 · 3/(8 ln 2)) · u`: up to `u · 2^e` for a number with exponent `e`, uniformly distributed,
//! where leading digits follow Benford's law. That is [`ROOT_MEAN_SQUARE`]` · u`.
//!
//! **A sum of `K` products** differs by `√K` roundings between two programs. Each partial sum is
//! rounded. The roundings are nearly independent (Higham & Mary 2019, *A new approach to probabilistic
//! rounding error analysis*), and so are the products: after `i` steps the sum has `√(i/K)` of its
//! size. So each program has `√(K/2)` roundings of the result. Other orders have smaller errors.
//!
//! **A group of bytes with one scale** (Q8_0, int8 activations) has steps of `max/127`, so the error is
//! `max / (127 √12)`, except that of `max` itself. Of 32 normal values, `max` is [`LARGEST_OF_GROUP`]
//! times the root mean square, so the error is 0.53 %. Where one value dominates its group, it may be
//! `√32 /` [`LARGEST_OF_GROUP`] times that.
//!
//! **Followed errors** are those of sums, of results that the golden stores, and of state.
//! `running_error.rs` follows them through the graph, row by row, with the sizes of this program's own
//! run and of the weights. They are not quite independent, so [`DEPENDENCE`] multiplies them.
//!
//! **Counted errors** are added up along the operators that lead to a value, without sizes: those of
//! quantized weights, of activations that are rounded before matmuls, and of results that this program
//! stores. An operator may enlarge its operands' errors, so [`GAIN`] multiplies them. If two operands
//! have errors, the larger one counts: they share most of them. The roundings of a node whose values a
//! backend does not report are counted as well, and reports name the node ([`BoundUse`]).
//! Between two backends, all errors are counted.
//!
//! **The largest** of `n` errors lies within `√(2 ln 2n)` standard deviations: [`DEVIATIONS`] for the
//! largest models here. So a value may differ by `7 · √((DEPENDENCE · ε)² + (GAIN · η)²) · rms`,
//! where `ε` is the followed error of its row, `η` the counted one, and `rms` the root mean square of the
//! row in the golden.
//!
//! `girih diagnose FIXTURE --golden … --against f32 --kv f32 --json` has the largest `of_bound`, and the
//! `bound` relative to `rms`. The decoders of `tests/fixtures` reach 11 to 26 % of a bound of
//! `2e-5` to `6e-5` for logits, deep ones 37 % of up to `6e-4`, and the narrowest one, `gemma3_narrow`, 76 % of
//! `6e-5`. Against bf16, with `--kv bf16`, they reach 15 to 45 % of 0.4 to 1.7, and the trained `stories260k`
//! 26 % of 4. Encoders reach 33 %. Quantized copies reach 74 %.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use girih_graph::{Graph, Node, Numerics, Op, OperandKind, OutputKind, Role, Rounding};
use girih_tensor::{DType, Result, Shape};

use crate::rounding::RoundingErrors;
use crate::row_sizes::RowSizes;
use crate::running_error::RowErrors;

/// The number of values that share a scale: 16 in Q2_K, Q3_K and Q6_K, 32 in the other
/// formats; the larger number gives the larger bound.
const SCALE_GROUP: usize = 32;

/// The number of steps of Q8_0 between −127 and 127.
const Q8_0_LEVELS: f64 = 254.0;

/// The root mean square of a rounding's relative error, in unit roundoffs:
/// `√(1 / (8 ln 2))`.
const ROOT_MEAN_SQUARE: f64 = 0.424_661;

/// The maximum number of roundings of an elementwise operator: a gate's polynomial,
/// exponential, sum, quotient and products.
const ELEMENTWISE_ROUNDINGS: f64 = 16.0;

/// The largest of [`SCALE_GROUP`] independent normal values, in standard deviations:
/// `√∫ x² d(erf(x/√2)^32)`, the root mean square of its size.
const LARGEST_OF_GROUP: f64 = 2.389_457;

/// The factor by which an operator may enlarge the relative error of its inputs, where errors
/// are counted.
const GAIN: f64 = 2.0;

/// The factor by which followed errors may exceed their analysis, because they are not
/// independent: a part of a layer and the residual that it is added to share errors, and so do the
/// rows and elements of narrow models. It is measured, not derived: the logits of
/// `tests/fixtures/gemma3_narrow` reach 0.76 of the bound with 3. It is also why the negated queries of the
/// last layer of `stories260k` are found in f32, but not against bf16 (0.96 of the bound).
const DEPENDENCE: f64 = 3.0;

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
    graph: Graph,
    one: OneError,
    /// The mean square of each matrix of weights.
    weight_squares: HashMap<String, f64>,
    /// The biases by which experts are chosen and the sinks of attention, by name.
    vectors: HashMap<String, Vec<f32>>,
    /// The counted errors of each value.
    counted: Vec<CountedErrors>,
    /// The roundings of each node, counted.
    node_roundings: Vec<f64>,
}

/// The relative errors of one operator of each kind.
#[derive(Clone, Copy, Debug)]
struct OneError {
    /// Of the longest sum.
    summed: f64,
    /// Of a result that the golden stores.
    golden: f64,
    /// Of state.
    kept: f64,
    /// Of a result that this program stores.
    stored: f64,
    /// Of weights.
    weights: f64,
    /// Of the activations of matmuls in layers.
    activations: f64,
    /// Of the activations of the matmul that yields logits.
    head: f64,
}

/// Mean squares of relative errors, added up along the operators that lead to a value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CountedErrors {
    /// Of sums, of results that the golden stores, and of state.
    roundings: f64,
    /// Of weights, of activations, and of results that this program stores.
    others: f64,
}

/// How a bound was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BoundUse {
    /// The nodes through which roundings could not be followed, so that theirs were counted: the name of
    /// the result with its layer, and the op.
    pub not_followed: Vec<String>,
    /// The other errors of this model and backend. They are always counted.
    pub counted: Vec<&'static str>,
    /// The number of rows, in all layers, for which a correct program may choose other experts. Their bound
    /// allows for that.
    #[serde(skip_serializing_if = "is_zero")]
    pub uncertain_choices: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl BoundUse {
    /// Adds the nodes of another run of the same model.
    pub(crate) fn add(&mut self, errors: &RowErrors) {
        let new = errors.not_followed.iter().filter(|node| !self.not_followed.contains(node));
        let new: Vec<String> = new.cloned().collect();
        self.not_followed.extend(new);
        self.uncertain_choices += errors.uncertain_choices;
    }
}

impl fmt::Display for BoundUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("roundings followed through ")?;
        match self.not_followed.as_slice() {
            [] => f.write_str("every op")?,
            [only] => write!(f, "every op but {only}, whose were counted")?,
            [first, others @ ..] => {
                write!(f, "the ops but {first} and {} more, whose were counted", others.len())?;
            }
        }
        if !self.counted.is_empty() {
            write!(f, "; errors of {} counted", self.counted.join(" and "))?;
        }
        match self.uncertain_choices {
            0 => Ok(()),
            rows => {
                write!(f, "; in {rows} rows of layers, other experts might be chosen within these errors")
            }
        }
    }
}

impl ErrorBound {
    /// Returns the bound of a model with this graph, whose weights `numbers` returns, on a backend that
    /// rounds like this. With `same_weights`, the golden was made from these numbers, so that no weight has an
    /// error, whatever its format.
    ///
    /// # Errors
    /// When a weight cannot be read.
    pub fn new(
        precision: GoldenPrecision,
        graph: &Graph,
        numerics: &Numerics,
        same_weights: bool,
        numbers: impl Fn(&str) -> Result<Vec<f32>>,
    ) -> Result<ErrorBound> {
        let (mut terms, mut weights, mut weight_squares) = (1, 0.0f64, HashMap::new());
        let mut vectors = HashMap::new();
        for (_, weight) in graph.weights() {
            terms = terms.max(weight.shape.columns());
            if weight.shape.extents().len() >= 2 {
                let numbers = numbers(&weight.name)?;
                if !same_weights {
                    weights = weights.max(relative_step(weight.dtype, &weight.shape, &numbers));
                }
                weight_squares.insert(weight.name.clone(), rms(&numbers).powi(2));
            }
        }
        for node in &graph.nodes {
            let read = match node.op {
                Op::Route { .. } => 1..2,
                Op::Attend { .. } => 3..4,
                Op::SsmScan { .. } => 4..7,
                Op::DeltaRule { .. } => 5..6,
                _ => 0..0,
            };
            for id in node.inputs.iter().take(read.end).skip(read.start) {
                let name = &graph.value(*id).name;
                vectors.insert(name.clone(), numbers(name)?);
            }
        }
        let states = graph.values.iter().filter(|value| matches!(value.role, Role::State(_)));
        let activations = numerics.activations.first().copied().unwrap_or(Rounding::NONE);
        let one = OneError {
            summed: (terms as f64).sqrt() * rounding(DType::F32),
            golden: rounding(precision.stored()),
            kept: states.map(|state| coarser(state.dtype)).fold(0.0, f64::max),
            stored: coarser(numerics.stores),
            weights,
            activations: coarser(activations.format),
            head: coarser(numerics.head.format),
        };
        let mut counted = vec![CountedErrors::default(); graph.values.len()];
        let mut node_roundings = Vec::with_capacity(graph.nodes.len());
        let is_linear = |node: &Node| matches!(node.op, Op::Linear);
        let head = graph.nodes.iter().rposition(is_linear).filter(|_| graph.key.output == OutputKind::Logits);
        for (index, node) in graph.nodes.iter().enumerate() {
            let own = one.of(graph, node, head == Some(index));
            let operands = node.inputs.iter().map(|id| counted[id.0 as usize]);
            let most = operands.fold(CountedErrors::default(), |most, errors| CountedErrors {
                roundings: most.roundings.max(errors.roundings),
                others: most.others.max(errors.others),
            });
            counted[node.output.0 as usize] =
                CountedErrors { roundings: most.roundings + own.roundings, others: most.others + own.others };
            node_roundings.push(own.roundings);
        }
        Ok(ErrorBound { graph: graph.clone(), one, weight_squares, vectors, counted, node_roundings })
    }

    /// Returns a watch for the sizes of the rows of a run of these sequences, one after another.
    pub(crate) fn row_sizes(&self, sequences: impl IntoIterator<Item = usize>) -> RowSizes<'_> {
        let mut end = 0;
        let ranges = sequences.into_iter().map(|rows| {
            end += rows;
            Range { start: end - rows, end }
        });
        RowSizes::of(&self.graph, &self.weight_squares, ranges.collect()).with_vectors(&self.vectors)
    }

    /// This bound of a graph that reads the value `name` of the graph of another bound.
    ///
    /// # Panics
    /// When that graph has no such value.
    #[must_use]
    pub fn after(mut self, earlier: &ErrorBound, name: &str) -> ErrorBound {
        let id = earlier.graph.find(name).expect("the caller names a value of the graph");
        let of_input = earlier.counted[id.0 as usize];
        for errors in &mut self.counted {
            errors.roundings += of_input.roundings;
            errors.others += of_input.others;
        }
        self
    }

    /// The mean square of the relative error of a number that the golden stores.
    pub(crate) fn one_store(&self) -> f64 {
        self.one.golden.powi(2)
    }

    /// Follows the errors of sums, results and state through a run.
    pub(crate) fn follow(&self, sizes: &RowSizes<'_>) -> RowErrors {
        let term = rounding(DType::F32).powi(2);
        let result = term + self.one.golden.powi(2);
        let state = self.one.kept.powi(2);
        let (scores, elements) = sizes.routed();
        let largest = largest_of(scores) * DEPENDENCE;
        // The change that another expert makes has the size of a row's largest element, not that of a deviation.
        let change = (largest_of(elements) / (DEVIATIONS * DEPENDENCE)).powi(2);
        let one = RoundingErrors { term, result, state, largest, change };
        let others = self.counted.iter().map(|errors| (GAIN / DEPENDENCE).powi(2) * errors.others);
        sizes.errors(one, &self.node_roundings, &others.collect::<Vec<_>>())
    }

    /// How the bound is found if every node can be followed.
    pub fn all_followed(&self) -> BoundUse {
        let OneError { stored, weights, activations, head, .. } = self.one;
        let named = [
            (weights, "quantized weights"),
            (activations.max(head), "rounded activations"),
            (stored, "stored results"),
        ];
        let counted = named.iter().filter(|(error, _)| *error > 0.0).map(|(_, name)| *name);
        BoundUse { not_followed: Vec::new(), counted: counted.collect(), uncertain_choices: 0 }
    }

    /// Whether weights were quantized after the golden was made.
    pub fn has_quantized_weights(&self) -> bool {
        self.one.weights > 0.0
    }

    /// Returns the permitted difference of a value of this name from its golden, in a row whose golden
    /// has the root mean square `rms`. If the mean square `followed` of the relative errors of
    /// sums, results and state is known for this row, it takes the place of the counted ones.
    ///
    /// # Panics
    /// When the graph has no such value.
    pub(crate) fn at(&self, name: &str, rms: f64, followed: Option<f64>) -> f64 {
        let id = self.graph.find(name).expect("every graph has the values that are compared");
        let CountedErrors { roundings, others } = self.counted[id.0 as usize];
        let roundings = followed.map_or(GAIN.powi(2) * roundings, |followed| DEPENDENCE.powi(2) * followed);
        DEVIATIONS * (roundings + GAIN.powi(2) * others).sqrt() * rms
    }
}

impl OneError {
    /// The errors that a node adds.
    fn of(&self, graph: &Graph, node: &Node, is_head: bool) -> CountedErrors {
        // How many operators that sum many terms, and how many elementwise ones.
        let (sums, elementwise) = match node.op {
            Op::Splice | Op::Gather | Op::Reshape | Op::Concat | Op::Write | Op::Clamp { .. } => (0.0, 0.0),
            Op::Embed
            | Op::Norm { .. }
            | Op::Linear
            | Op::LinearHeads
            | Op::ShortConv
            | Op::Hadamard { .. }
            | Op::MixHeads
            | Op::Pool { .. } => (1.0, 0.0),
            // The state and the result; the step and the decay.
            Op::SsmScan { .. } => (2.0, 2.0),
            // The products with gate or up and down, and the sum of experts.
            Op::Experts { .. } => (3.0, 1.0),
            // Two means, or the mean and the variance.
            Op::LayerNorm { .. } | Op::Sparsify { .. } | Op::MatchRms { .. } => (2.0, 0.0),
            // The prediction, the matrix, the result.
            Op::DeltaRule { .. } => (3.0, 0.0),
            // Errors of a selection are those of what reads it.
            Op::SelectKeys { .. } => (0.0, 0.0),
            // Scores, softmax, values.
            Op::Attend { .. } | Op::AttendLatent { .. } => (3.0, 0.0),
            Op::Scale { .. }
            | Op::ScaleColumns
            | Op::ShiftColumns
            | Op::Rope { .. }
            | Op::Temper { .. }
            | Op::Softcap { .. }
            | Op::Activate { .. }
            | Op::Xielu { .. }
            | Op::Gate { .. }
            | Op::GateHeads { .. }
            | Op::Route { .. }
            | Op::Add => (0.0, 1.0),
        };
        let operands = || node.inputs.iter().map(|id| graph.value(*id));
        let states = operands().filter(|value| matches!(value.role, Role::State(_))).count() as f64;
        let kinds = node.op.spec().operands.iter().take(node.inputs.len());
        let matrices =
            kinds.filter(|kind| matches!(kind, OperandKind::Matrix | OperandKind::Matrices)).count() as f64;
        // Experts round their rows, and what gate and up become.
        let activations = match node.op {
            Op::Linear if is_head => self.head.powi(2),
            Op::Linear | Op::LinearHeads => self.activations.powi(2),
            Op::Experts { .. } => 2.0 * self.activations.powi(2),
            _ => 0.0,
        };
        let roundings = sums * self.summed.powi(2)
            + elementwise * ELEMENTWISE_ROUNDINGS * rounding(DType::F32).powi(2)
            + (sums + elementwise) * self.golden.powi(2)
            + states * self.kept.powi(2);
        let others =
            (sums + elementwise) * self.stored.powi(2) + matrices * self.weights.powi(2) + activations;
        CountedErrors { roundings, others }
    }
}

/// Returns the relative error of weights stored as `dtype`: the root mean square of the
/// rounding divided by that of the numbers. A rounding error is uniform over a step
/// between the format's levels, so its root mean square is the step divided by `√12`.
fn relative_step(dtype: DType, shape: &Shape, numbers: &[f32]) -> f64 {
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

/// Returns the largest difference between sums of `terms` products in single precision that
/// differ only in their order, relative to the root mean square of such sums.
pub(crate) fn reordered_sum(terms: usize) -> f64 {
    DEVIATIONS * GAIN * (terms as f64).sqrt() * rounding(DType::F32)
}

/// Returns the number of standard deviations within which the largest of `count` errors lies: `√(2 ln 2n)`.
fn largest_of(count: usize) -> f64 {
    (2.0 * (2.0 * count.max(1) as f64).ln()).sqrt()
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
        DType::Q8_0 | DType::Q5_0 | DType::Q4_0 => {
            let off = (SCALE_GROUP - 1) as f64 / SCALE_GROUP as f64;
            let levels = levels(dtype).expect("they quantize");
            return 2.0 * LARGEST_OF_GROUP / levels * (off / 12.0).sqrt();
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

    /// A model of `layers` layers that add a matmul of their norm, with weights of this type.
    fn graph(layers: usize, weights: DType, state: DType) -> Graph {
        let mut text = String::from(
            "graph rows 2 sequences 1 context 64 output_rows 2 -> logits\n\
            group full span full\ninput tokens: [rows 2] i32\nweight table: [4, 32] f32\n\
            embed: [rows 2, 32] = embed tokens, table\nweight n: [32] f32\n",
        );
        let mut x = "embed".to_owned();
        for at in (0..layers).map(|layer| format!("layers.{layer}")) {
            text += &format!(
                "{at}.norm: [rows 2, 32] = norm(epsilon=0.0) {x}, n\n\
                weight {at}.w: [32, 32] {weights}\n{at}.q: [rows 2, 32] = linear {at}.norm, {at}.w\n\
                {at}.heads: [rows 2, 1, 32] = reshape {at}.q\n\
                state {at}.keys: [context 64, 1, 32] {state} in full\n{at}.keys = write {at}.heads\n\
                {at}.mixed: [rows 2, 1, 32] = attend(scale=1.0 span=full) {at}.heads, {at}.keys, {at}.keys\n\
                {at}.flat: [rows 2, 32] = reshape {at}.mixed\n\
                {at}.out: [rows 2, 32] = add {x}, {at}.flat\n"
            );
            x = format!("{at}.out");
        }
        text += &format!(
            "rows: [output_rows 2, 32] = gather {x}\n\
            output logits: [output_rows 2, 4] = linear rows, table\n"
        );
        text.parse().expect("a graph")
    }

    fn bound(precision: GoldenPrecision, graph: &Graph, numerics: &Numerics) -> ErrorBound {
        bound_of(precision, graph, numerics, false)
    }

    fn bound_of(
        precision: GoldenPrecision,
        graph: &Graph,
        numerics: &Numerics,
        same_weights: bool,
    ) -> ErrorBound {
        let numbers = |name: &str| {
            let id = graph.find(name).expect("a weight");
            Ok((0..graph.value(id).shape.elements()).map(|index| (index % 5) as f32 - 2.0).collect())
        };
        ErrorBound::new(precision, graph, numerics, same_weights, numbers).expect("numbers")
    }

    /// A norm, a matmul, attention and an addition: five sums and an elementwise operator per layer, and
    /// two reads of state.
    #[test]
    fn errors_are_counted_between_the_outputs_of_layers() {
        let bound = bound(GoldenPrecision::F32, &graph(9, DType::F32, DType::F16), &Numerics::single());
        let at = |name: &str| bound.at(name, 1.0, None).powi(2);
        let layer = at("layers.1.out") - at("layers.0.out");
        let OneError { summed, golden, kept, .. } = bound.one;
        let roundings = ELEMENTWISE_ROUNDINGS * rounding(DType::F32).powi(2);
        let want = 5.0 * summed.powi(2) + roundings + 6.0 * golden.powi(2) + 2.0 * kept.powi(2);
        assert!((layer / (GAIN * DEVIATIONS).powi(2) / want - 1.0).abs() < 1e-9, "{layer} {want}");
        assert!(((at("layers.8.out") - at("layers.0.out")) / layer / 8.0 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn rounded_activations_add_to_quantized_weights() {
        let graph = graph(4, DType::Q8_0, DType::F32);
        let at = |layers, head, name: &str| {
            let of = |format| Rounding { format, ..Rounding::NONE };
            let numerics = Numerics { activations: vec![of(layers)], head: of(head), ..Numerics::single() };
            bound(GoldenPrecision::F32, &graph, &numerics).at(name, 1.0, None)
        };
        let dtypes = [DType::F32, DType::BF16, DType::Q8_0];
        let states = dtypes.map(|dtype| at(dtype, dtype, "layers.3.out"));
        assert!(states.is_sorted(), "{states:?}");
        // Four times the error of activations, and four times that of weights and once that of the table.
        let one = bound(GoldenPrecision::F32, &graph, &Numerics::single()).one;
        let want = (1.0 + 0.8 * (rounding(DType::Q8_0) / one.weights).powi(2)).sqrt();
        assert!((states[2] / states[0] / want - 1.0).abs() < 1e-3, "{states:?} {want}");
        // The head's activations affect the logits only.
        assert_eq!(at(DType::Q8_0, DType::F32, "layers.3.out"), states[2]);
        let logits = [DType::F32, DType::F16, DType::Q8_0].map(|head| at(DType::Q8_0, head, "logits"));
        assert!(states[2] < logits[0] && logits.is_sorted(), "{logits:?}");
    }

    #[test]
    fn coarser_arithmetic_has_a_wider_bound() {
        let after = |precision, state, stores, weights| {
            let numerics = Numerics { stores, ..Numerics::single() };
            bound(precision, &graph(4, weights, state), &numerics).at("layers.3.out", 1.0, None)
        };
        let (single, half) = (GoldenPrecision::F32, GoldenPrecision::Bf16);
        let exact = after(single, DType::F32, DType::F32, DType::F32);
        assert!(exact > 0.0 && exact < 1e-4, "{exact}");
        let wider = [
            after(single, DType::F16, DType::F32, DType::F32),
            after(single, DType::BF16, DType::F32, DType::F32),
            after(half, DType::BF16, DType::F32, DType::F32),
            after(half, DType::BF16, DType::BF16, DType::F32),
            after(half, DType::BF16, DType::BF16, DType::Q4_0),
        ];
        assert!(wider.is_sorted() && wider[0] > 100.0 * exact, "{wider:?}");
    }

    #[test]
    fn weights_from_which_the_golden_was_made_have_no_error() {
        let graph = graph(1, DType::MXFP4, DType::F32);
        let bound = |same_weights| bound_of(GoldenPrecision::F32, &graph, &Numerics::single(), same_weights);
        assert!(bound(false).has_quantized_weights() && !bound(true).has_quantized_weights());
        assert!(bound(true).at("logits", 1.0, None) < 1e-3 * bound(false).at("logits", 1.0, None));
    }

    #[test]
    fn a_report_names_what_was_counted() {
        let graph = graph(1, DType::Q8_0, DType::F32);
        let mut used = bound(GoldenPrecision::F32, &graph, &Numerics::single()).all_followed();
        let counted = "; errors of quantized weights counted";
        assert_eq!(used.to_string(), format!("roundings followed through every op{counted}"));
        used.not_followed.push("layers.0.mixed (attend)".to_owned());
        let all = format!(
            "roundings followed through every op but layers.0.mixed (attend), whose were counted{counted}"
        );
        assert_eq!(used.to_string(), all);
    }
}
