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
//! - **Choice of experts.** An error `d` of all scores changes a probability by no more than `2d` of itself.
//!   Where two scores may change places within the largest error, a correct program may choose the other
//!   expert, whose result is unrelated: the weights that may go to others then count as errors, once
//!   for what is missing and once for what is there instead. Counted errors of the scores widen that
//!   largest error too. Reports have the number of such rows.
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
mod scan;

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
use scan::FollowedScan;

/// Stores of an embedding's scale: the factor and the product.
const SCALE_STORES: f64 = 2.0;

/// Stores of a norm: the quotient, and its product with the weight. Gemma stores only the latter.
const NORM_STORES: f64 = 2.0;

/// Stores of RoPE: the cosine or sine, the product, and the sum of two products.
const ROPE_STORES: f64 = 3.0;

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
                let angle = |row| ANGLE_SQUARES * (self.position(row) as f64).powi(2) * 2.0 * term;
                self.after(node, |row| ROPE_STORES * result + scaled + angle(row))
            }
            Op::Softcap { .. } => stores(CAP_STORES),
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
            Op::AttendLatent { scale, span, values } => {
                let (&[q, latents], values) = (&node.inputs[..], values as usize) else { return None };
                self.attend_to([q, latents, latents], None, (scale, span, None), values)
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
        self.attend_to([q, keys, values], sinks, (scale, span, cap), self.columns(values) as usize)
    }

    /// The errors of attention whose values are the first `size` numbers of each head of the last operand.
    fn attend_to(
        &self,
        [q, keys, values]: [ValueId; 3],
        sinks: Option<&[f32]>,
        (scale, span, cap): (f32, Span, Option<f32>),
        value_size: usize,
    ) -> Option<Vec<f64>> {
        let [q, keys, values] = [self.rows(q)?, self.rows(keys)?, self.rows(values)?];
        let (scale, cap) = (f64::from(scale), cap.map(f64::from));
        let group = (q.heads / keys.heads).max(1);
        let rows =
            self.run.sequences.iter().flat_map(|sequence| sequence.clone().map(move |row| (row, sequence)));
        let errors = rows.map(|(row, sequence)| {
            let first = sequence.start + span.first(row - sequence.start);
            let end = if span == Span::All { sequence.end } else { row + 1 };
            let (mut noise, mut size) = (0.0, 0.0);
            for head in 0..q.heads {
                let read = (first..end).map(|key| {
                    (keys.part(key, head / group), values.part(key, head / group).first(value_size))
                });
                let sink = sinks.map(|sinks| f64::from(sinks[head]));
                let (q, read) = (q.part(row, head), read.collect());
                let head = AttendingHead { one: self.one, scale, cap, sink, q, read };
                let (of_noise, of_size) = head.noise_and_size();
                noise += of_noise;
                size += of_size;
            }
            ratio(noise, size)
        });
        Some(errors.collect())
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

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use girih_graph::Watch as _;
    use girih_tensor::Shape;

    use super::attention::HeadPart;
    use super::*;

    /// One unit per stored result, and none of other kinds.
    const UNIT: RoundingErrors =
        RoundingErrors { term: 0.0, result: 1e-6, state: 0.0, largest: 7.0, change: 1.0 };

    /// The errors of a graph of two rows, in stores; the values are rows of two numbers. Weights have the
    /// mean square 0.5, so a sum of two products has the noise of its row. A node that is not followed
    /// counts three stores.
    fn errors(graph: &str, values: &[(&str, [f32; 4])]) -> RowErrors {
        let graph: Graph = graph.parse().expect("a graph");
        let weights = graph.weights().map(|(_, weight)| (weight.name.clone(), 0.5)).collect();
        let mut sizes = RowSizes::of(&graph, &weights, vec![Range { start: 0, end: 2 }]);
        for (name, rows) in values {
            assert!(sizes.wants(name));
            sizes.value(name, &Shape::matrix(2, 2), rows);
        }
        sizes.errors(UNIT, &vec![3.0 * UNIT.result; graph.nodes.len()], &vec![0.0; graph.values.len()])
    }

    fn stores(errors: &RowErrors, name: &str) -> [f64; 2] {
        [0, 1].map(|row| errors.of(name, row).expect("two rows") / UNIT.result)
    }

    fn assert_near(found: [f64; 2], want: [f64; 2]) {
        assert!(found.iter().zip(want).all(|(found, want)| (found - want).abs() <= 1e-3 * want), "{found:?}");
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
        let found = errors(LINEAR, &[("x", x), ("y", y), ("sum", [2.0, 2.0, 1.1, 1.1])]);
        assert_near(stores(&found, "y"), [2.0, 100.0 + 1.0]);
        // The noise of both operands, over the sum's square, and its own store.
        assert_near(stores(&found, "rows"), [(1.0 + 2.0) / 4.0 + 1.0, (1.0 + 1.01) / 1.21 + 1.0]);
        assert!(found.not_followed.is_empty(), "{:?}", found.not_followed);
    }

    #[test]
    fn a_residual_that_cancels_keeps_the_noise_of_its_operands() {
        let (x, y) = ([1.0; 4], [1.0, 1.0, -0.9, -0.9]);
        let found = errors(LINEAR, &[("x", x), ("y", y), ("sum", [2.0, 2.0, 0.1, 0.1])]);
        let [first, second] = stores(&found, "sum");
        assert!(first < 2.0 && second > 200.0, "{first} {second}");
    }

    /// Attention of two rows: queries, keys and values are the embedding's rows.
    fn attend(scale: &str, span: &str) -> String {
        format!(
            "\
graph rows 2 sequences 1 context 64 output_rows 2 -> hidden
input tokens: [rows 2] i32
weight table: [4, 2] bf16
x: [rows 2, 2] = embed tokens, table
heads: [rows 2, 1, 2] = reshape x
mixed: [rows 2, 1, 2] = attend(scale={scale} span={span}) heads, heads, heads
output rows: [output_rows 2, 1, 2] = gather mixed
"
        )
    }

    #[test]
    fn errors_of_scores_grow_with_the_scores() {
        let found = errors(&attend("0.5", "all"), &[("x", [1.0, -1.0, -1.0, 1.0])]);
        let [found, _] = stores(&found, "mixed");
        // Scores ±1: p is 0.881 and 0.119, the result 0.762 of a row, the distances of values from it
        // 0.238 and 1.762, and p times them 0.2100. A score has three stores, of key, sum and
        // product, each of the size 1. The query's matrix is 0.2100 · (0.238 + 1.762) in each of its four
        // elements, so the mean of its rows' squares is 2 · 0.42², and the scale halves it.
        let scores = 2.0 * 0.21f64.powi(2) * (0.5 + 2.0) + 0.5f64.powi(2) * 2.0 * 0.42f64.powi(2);
        let values = 2.0 * (0.881f64.powi(2) + 0.119f64.powi(2));
        let want = (scores + values) / 0.762f64.powi(2) + 1.0;
        assert!((found / want - 1.0).abs() < 0.01, "{found} {want}");
    }

    #[test]
    fn a_row_with_one_key_has_no_error_of_scores() {
        for (scale, span) in [("0.5", "full"), ("500.0", "full"), ("500.0", "window:1")] {
            let found = errors(&attend(scale, span), &[("x", [1.0, 2.0, -2.0, 1.0])]);
            // The value, the softmax and the result.
            let [first, second] = stores(&found, "mixed");
            assert!((first - 3.0).abs() < 1e-3, "{first}");
            assert!(span == "full" || (second - 3.0).abs() < 1e-3, "{second}");
        }
    }

    /// Two equal keys: an error of the query is common to both scores.
    #[test]
    fn an_error_common_to_all_scores_cancels() {
        let part = |numbers, error| HeadPart { numbers, error, noise: error };
        let head = |keys: [&'static [f32]; 2], error| {
            let values: [&[f32]; 2] = [&[1.0, 0.0], &[0.0, 1.0]];
            let read = [0, 1].map(|key| (part(keys[key], 0.0), part(values[key], 0.0))).to_vec();
            let one = RoundingErrors { term: 0.0, result: 0.0, state: 0.0, largest: 7.0, change: 1.0 };
            AttendingHead { one, scale: 1.0, cap: None, sink: None, q: part(&[1.0, 1.0], error), read }
                .noise_and_size()
        };
        assert_eq!(head([&[3.0, 4.0], &[3.0, 4.0]], 0.01), (0.0, 0.25));
        assert!(head([&[3.0, 4.0], &[4.0, 3.0]], 0.01).0 > 0.0);
        assert_eq!(head([&[3.0, 4.0], &[4.0, 3.0]], 0.0), (0.0, 0.25));
    }

    /// A key of the same probability as the sink: an error `d` of its score changes the result by `d/4` of the value.
    #[test]
    fn a_sink_takes_weight_from_keys() {
        let part = |numbers, noise| HeadPart { numbers, error: 0.0, noise };
        let head = |sink| {
            let one = RoundingErrors { term: 0.0, result: 0.0, state: 0.0, largest: 7.0, change: 1.0 };
            let read = vec![(part(&[3.0, 4.0], 0.0), part(&[1.0, 0.0], 0.0))];
            AttendingHead { one, scale: 1.0, cap: None, sink, q: part(&[1.0, 1.0], 0.01), read }
                .noise_and_size()
        };
        let (noise, size) = head(Some(7.0));
        let want = 0.5 * 0.25f64.powi(2) * 25.0 * 0.01;
        assert!((noise / want - 1.0).abs() < 1e-9 && (size - 0.125).abs() < 1e-9, "{noise} {want} {size}");
        assert_eq!(head(None), (0.0, 0.5));
    }

    /// Where all inputs are negative, sigmoid and softplus are near `e^x`, whose relative error is the input's absolute
    /// one.
    #[test]
    fn gates_of_negative_inputs_have_large_relative_errors() {
        for act in [Act::Sigmoid, Act::Softplus] {
            let gain = |row: &[f32]| gain_of_row(act, derivative(act).expect("it has one"), row);
            assert!((gain(&[-6.0; 4]) / 36.0 - 1.0).abs() < 0.01, "{act:?}: {}", gain(&[-6.0; 4]));
            assert!(gain(&[6.0; 4]) < 1.1, "{act:?}: {}", gain(&[6.0; 4]));
        }
    }

    /// The lead of an expert is a tenth; errors that are only counted may exceed it.
    #[test]
    fn counted_errors_of_scores_make_choices_uncertain() {
        let graph: Graph = "graph rows 2 sequences 1 context 64 output_rows 2 -> hidden\n\
            input tokens: [rows 2] i32\nweight table: [4, 2] bf16\nscores: [rows 2, 2] = embed tokens, table\n\
            weights: [rows 2, 2] = route(score=softmax used=1) scores\n\
            output rows: [output_rows 2, 2] = gather weights\n"
            .parse()
            .expect("a graph");
        let weights = HashMap::new();
        let mut sizes = RowSizes::of(&graph, &weights, vec![Range { start: 0, end: 2 }]);
        sizes.value("scores", &Shape::matrix(2, 2), &[1.0, 0.9, 1.0, -1.0]);
        sizes.value("weights", &Shape::matrix(2, 2), &[0.5, 0.0, 0.9, 0.0]);
        let uncertain = |others| {
            let others = vec![others; graph.values.len()];
            sizes.errors(UNIT, &vec![0.0; graph.nodes.len()], &others).uncertain_choices
        };
        assert_eq!([uncertain(0.0), uncertain(1e-4), uncertain(0.1)], [0, 1, 2]);
        assert_eq!(sizes.routed(), (4, 0));
    }

    /// The products of both rows add up, as those of trained weights do; errors do not.
    #[test]
    fn the_gain_of_a_row_is_not_that_of_its_errors() {
        let found = errors(LINEAR, &[("x", [1.0; 4]), ("y", [30.0; 4]), ("sum", [31.0; 4])]);
        assert_near(stores(&found, "y"), [1.0 + 1.0 / 900.0; 2]);
    }

    #[test]
    fn no_error_exceeds_its_row() {
        let x = [1.0; 4];
        let found = errors(LINEAR, &[("x", x), ("y", [0.0; 4]), ("sum", [0.0, 0.0, f32::NAN, 0.0])]);
        assert!([0, 1].iter().all(|row| found.of("rows", *row) == Some(1.0)));
        assert!(found.of("rows", 2).is_none() && found.of("other", 0).is_none());
    }

    /// The sum's size is not known: the larger error of its operands, and three stores.
    #[test]
    fn a_node_that_is_not_followed_is_counted_and_named() {
        let (x, y) = ([1.0; 4], [1.0, 1.0, 0.1, 0.1]);
        let found = errors(LINEAR, &[("x", x), ("y", y)]);
        assert_near(stores(&found, "rows"), [2.0 + 3.0, 101.0 + 3.0]);
        assert_eq!(found.not_followed, ["sum (add)"]);
    }

    /// The rows of two sequences, of one row each, and of one sequence of two rows that cancel.
    #[test]
    fn errors_of_pooled_rows_are_those_of_their_sequences() {
        let graph = |how: &str| -> Graph {
            let text = "graph rows 2 sequences 2 context 64 output_rows 1 -> pooled\n\
                input tokens: [rows 2] i32\nweight table: [4, 2] bf16\n\
                x: [rows 2, 2] = embed tokens, table\nscaled: [rows 2, 2] = scale(factor=2.0) x\n\
                sum: [rows 2, 2] = add x, scaled\noutput row: [sequences 2, 2] = pool(how=HOW) sum\n";
            text.replace("HOW", how).parse().expect("a graph")
        };
        let (one, first, second) =
            (UNIT.result, (1.0 + 3.0 * 4.0) / 9.0 + 1.0, (1.0 + 3.0 * 0.25) / 2.25 + 1.0);
        let weights = HashMap::new();
        let found = |how: &str, sequences: Vec<Range<usize>>, row: &[f32]| {
            let graph = graph(how);
            let mut sizes = RowSizes::of(&graph, &weights, sequences);
            for (name, rows) in
                [("x", [1.0; 4]), ("scaled", [2.0, 2.0, 0.5, 0.5]), ("sum", [3.0, 3.0, 1.5, 1.5])]
            {
                sizes.value(name, &Shape::matrix(2, 2), &rows);
            }
            sizes.value("row", &Shape::matrix(row.len() / 2, 2), row);
            let errors = sizes.errors(UNIT, &vec![0.0; graph.nodes.len()], &vec![0.0; graph.values.len()]);
            assert!(errors.not_followed.is_empty(), "{:?}", errors.not_followed);
            [0, 1].map(|row| errors.of("row", row).unwrap_or(0.0) / one)
        };
        let two = || vec![Range { start: 0, end: 1 }, Range { start: 1, end: 2 }];
        let all = || vec![Range { start: 0, end: 2 }];
        for how in ["first", "last"] {
            assert_near(found(how, two(), &[3.0, 3.0, 1.5, 1.5]), [first, second]);
        }
        assert_near(found("last", all(), &[1.5, 1.5]), [second, 0.0]);
        // The mean noise of both rows, over the square of the mean.
        let mean = (first * 9.0 + second * 2.25) / 2.0 / 0.25 + 1.0;
        assert_near(found("mean", all(), &[0.5, 0.5]), [mean, 0.0]);
    }
}
