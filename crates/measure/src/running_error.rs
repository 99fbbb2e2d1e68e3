//! A running error analysis (Wilkinson 1986, *Error analysis revisited*): the errors that
//! stored results cause in each row of each value of a graph.
//!
//! The error of a row is the mean square of its elements' errors, relative to the mean
//! square of the row in this program's own run. Errors of different stores are
//! independent, so their squares add up. A bf16 golden of transformers 5 with eager
//! attention stores, cast by cast:
//!
//! | op | stores | what happens to the errors of its operands |
//! |---|---|---|
//! | embedding | the row | |
//! | embedding's scale | the factor, the product | unchanged |
//! | norm | the quotient and, in Llama's, its product with the weight | unchanged: a norm divides noise and row alike |
//! | linear | the sum; the weights, if the model has finer ones | divided by the row's size, where other rows are larger |
//! | RoPE | the cosine, the products, their sum | unchanged |
//! | attention | the sum and the scaled sum; with a cap the quotient, tanh and product; the softmax; the result | those of the scores times the scores' size |
//! | gate | the activation, the product | added up |
//! | residual | the sum | weighted by the sizes of both operands |
//!
//! - **Linear.** Its noise has the size that the typical row would need. A row in which the
//!   products cancel has the same noise, and so a larger relative error. Where a norm follows,
//!   as after the parts of Gemma's layers, that error enters the residual stream at full size.
//! - **Attention.** The exponential turns an absolute error of a score into a relative error
//!   of a probability. A score is a sum of `d` products, so its error is that of query and key
//!   times `scale · √d · rms(q) · rms(k)`, the scores' root mean square.
//! - **Residual.** Errors keep their absolute size. If a sum cancels, their relative size
//!   grows; if a small part is added to a large stream, its errors count little.

use std::collections::HashMap;

use girih_graph::{Graph, Node, Op, ValueId, Watch};
use girih_tensor::{DType, Shape};

/// Stores of an embedding's scale: the factor and the product.
const SCALE_STORES: f64 = 2.0;

/// Stores of a norm: the quotient, and its product with the weight. Gemma stores only the latter.
const NORM_STORES: f64 = 2.0;

/// Stores of RoPE: the cosine or sine, the product, and the sum of two products.
const ROPE_STORES: f64 = 3.0;

/// Stores of a score: the sum, and its product with the scale. The mask adds 0.
const SCORE_STORES: f64 = 2.0;

/// Stores of a cap: the quotient, tanh, and the product.
const CAP_STORES: f64 = 3.0;

/// Stores of attention after its scores: the softmax and the result.
const ATTEND_STORES: f64 = 2.0;

/// Stores of a gate: the activation and the product.
const GATE_STORES: f64 = 2.0;

/// Roundings of an exponential and what surrounds it: a gate's polynomial, exponential, sum
/// and quotient, or a softmax.
const EXPONENTIAL_ROUNDINGS: f64 = 16.0;

/// The part of `D` roundings that remains of a norm's sum of squares. Its partial sums grow
/// linearly, so each of two programs has `√(D/3)` roundings, of which the root takes half.
const NORM_PART: f64 = 1.0 / 6.0;

/// The mean square of the angles by which RoPE rotates pairs, in units of the position's
/// square: `∫ base^(−2x) dx` is `1 / (2 ln base)` from 0 to 1, at most this from base 10,000.
/// The rounding of an angle is relative to the angle.
const ANGLE_SQUARES: f64 = 0.054_287;

/// The mean squares of the relative errors of one rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundingErrors {
    /// Of a term of a sum, in single precision.
    pub term: f64,
    /// Of a stored result, in both programs.
    pub result: f64,
    /// Of a row of state in this program.
    pub state: f64,
}

/// The sizes of the rows of a graph's values in a run: a watch.
#[derive(Debug)]
pub(crate) struct RowSizes<'a> {
    graph: &'a Graph,
    /// The index of each value by its name.
    indices: HashMap<&'a str, usize>,
    /// The mean square of each row of each value; empty if the backend did not report it.
    squares: Vec<Vec<f64>>,
}

impl<'a> RowSizes<'a> {
    /// No rows yet.
    pub(crate) fn of(graph: &'a Graph) -> RowSizes<'a> {
        let indices = graph.ids().map(|(id, value)| (value.name.as_str(), id.0 as usize)).collect();
        RowSizes { graph, indices, squares: vec![Vec::new(); graph.values.len()] }
    }

    /// Follows the errors of stores through the graph; `None` if the backend did not report
    /// a value that this needs.
    pub(crate) fn errors(&self, one: RoundingErrors) -> Option<RowErrors> {
        let values = self.graph.values.len();
        let mut analysis =
            Analysis { graph: self.graph, one, squares: self.squares.clone(), errors: vec![None; values] };
        for node in &self.graph.nodes {
            let errors = analysis.node(node)?;
            analysis.errors[node.output.0 as usize] =
                Some(errors.into_iter().map(|error| error.min(1.0)).collect());
        }
        let named = self.graph.values.iter().zip(analysis.errors);
        Some(RowErrors(named.filter_map(|(value, errors)| Some((value.name.clone(), errors?))).collect()))
    }
}

impl Watch for RowSizes<'_> {
    fn wants(&self, name: &str) -> bool {
        self.indices.contains_key(name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        let rows = shape.extents().first().copied().unwrap_or(1).max(1);
        let columns = (data.len() / rows).max(1);
        let mean_square =
            |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
        self.squares[self.indices[name]].extend(data.chunks(columns).map(mean_square));
    }
}

/// The mean squares of the relative errors of rows, by the names of values. None exceeds 1:
/// an error beyond the row's own size says no more.
#[derive(Debug)]
pub(crate) struct RowErrors(HashMap<String, Vec<f64>>);

impl RowErrors {
    /// Those of this row of this value, if the graph has it.
    pub(crate) fn of(&self, name: &str, row: usize) -> Option<f64> {
        self.0.get(name)?.get(row).copied()
    }
}

/// The analysis, after the nodes so far.
struct Analysis<'a> {
    graph: &'a Graph,
    one: RoundingErrors,
    squares: Vec<Vec<f64>>,
    errors: Vec<Option<Vec<f64>>>,
}

impl Analysis<'_> {
    /// The errors of a node's result; `None` if the size of a value is unknown.
    fn node(&mut self, node: &Node) -> Option<Vec<f64>> {
        if matches!(node.op, Op::Reshape | Op::Write) {
            self.same_sizes(node);
        }
        let RoundingErrors { term, result, state } = self.one;
        let stores = |stores: f64| self.after(node, |_| stores * result);
        match node.op {
            Op::Embed => Some(vec![result; self.sizes(node.output)?.len()]),
            Op::Splice | Op::Gather | Op::Reshape => stores(0.0),
            Op::Write => self.after(node, |_| state),
            Op::Scale { .. } => stores(SCALE_STORES),
            Op::Norm { .. } | Op::LayerNorm { .. } => {
                let sum = NORM_PART * self.columns(node.output) * term;
                self.after(node, |_| NORM_STORES * result + sum)
            }
            Op::Rope { .. } => {
                let angle = |row| ANGLE_SQUARES * (row as f64).powi(2) * 2.0 * term;
                self.after(node, |row| ROPE_STORES * result + angle(row))
            }
            Op::Softcap { .. } => stores(CAP_STORES),
            Op::Activate { .. } => self.after(node, |_| result + EXPONENTIAL_ROUNDINGS * term),
            Op::Gate { .. } => {
                let up = self.of(node.inputs[1])?;
                let own = GATE_STORES * result + EXPONENTIAL_ROUNDINGS * term;
                self.after(node, |row| up.get(row).copied().unwrap_or(1.0) + own)
            }
            Op::Add => self.add(node),
            Op::Linear => self.linear(node),
            Op::Attend { scale, softcap, .. } => self.attend(node, scale, softcap.is_some()),
            // A sequence, not a row, has a pooled result.
            _ => None,
        }
    }

    /// The errors of the first operand, plus those that `own` returns for each row.
    fn after(&self, node: &Node, own: impl Fn(usize) -> f64) -> Option<Vec<f64>> {
        let errors = self.of(node.inputs[0])?.iter().enumerate();
        Some(errors.map(|(row, error)| error + own(row)).collect())
    }

    fn add(&self, node: &Node) -> Option<Vec<f64>> {
        let (a, b, sums) = (node.inputs[0], node.inputs[1], self.sizes(node.output)?);
        let noise =
            |id: ValueId| Some(self.of(id)?.iter().zip(self.sizes(id)?).map(|(error, size)| error * size));
        let rows = noise(a)?.zip(noise(b)?).zip(sums);
        Some(rows.map(|((a, b), sum)| ratio(a + b, *sum) + self.one.result).collect())
    }

    fn linear(&self, node: &Node) -> Option<Vec<f64>> {
        let weights = self.graph.value(node.inputs[1]);
        let terms = weights.shape.columns() as f64 * self.one.term;
        let stores = if weights.dtype == DType::BF16 { 1.0 } else { 2.0 } * self.one.result;
        let sizes = self.sizes(node.output)?;
        let typical = sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
        let rows = self.of(node.inputs[0])?.iter().zip(sizes);
        Some(rows.map(|(error, size)| ratio((error + terms) * typical.max(*size), *size) + stores).collect())
    }

    /// Earlier rows may all be read, so the largest size and errors among them count.
    fn attend(&self, node: &Node, scale: f32, capped: bool) -> Option<Vec<f64>> {
        let [q, keys, values] = node.inputs[..] else { return None };
        let RoundingErrors { term, result, .. } = self.one;
        let width = self.columns(q);
        let stores = (SCORE_STORES + if capped { CAP_STORES } else { 0.0 }) * result + width * term;
        let rows = self.of(q)?.iter().zip(self.sizes(q)?);
        let read = self.of(keys)?.iter().zip(self.sizes(keys)?).zip(self.of(values)?);
        let mut most = (0.0f64, 0.0f64, 0.0f64);
        let errors = rows.zip(read).enumerate().map(|(row, ((q, q_size), ((key, key_size), value)))| {
            most = (most.0.max(*key), most.1.max(*key_size), most.2.max(*value));
            let scores = f64::from(scale).powi(2) * width * q_size * most.1;
            let own = ATTEND_STORES * result + (EXPONENTIAL_ROUNDINGS + (row + 1) as f64) * term;
            scores * (q + most.0 + stores) + most.2 + own
        });
        Some(errors.collect())
    }

    /// The innermost extent of a value.
    fn columns(&self, id: ValueId) -> f64 {
        self.graph.value(id).shape.columns() as f64
    }

    /// Gives a result that no backend reports the sizes of its operand.
    fn same_sizes(&mut self, node: &Node) {
        if self.squares[node.output.0 as usize].is_empty() {
            self.squares[node.output.0 as usize] = self.squares[node.inputs[0].0 as usize].clone();
        }
    }

    fn of(&self, id: ValueId) -> Option<&[f64]> {
        self.errors[id.0 as usize].as_deref()
    }

    fn sizes(&self, id: ValueId) -> Option<&[f64]> {
        let sizes = &self.squares[id.0 as usize];
        (!sizes.is_empty()).then_some(sizes)
    }
}

/// A quotient of mean squares; the largest error if only the divisor is 0.
fn ratio(noise: f64, size: f64) -> f64 {
    match (noise, size) {
        (0.0, _) => 0.0,
        (_, 0.0) => 1.0,
        _ => noise / size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One unit per stored result, and none of other kinds.
    const UNIT: RoundingErrors = RoundingErrors { term: 0.0, result: 1e-6, state: 0.0 };

    /// The errors of a graph of two rows, in stores; the values are rows of two numbers.
    fn errors(graph: &str, values: &[(&str, [f32; 4])]) -> Option<RowErrors> {
        let graph: Graph = graph.parse().expect("a graph");
        let mut sizes = RowSizes::of(&graph);
        for (name, rows) in values {
            assert!(sizes.wants(name));
            sizes.value(name, &Shape::matrix(2, 2), rows);
        }
        sizes.errors(UNIT)
    }

    fn stores(errors: &RowErrors, name: &str) -> [f64; 2] {
        [0, 1].map(|row| errors.of(name, row).expect("two rows") / UNIT.result)
    }

    fn assert_near(found: [f64; 2], want: [f64; 2]) {
        assert!(found.iter().zip(want).all(|(found, want)| (found - want).abs() < 1e-3 * want), "{found:?}");
    }

    const LINEAR: &str = "\
graph rows 2 sequences 1 context 64 output_rows 2 -> hidden
input tokens: [rows 2] i32
weight table: [4, 2] bf16
x: [rows 2, 2] = embed tokens, table
weight weight: [2, 2] bf16
y: [rows 2, 2] = linear x, weight
sum: [rows 2, 2] = add x, y
output rows: [output_rows 2, 2] = gather sum
";

    /// The first row of `y` has the size 1, the second a tenth of it.
    #[test]
    fn a_row_whose_products_cancel_has_larger_errors() {
        let (x, y) = ([1.0; 4], [1.0, 1.0, 0.1, 0.1]);
        let found = errors(LINEAR, &[("x", x), ("y", y), ("sum", [2.0, 2.0, 1.1, 1.1])]).expect("all values");
        // The typical size is 0.505.
        assert_near(stores(&found, "y"), [2.0, 50.5 + 1.0]);
        // The noise of both operands, over the sum's square, and its own store.
        assert_near(stores(&found, "rows"), [(1.0 + 2.0) / 4.0 + 1.0, (1.0 + 0.515) / 1.21 + 1.0]);
    }

    #[test]
    fn a_residual_that_cancels_keeps_the_noise_of_its_operands() {
        let (x, y) = ([1.0; 4], [1.0, 1.0, -0.9, -0.9]);
        let found = errors(LINEAR, &[("x", x), ("y", y), ("sum", [2.0, 2.0, 0.1, 0.1])]).expect("all values");
        let [first, second] = stores(&found, "sum");
        assert!(first < 2.0 && second > 200.0, "{first} {second}");
    }

    #[test]
    fn errors_of_scores_grow_with_the_scores() {
        let graph = |scale: &str| {
            format!(
                "\
graph rows 2 sequences 1 context 64 output_rows 2 -> hidden
input tokens: [rows 2] i32
weight table: [4, 2] bf16
x: [rows 2, 2] = embed tokens, table
heads: [rows 2, 1, 2] = reshape x
mixed: [rows 2, 1, 2] = attend(scale={scale} span=all) heads, heads, heads
output rows: [output_rows 2, 1, 2] = gather mixed
"
            )
        };
        let found = |scale| errors(&graph(scale), &[("x", [1.0; 4])]).expect("all values");
        // A score is 2 · scale; query and key have one store each, the score two.
        assert_near(stores(&found("0.5"), "mixed"), [0.5 * 4.0 + 1.0 + 2.0; 2]);
        assert_near(stores(&found("5.0"), "mixed"), [50.0 * 4.0 + 1.0 + 2.0; 2]);
    }

    #[test]
    fn no_error_exceeds_its_row_and_a_missing_value_ends_the_analysis() {
        let x = [1.0; 4];
        let found = errors(LINEAR, &[("x", x), ("y", [0.0; 4]), ("sum", [0.0, 0.0, f32::NAN, 0.0])]);
        let found = found.expect("all values");
        assert!([0, 1].iter().all(|row| found.of("rows", *row) == Some(1.0)));
        assert!(found.of("rows", 2).is_none() && found.of("other", 0).is_none());
        assert!(errors(LINEAR, &[("x", x), ("y", x)]).is_none());
    }
}
