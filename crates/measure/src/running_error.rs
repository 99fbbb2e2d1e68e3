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
//! | norm | the quotient and, in Llama's, its product with the weight | unchanged, as a norm divides noise and row alike; of a head, by its size beside its row |
//! | linear | the sum; the weights, if the model has finer ones | enlarged, where the row's products cancel more than those of other rows |
//! | RoPE | the cosine, the products, their sum | unchanged |
//! | attention | the sum and the scaled sum; with a cap the quotient, tanh and product; the softmax; the result | those of scores and values, weighted by the probabilities |
//! | gate | the activation, the product | added up |
//! | residual | the sum | weighted by the sizes of both operands |
//! | scan | the sum with the bias, its softplus; the result | those of rows and steps, weighted by the decays |
//! | pooling | the mean | weighted by the sizes of the rows |
//! | delta rule | the decay, the correction, the matrix, the result | those of all operands, through the matrix |
//! | choice of experts | the weights | those of scores, and what other experts would change if they may be chosen |
//! | experts | two sums, the activation, the products, and a sum for each expert | those of rows, through both factors, and of weights |
//!
//! - **Linear.** Errors of an operand are not aligned with the weights. So a result has the noise that
//!   independent errors would have: that of the operand, times the sum of the squares of a typical row of
//!   weights. A row whose products cancel has the same noise, and so a larger relative error. Trained
//!   weights enlarge rows more than errors; the analysis must not take the gain of a row for that of its
//!   error, or bounds grow fivefold in each layer. The sum's own roundings are relative to the partial
//!   sums, which are as large as the result or as independent products, whichever is larger.
//! - **Attention.** With the probabilities `p` of this program's own run, an error `e_i` of the score
//!   of key `i` changes a head's result by `p_i (v_i − v̄) e_i`, where `v̄ = Σ p_i v_i` is the
//!   result. So an error common to all scores changes nothing, and neither does any error in a row
//!   that reads one key. Errors of keys, values and the scores' own roundings are independent:
//!   their squares add up. The error `d` of `q` is common to all keys: `e_i` is its product with
//!   `k_i − k̄`, where `k̄ = Σ p_i k_i`, so the result changes by `M d` with the matrix
//!   `M = Σ p_i (v_i − v̄) (k_i − k̄)ᵀ`, and an error that lies evenly on all elements has the noise of
//!   one element times `M`'s squared Frobenius norm. Errors of a row may lie evenly on its elements, as
//!   those of a sum, or be relative to each element, as those of a store; the larger of both noises
//!   counts.
//! - **Scan.** As attention without softmax; its steps have errors, too.
//! - **Pooling.** The rows of a mean may cancel. Their errors come from the same weights and need not, so
//!   they count as if they were equal.
//! - **PositionChoice of experts.** An error `d` of all scores changes a probability by no more than `2d` of itself.
//!   Where two scores may change places within the largest error, a correct program may choose the other
//!   expert, whose result is unrelated: the weights that may go to others then count as errors, once
//!   for what is missing and once for what is there instead. Counted errors of the scores widen that
//!   largest error too. Reports have the number of such rows.
//! - **PositionChoice of positions.** As of experts: positions that a correct program may read or not count with their
//!   weights by softmax.
//! - **Gates by sigmoid or softplus.** Where all inputs are negative, results are small and their relative
//!   errors large, so the factor is computed from the row of inputs `x`: with an activation `f`, the mean of
//!   `f'(x)²` times that of `x²`, or the mean of `(x f'(x))²` if it is larger, over that of `f(x)²`. Errors
//!   of other activations are enlarged where results are small beside the rest of their row.
//! - **Experts.** The inner rows are not reported. Their errors count as if no inner product cancelled more
//!   than the typical result of the node does, and as if a limit cut little of a row.
//! - **Residual.** Errors keep their absolute size. If a sum cancels, their relative size
//!   grows; if a small part is added to a large stream, its errors count little.
//!
//! A node whose values the backend does not report adds its counted roundings to the errors of its
//! operands, and the analysis goes on.

mod attention;
mod delta;
mod position_choice;
mod scan;
mod selection;
mod sparse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use girih_graph::{
    Act, AppliedOp, Extent, Graph, HeadSharing, Node, Op, Pooling, Router, Span, ValueId, Weighed,
};
use girih_tensor::DType;

use crate::activation_gain::{SQUARE_GAIN, derivative, gain_of_row, ratio, square_gain};
use crate::rounding::{CAP_STORES, EXPONENTIAL_ROUNDINGS, RoundingErrors, mean_square};
use crate::row_sizes::RowSizes;
use attention::{AttendingHead, Rows};
use delta::{NoisyRows, NoisyRule};
use position_choice::PositionChoice;
use scan::FollowedScan;

/// Stores of an embedding's scale: the factor and the product.
const SCALE_STORES: f64 = 2.0;

/// Stores of a norm: the quotient, and its product with the weight. Gemma stores only the latter.
const NORM_STORES: f64 = 2.0;

/// Stores of a row that is matched to another: two roots, of means that count half, the product and the quotient.
const MATCH_STORES: f64 = 4.5;

/// Stores of a cutoff: the mean, the deviation, their factor, its product, and their sum.
const CUTOFF_STORES: f64 = 5.0;

/// Stores of RoPE: the cosine or sine, the product, and the sum of two products.
const ROPE_STORES: f64 = 3.0;

/// Roundings of a Hadamard product beside its stages: the root and the product.
const HADAMARD_ROUNDINGS: u32 = 2;

/// Stores of a gate: the activation and the product.
const GATE_STORES: f64 = 2.0;

/// The part of `D` roundings that remains of a norm's sum of squares. Its partial sums grow
/// linearly, so each of two programs has `√(D/3)` roundings. The root halves them.
const NORM_PART: f64 = 1.0 / 6.0;

/// The mean square of the angles by which RoPE rotates pairs, in units of the position's
/// square: `∫ base^(−2x) dx` is `1 / (2 ln base)` from 0 to 1, this for base 10,000 and less for
/// larger ones. A graph has no base but frequencies; a model with a smaller base would have more
/// errors than this, and none here has one. The rounding of an angle is relative to the angle.
const ANGLE_SQUARES: f64 = 0.054_287;

impl RowSizes<'_> {
    /// Follows the errors of stores through the graph. A node that cannot be followed adds its `counted`
    /// error. `others` has the errors of each value that are not followed.
    pub(crate) fn errors(&self, one: RoundingErrors, counted: &[f64], others: &[f64]) -> RowErrors {
        let mut analysis = Analysis {
            run: self,
            one,
            others,
            squares: self.squares.clone(),
            read: self.read.iter().map(|rows| rows.as_deref().unwrap_or_default()).collect(),
            errors: vec![None; self.graph.values.len()],
            uncertain_choices: 0,
        };
        // Rows that the caller gives are those of the golden, unless it states their errors.
        for (id, _) in self.graph.inputs().filter(|(_, value)| value.dtype == DType::F32) {
            let given = (0..analysis.rows_of(id)).map(|row| self.given.get(row).copied().unwrap_or(0.0));
            analysis.errors[id.0 as usize] = Some(given.collect());
        }
        let mut not_followed = Vec::new();
        for (node, counted) in self.graph.nodes.iter().zip(counted) {
            let (value, rows) = (self.graph.value(node.output), analysis.rows_of(node.output));
            let errors = analysis.node(node).filter(|errors| errors.len() == rows).unwrap_or_else(|| {
                not_followed.push(format!("{} ({})", value.name, node.op.spec().name));
                analysis.counted(node, rows, *counted)
            });
            analysis.errors[node.output.0 as usize] =
                Some(errors.into_iter().map(|error| error.min(1.0)).collect());
        }
        let uncertain_choices = analysis.uncertain_choices;
        let named = self.graph.values.iter().zip(analysis.errors);
        let rows = named.filter_map(|(value, errors)| Some((value.name.clone(), errors?))).collect();
        RowErrors { rows, not_followed, uncertain_choices }
    }
}

/// The mean squares of the relative errors of rows, by the names of values. None exceeds 1:
/// an error beyond the row's own size says no more.
#[derive(Debug)]
pub(crate) struct RowErrors {
    rows: HashMap<String, Vec<f64>>,
    /// The results and ops of the nodes whose errors were counted.
    pub(crate) not_followed: Vec<String>,
    /// The number of rows for which other experts may be chosen.
    pub(crate) uncertain_choices: usize,
}

impl RowErrors {
    /// Those of this row of this value, if the graph has it.
    pub(crate) fn of(&self, name: &str, row: usize) -> Option<f64> {
        self.rows.get(name)?.get(row).copied()
    }
}

/// The analysis, after the nodes so far.
struct Analysis<'a> {
    run: &'a RowSizes<'a>,
    one: RoundingErrors,
    /// The errors of each value that are not followed.
    others: &'a [f64],
    squares: Vec<Vec<f64>>,
    read: Vec<&'a [f32]>,
    errors: Vec<Option<Vec<f64>>>,
    uncertain_choices: usize,
}

impl Analysis<'_> {
    /// The errors of a node's result; `None` if the size of a value is unknown.
    fn node(&mut self, node: &Node) -> Option<Vec<f64>> {
        if matches!(node.op, Op::Reshape | Op::Write) {
            self.same_sizes(node);
        }
        let RoundingErrors { term, result, state, .. } = self.one;
        let stores = |stores: f64| self.after(node, |_| stores * result);
        match node.op {
            Op::Embed => Some(vec![result; self.rows_of(node.output)]),
            Op::Splice | Op::Gather | Op::Reshape => stores(0.0),
            Op::Write => self.after(node, |_| state),
            // As if the weights of columns were alike.
            Op::Scale { .. } | Op::ScaleColumns => stores(SCALE_STORES),
            Op::Norm { .. } | Op::LayerNorm { .. } => {
                let own = NORM_STORES * result + NORM_PART * self.columns(node.output) * term;
                self.norm_of_heads(node, own).or_else(|| self.after(node, |_| own))
            }
            Op::Rope { pairing: _, factor } => {
                // Sines and cosines are rounded before and after they are multiplied by the factor.
                let scaled = if factor.is_some() { 2.0 * term } else { 0.0 };
                let angle = |row| ANGLE_SQUARES * self.turn_squares(node, row) * 2.0 * term;
                self.after(node, |row| ROPE_STORES * result + scaled + angle(row))
            }
            Op::MatchRms { least: _ } => self.match_rms(node),
            Op::Sparsify { deviations } => self.sparsify(node, f64::from(deviations)),
            Op::MixHeads => self.mix_heads(node),
            Op::Softcap { .. } => stores(CAP_STORES),
            // It turns a row, as RoPE does; a stage rounds each number once.
            Op::Hadamard { size } => {
                let own = f64::from(size.ilog2() + HADAMARD_ROUNDINGS) * term;
                self.after(node, |_| own)
            }
            Op::Clamp { .. } => self.resized(node, 0.0),
            Op::ShiftColumns => self.resized(node, result),
            Op::Activate { act } => self.activate(node, square_gain(act)),
            Op::Xielu { .. } => self.activate(node, SQUARE_GAIN),
            // As if the limit cut little of a row.
            Op::Gate { act, limit: _, offset: _ } | Op::GateHeads { act } => self.gate(node, act),
            Op::Add => self.add(node),
            Op::Linear | Op::LinearHeads => self.linear(node),
            Op::Concat => self.concat(node),
            Op::ShortConv => self.short_conv(node),
            Op::SsmScan { least, most } => self.ssm_scan(node, least, most),
            Op::DeltaRule { sharing } => self.delta_rule(node, sharing),
            Op::Route { score, used, normalized, groups, factor, near } => {
                self.route(node, Router { score, used, normalized, groups, factor, near })
            }
            Op::Experts { used, act, limit: _, offset: _, weighed } => {
                self.experts(node, f64::from(used), act, weighed)
            }
            Op::Temper { .. } => stores(SCALE_STORES),
            Op::Attend { scale, span, softcap } => self.attend(node, scale, span, softcap),
            Op::SelectKeys { best: _ } => Some(vec![0.0; self.rows_of(node.output)]),
            Op::AttendLatent { scale, span, values } => {
                let (&[q, latents, ref selected @ ..], values) = (&node.inputs[..], values as usize) else {
                    return None;
                };
                let choices = match selected.first() {
                    None => None,
                    Some(selected) => Some(self.choices(*selected)?),
                };
                let rule = (scale, span, None);
                self.attend_to([q, latents, latents], None, rule, values, choices.as_deref())
            }
            Op::Pool { how } => self.pool(node, how),
        }
    }

    /// The largest errors of a node's operands, and its own.
    fn counted(&self, node: &Node, rows: usize, own: f64) -> Vec<f64> {
        let operands = || node.inputs.iter().filter_map(|id| self.of(*id));
        let largest = |row| {
            let of_row = operands().map(|errors| match errors.get(row) {
                Some(error) if errors.len() == rows => *error,
                _ => errors.iter().copied().fold(0.0, f64::max),
            });
            of_row.fold(0.0, f64::max)
        };
        (0..rows).map(|row| largest(row) + own).collect()
    }

    /// The number of rows that a value has in this run.
    fn rows_of(&self, id: ValueId) -> usize {
        match self.graph().value(id).outermost {
            Extent::Sequences => self.run.sequences.len(),
            _ => self.run.sequences.last().map_or(0, |sequence| sequence.end),
        }
    }

    /// The position of a row in its sequence.
    fn position(&self, row: usize) -> usize {
        let sequence = self.run.sequences.iter().find(|rows| rows.contains(&row));
        sequence.map_or(row, |rows| row - rows.start)
    }

    /// The square of the position by which a rotation turns a row: that of the row, or the sum of the squares of those
    /// that a step brings.
    fn turn_squares(&self, node: &Node, row: usize) -> f64 {
        let given = node.inputs.get(2).and_then(|id| {
            let square = self.squares[id.0 as usize].get(row)?;
            Some(square * self.graph().value(*id).shape.columns() as f64)
        });
        given.unwrap_or_else(|| (self.position(row) as f64).powi(2))
    }

    fn graph(&self) -> &Graph {
        self.run.graph
    }

    fn pool(&self, node: &Node, how: Pooling) -> Option<Vec<f64>> {
        let errors = self.of(node.inputs[0])?;
        let sequences = self.run.sequences.iter();
        match how {
            Pooling::First => sequences.map(|rows| errors.get(rows.start).copied()).collect(),
            Pooling::Last => sequences.map(|rows| errors.get(rows.end.checked_sub(1)?).copied()).collect(),
            Pooling::Mean => {
                let (read, made) = (self.sizes(node.inputs[0])?, self.sizes(node.output)?);
                let means = sequences.zip(made).map(|(rows, made)| {
                    let count = rows.len() as f64;
                    let own = count * self.one.term;
                    let noise = rows.clone().map(|row| (errors[row] + own) * read[row]).sum::<f64>();
                    ratio(noise / count, *made) + self.one.result
                });
                Some(means.collect())
            }
        }
    }

    /// The errors of the operand, times `gain`, and those of an activation.
    fn activate(&self, node: &Node, gain: f64) -> Option<Vec<f64>> {
        let own = self.one.result + EXPONENTIAL_ROUNDINGS * self.one.term;
        Some(self.of(node.inputs[0])?.iter().map(|error| gain * error + own).collect())
    }

    /// The errors of the operand, relative to the result, plus `own`. Bounds make no error larger, and subtracting a constant
    /// changes none; but the row itself becomes smaller or larger.
    fn resized(&self, node: &Node, own: f64) -> Option<Vec<f64>> {
        let (errors, read, made) =
            (self.of(node.inputs[0])?, self.sizes(node.inputs[0])?, self.sizes(node.output)?);
        let rows = errors.iter().zip(read).zip(made);
        Some(rows.map(|((error, read), made)| ratio(error * read, *made) + own).collect())
    }

    /// The errors of the first operand, plus those that `own` returns for each row.
    fn after(&self, node: &Node, own: impl Fn(usize) -> f64) -> Option<Vec<f64>> {
        let errors = self.of(node.inputs[0])?.iter().enumerate();
        Some(errors.map(|(row, error)| error + own(row)).collect())
    }

    /// A norm of each head: a head that is smaller than its row has larger relative errors, if those of the row lie
    /// evenly on all heads.
    fn norm_of_heads(&self, node: &Node, own: f64) -> Option<Vec<f64>> {
        let x = self.rows(node.inputs[0])?;
        let of_head = |row: usize, head: usize| {
            let part = x.part(row, head);
            ratio(part.noise, mean_square(part.numbers.iter().copied())).min(1.0)
        };
        let of_row = |row| (0..x.heads).map(|head| of_head(row, head)).sum::<f64>() / x.heads as f64 + own;
        Some((0..x.errors.len()).map(of_row).collect())
    }

    fn add(&self, node: &Node) -> Option<Vec<f64>> {
        let (a, b, sums) = (node.inputs[0], node.inputs[1], self.sizes(node.output)?);
        let noise =
            |id: ValueId| Some(self.of(id)?.iter().zip(self.sizes(id)?).map(|(error, size)| error * size));
        let rows = noise(a)?.zip(noise(b)?).zip(sums);
        Some(rows.map(|((a, b), sum)| ratio(a + b, *sum) + self.one.result).collect())
    }

    fn match_rms(&self, node: &Node) -> Option<Vec<f64>> {
        let own =
            MATCH_STORES * self.one.result + 2.0 * NORM_PART * self.columns(node.output) * self.one.term;
        let rows = self.of(node.inputs[0])?.iter().zip(self.of(node.inputs[1])?);
        Some(rows.map(|(x, like)| x + like + own).collect())
    }

    fn sparsify(&self, node: &Node, deviations: f64) -> Option<Vec<f64>> {
        let RoundingErrors { term, result, .. } = self.one;
        let (errors, read, made) =
            (self.of(node.inputs[0])?, self.sizes(node.inputs[0])?, self.sizes(node.output)?);
        let (data, width) = (self.read[node.output.0 as usize], self.columns(node.output));
        let rows = data.chunks_exact(width as usize);
        let cutoff = CUTOFF_STORES * result + NORM_PART * width * term;
        let noise = |((row, error), size): ((&[f32], &f64), &f64)| {
            sparse::noise(row, *error, *size, deviations, cutoff)
        };
        let noise = (rows.len() == errors.len()).then(|| rows.zip(errors).zip(read).map(noise))?;
        Some(noise.zip(made).map(|(noise, made)| ratio(noise, *made) + result).collect())
    }

    fn mix_heads(&self, node: &Node) -> Option<Vec<f64>> {
        let RoundingErrors { term, result, .. } = self.one;
        let (x, made) = (self.rows(node.inputs[1])?, self.sizes(node.output)?);
        let (weights, errors) = (self.read[node.inputs[0].0 as usize], self.of(node.inputs[0])?);
        let (sizes, own) = (self.sizes(node.inputs[0])?, result + x.heads as f64 * term);
        let weights = weights.chunks_exact(x.heads);
        let rows = (weights.len() == errors.len()).then(|| weights.zip(errors).zip(sizes).enumerate())?;
        let noise = rows.map(|(row, ((weights, error), size))| {
            sparse::noise_of_heads(weights, error * size, own, |head| x.part(row, head))
        });
        Some(noise.zip(made).map(|(noise, made)| ratio(noise, *made) + result).collect())
    }

    /// The noise of both parts.
    fn concat(&self, node: &Node) -> Option<Vec<f64>> {
        let made = self.sizes(node.output)?;
        let noise = |id: ValueId| {
            let share = self.columns(id) / self.columns(node.output);
            Some(self.of(id)?.iter().zip(self.sizes(id)?).map(move |(error, size)| share * error * size))
        };
        let rows = noise(node.inputs[0])?.zip(noise(node.inputs[1])?).zip(made);
        Some(rows.map(|((a, b), made)| ratio(a + b, *made)).collect())
    }

    fn linear(&self, node: &Node) -> Option<Vec<f64>> {
        let weights = self.graph().value(node.inputs[1]);
        let columns = weights.shape.columns() as f64;
        let gain = columns * self.run.weight_squares.get(&weights.name)?;
        let terms = columns * self.one.term;
        // Weights finer than bf16 are rounded too.
        let count = if weights.dtype == DType::BF16 { 1.0 } else { 2.0 };
        let rows = self.of(node.inputs[0])?.iter().zip(self.sizes(node.inputs[0])?);
        let rows = rows.zip(self.sizes(node.output)?);
        let noise = |error: f64, x: f64, y: f64| error * gain * x + terms * (gain * x).max(y);
        Some(rows.map(|((error, x), y)| ratio(noise(*error, *x, *y), *y) + count * self.one.result).collect())
    }

    /// As [`Analysis::linear`], with as many terms as there are taps. A row reads those before it,
    /// with their errors.
    fn short_conv(&self, node: &Node) -> Option<Vec<f64>> {
        let taps = self.graph().value(node.inputs[1]).shape.rows();
        let (errors, read, made) =
            (self.of(node.inputs[0])?, self.sizes(node.inputs[0])?, self.sizes(node.output)?);
        // The sizes of the rows that each row reads, and their noise.
        let seen = (0..read.len()).map(|row| {
            let rows = (row + 1).saturating_sub(taps)..row + 1;
            let noise = rows.clone().map(|row| errors[row] * read[row]).sum::<f64>();
            (rows.map(|row| read[row]).sum::<f64>(), noise)
        });
        let seen: Vec<(f64, f64)> = seen.collect();
        let gains = || seen.iter().zip(made).filter(|((x, _), _)| *x > 0.0).map(|((x, _), y)| y / x);
        let typical = gains().sum::<f64>() / gains().count().max(1) as f64;
        let terms = taps as f64 * self.one.term;
        let rows = seen.iter().zip(made).map(|((x, noise), y)| {
            let gain = if *x > 0.0 { typical.max(y / x) } else { 0.0 };
            ratio((noise + terms * x) * gain, *y) + 2.0 * self.one.result
        });
        Some(rows.collect())
    }

    /// The errors of the operands of a delta rule, through the matrices that its sequences carry.
    fn delta_rule(&self, node: &Node, sharing: HeadSharing) -> Option<Vec<f64>> {
        let [q, k, v, beta, dt, a, carried] = node.inputs[..] else { return None };
        let a = self.run.vectors?.get(&self.graph().value(a).name)?;
        let &[_, channels, columns] = self.graph().value(carried).shape.extents() else { return None };
        let mut operands = Vec::with_capacity(5);
        for id in [q, k, v, beta, dt] {
            let (data, errors, sizes) = (self.read[id.0 as usize], self.of(id)?, self.sizes(id)?);
            let stride = self.graph().value(id).shape.stride();
            let operand = NoisyRows { data, errors, sizes, stride };
            (data.len() == errors.len() * stride).then(|| operands.push(operand))?;
        }
        let rule = NoisyRule { sharing, a, operands, channels, columns };
        let sums = self.run.sequences.iter().flat_map(|sequence| rule.sums(sequence.clone(), self.one.term));
        Some(sums.map(|(noise, size)| ratio(noise, size) + self.one.result).collect())
    }

    fn route(&mut self, node: &Node, router: Router) -> Option<Vec<f64>> {
        let RoundingErrors { term, result, largest, change, .. } = self.one;
        let (scores, experts) = (self.read[node.inputs[0].0 as usize], self.columns(node.output) as usize);
        let (errors, sizes) = (self.of(node.inputs[0])?, self.sizes(node.inputs[0])?);
        let bias = match node.inputs.get(1) {
            None => None,
            Some(bias) => Some(self.run.vectors?.get(&self.graph().value(*bias).name)?.as_slice()),
        };
        if scores.len() != errors.len() * experts {
            return None;
        }
        let (mut all, mut uncertain_rows) = (Vec::new(), 0);
        for ((scores, error), size) in scores.chunks_exact(experts).zip(errors).zip(sizes) {
            let (of_score, others) = (error * size, self.others[node.inputs[0].0 as usize] * size);
            let uncertain = router.uncertain(scores, bias, largest * (of_score + others).sqrt());
            let weights = router.weights(scores, bias);
            let square = |index: &usize| f64::from(weights[*index]).powi(2);
            let changed: f64 = uncertain.iter().map(square).sum();
            let total: f64 = (0..experts).map(|index| square(&index)).sum();
            uncertain_rows += usize::from(!uncertain.is_empty());
            let own = 2.0 * result + EXPONENTIAL_ROUNDINGS * term;
            all.push(4.0 * of_score + 2.0 * change * ratio(changed, total) + own);
        }
        self.uncertain_choices += uncertain_rows;
        Some(all)
    }

    fn experts(&self, node: &Node, used: f64, act: Act, weighed: Weighed) -> Option<Vec<f64>> {
        if derivative(act).is_some() {
            return None;
        }
        let RoundingErrors { term, result, .. } = self.one;
        let up = self.graph().value(node.inputs[2]);
        let (inputs, inner) = (up.shape.columns() as f64, up.shape.extents()[1] as f64);
        let (x, weights) = (self.of(node.inputs[0])?, self.of(node.inputs[1])?);
        let made = self.sizes(node.output)?;
        let typical = made.iter().sum::<f64>() / made.len().max(1) as f64;
        // Weights finer than bf16 are rounded too.
        let stores = if up.dtype == DType::BF16 { 1.0 } else { 2.0 };
        let of_sum = |terms: f64| stores * result + terms * term;
        let gate = GATE_STORES * result + EXPONENTIAL_ROUNDINGS * term;
        // The product with the weight, and the sum after each expert.
        let sum = (1.0 + used) * (result + term);
        let is_gated =
            matches!(node.op.applied_to(&node.inputs), Some(AppliedOp::Experts { gate: Some(_), .. }));
        let operands = square_gain(act) + if is_gated { 1.0 } else { 0.0 };
        let rows = x.iter().zip(weights).zip(made).map(|((x, weight), made)| {
            // A weighed row has the weight's error and that of the product.
            let (of_x, of_result) = match weighed {
                Weighed::Results => (0.0, *weight),
                Weighed::Inputs => (weight + result + term, 0.0),
            };
            let inner_row = operands * (x + of_x + of_sum(inputs)) + gate;
            ratio((inner_row + of_sum(inner) + of_result + sum) * made.max(typical), *made)
        });
        Some(rows.collect())
    }

    /// Relative errors of the activation and of the gated elements or heads add up.
    fn gate(&self, node: &Node, act: Act) -> Option<Vec<f64>> {
        let (gates, x) = (self.of(node.inputs[0])?, self.of(node.inputs[1])?);
        let own = GATE_STORES * self.one.result + EXPONENTIAL_ROUNDINGS * self.one.term;
        let read = self.read[node.inputs[0].0 as usize];
        let width = self.graph().value(node.inputs[0]).shape.stride();
        let gain = |row: usize| match derivative(act) {
            None => Some(square_gain(act)),
            Some(derivative) => Some(gain_of_row(act, derivative, read.get(row * width..(row + 1) * width)?)),
        };
        let rows = gates.iter().zip(x).enumerate();
        rows.map(|(row, (gate, x))| Some(gain(row)? * gate + x + own)).collect()
    }

    fn attend(&self, node: &Node, scale: f32, span: Span, cap: Option<f32>) -> Option<Vec<f64>> {
        let [q, keys, values, ref sinks @ ..] = node.inputs[..] else { return None };
        let sinks = match sinks.first() {
            None => None,
            Some(sinks) => Some(self.run.vectors?.get(&self.graph().value(*sinks).name)?.as_slice()),
        };
        self.attend_to([q, keys, values], sinks, (scale, span, cap), self.columns(values) as usize, None)
    }

    /// The errors of attention whose values are the first `size` numbers of each head of the last operand.
    fn attend_to(
        &self,
        [q, keys, values]: [ValueId; 3],
        sinks: Option<&[f32]>,
        (scale, span, cap): (f32, Span, Option<f32>),
        value_size: usize,
        choices: Option<&[Vec<PositionChoice>]>,
    ) -> Option<Vec<f64>> {
        let [q, keys, values] = [self.rows(q)?, self.rows(keys)?, self.rows(values)?];
        let (scale, cap) = (f64::from(scale), cap.map(f64::from));
        let group = (q.heads / keys.heads).max(1);
        let rows =
            self.run.sequences.iter().flat_map(|sequence| sequence.clone().map(move |row| (row, sequence)));
        let errors = rows.map(|(row, sequence)| {
            let mutual = self.run.spans.iter().find(|rows| span != Span::Past && rows.contains(&row));
            let first = sequence.start + span.first(row - sequence.start);
            let first = mutual.map_or(first, |mutual| first.min(mutual.start));
            let end =
                if span == Span::All { sequence.end } else { mutual.map_or(row + 1, |mutual| mutual.end) };
            let (mut noise, mut size) = (0.0, 0.0);
            for head in 0..q.heads {
                let choices = choices.map(|choices| choices[row].as_slice());
                let of_key =
                    |key: usize| choices.map_or(PositionChoice::Read, |choices| choices[key - first]);
                let read = (first..end).map(|key| {
                    let parts =
                        (keys.part(key, head / group), values.part(key, head / group).first(value_size));
                    (parts, of_key(key))
                });
                let read = read.filter(|(_, choice)| *choice != PositionChoice::Unread);
                let sink = sinks.map(|sinks| f64::from(sinks[head]));
                let (q, (read, choices)) = (q.part(row, head), read.unzip());
                let head = AttendingHead { one: self.one, scale, cap, sink, q, read, choices };
                let (of_noise, of_size) = head.noise_and_size();
                noise += of_noise;
                size += of_size;
            }
            ratio(noise, size)
        });
        Some(errors.collect())
    }

    /// What each row reads of the positions up to its own, by a selection of this name.
    fn choices(&mut self, selected: ValueId) -> Option<Vec<Vec<PositionChoice>>> {
        let node = self.graph().nodes.iter().find(|node| node.output == selected)?;
        let (Op::SelectKeys { best }, &[q, weights, keys]) = (node.op, &node.inputs[..]) else { return None };
        let widened = |id: ValueId| {
            let others = self.others[id.0 as usize];
            Some(self.of(id)?.iter().map(|error| error + others).collect::<Vec<f64>>())
        };
        let errors = [widened(q)?, widened(weights)?, widened(keys)?];
        let (data, sizes) = (self.read[weights.0 as usize], self.sizes(weights)?);
        let (q, keys) = (self.rows(q)?, self.rows(keys)?);
        let heads = q.heads;
        if data.len() != errors[1].len() * heads {
            return None;
        }
        let weights = Rows { data, heads, width: 1, errors: &errors[1], sizes };
        let [q, keys] = [(q, &errors[0]), (keys, &errors[2])].map(|(rows, errors)| Rows { errors, ..rows });
        let of_row = |row: usize, first: usize| {
            let scores =
                (first..row + 1).map(|key| selection::score(&q, &weights, &keys, [row, key], self.one));
            selection::choices(&scores.collect::<Vec<_>>(), best as usize)
        };
        let sequences = self.run.sequences.iter();
        let choices: Vec<Vec<PositionChoice>> = sequences
            .flat_map(|sequence| sequence.clone().map(|row| of_row(row, sequence.start)).collect::<Vec<_>>())
            .collect();
        let is_uncertain = |row: &&Vec<PositionChoice>| row.iter().any(|choice| choice.is_uncertain());
        self.uncertain_choices += choices.iter().filter(is_uncertain).count();
        Some(choices)
    }

    /// The rows of an operand of attention.
    fn rows(&self, id: ValueId) -> Option<Rows<'_>> {
        let data = self.read[id.0 as usize];
        let &[_, heads, width] = self.graph().value(id).shape.extents() else { return None };
        let (errors, sizes) = (self.of(id)?, self.sizes(id)?);
        let is_whole = data.len() == errors.len() * heads * width;
        is_whole.then_some(Rows { data, heads, width, errors, sizes })
    }

    /// The innermost extent of a value.
    fn columns(&self, id: ValueId) -> f64 {
        self.graph().value(id).shape.columns() as f64
    }

    /// Gives a result that no backend reports the sizes and rows of its operand.
    fn same_sizes(&mut self, node: &Node) {
        let (from, to) = (node.inputs[0].0 as usize, node.output.0 as usize);
        if self.squares[to].is_empty() {
            self.squares[to] = self.squares[from].clone();
            self.read[to] = self.read[from];
        }
    }

    fn ssm_scan(&self, node: &Node, least: f32, most: Option<f32>) -> Option<Vec<f64>> {
        let [x, dt, b, c, a, d, bias, _] = node.inputs[..] else { return None };
        let vector = |id: ValueId| Some(self.run.vectors?.get(&self.graph().value(id).name)?.as_slice());
        let [x, b, c] = [self.rows(x)?, self.rows(b)?, self.rows(c)?];
        // One number is a head of `dt`.
        let data = self.read[dt.0 as usize];
        let (errors, sizes) = (self.of(dt)?, self.sizes(dt)?);
        let dt = Rows { data, heads: x.heads, width: 1, errors, sizes };
        let scan = FollowedScan {
            one: self.one,
            limits: (least, most),
            vectors: [vector(a)?, vector(d)?, vector(bias)?],
            rows: [x, dt, b, c],
        };
        let noise = scan.noise(&self.run.sequences);
        let rows = noise.iter().zip(self.sizes(node.output)?);
        Some(rows.map(|(noise, size)| ratio(*noise, *size) + self.one.result).collect())
    }

    fn of(&self, id: ValueId) -> Option<&[f64]> {
        self.errors[id.0 as usize].as_deref()
    }

    fn sizes(&self, id: ValueId) -> Option<&[f64]> {
        let sizes = &self.squares[id.0 as usize];
        (sizes.len() == self.rows_of(id)).then_some(sizes)
    }
}
