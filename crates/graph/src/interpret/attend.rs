//! The definition of attention: all scores of a row, one softmax, one sum.

use girih_tensor::reference;

use super::state::StateValue;
use crate::backend::Sequence;
use crate::constant::Span;

/// The constants of [`Op::Attend`](crate::Op::Attend).
#[derive(Clone, Copy)]
pub(super) struct ScoreRule {
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
}

/// The rows of keys or values: those of the state, or those of the step.
#[derive(Clone, Copy)]
pub(super) enum HeldRows<'a> {
    State(&'a StateValue),
    Step {
        rows: &'a [f32],
        /// Numbers of one row.
        inner: usize,
    },
}

impl<'a> HeldRows<'a> {
    /// Numbers of one position.
    fn inner(self) -> usize {
        match self {
            HeldRows::State(state) => state.inner,
            HeldRows::Step { inner, .. } => inner,
        }
    }

    /// The row of a position of a sequence.
    fn row(self, sequence: &Sequence<'_>, position: usize) -> &'a [f32] {
        match self {
            HeldRows::State(state) => state.row(sequence, position),
            HeldRows::Step { rows, inner } => {
                let row = sequence.rows.start as usize + position - sequence.position as usize;
                &rows[row * inner..(row + 1) * inner]
            }
        }
    }
}

/// Computes attention for every head of every row of `q`, each within its own sequence.
pub(super) fn attend(
    q: &[f32],
    heads: usize,
    keys: HeldRows<'_>,
    values: HeldRows<'_>,
    sequences: &[Sequence<'_>],
    rule: ScoreRule,
) -> Vec<f32> {
    let rows: usize = sequences.iter().map(|sequence| sequence.rows.indexes().len()).sum();
    let size = q.len() / (rows * heads).max(1);
    let heads_per_kv_head = heads * size / keys.inner();
    let value_size = values.inner() * size / keys.inner();
    let mut out = Vec::with_capacity(rows * heads * value_size);
    for sequence in sequences {
        for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
            for head in 0..heads {
                let q = &q[(row * heads + head) * size..][..size];
                let kv_head = head / heads_per_kv_head;
                let weights = softmax_weights(q, kv_head * size, keys, sequence, position, rule);
                let first = kv_head * value_size;
                out.extend(weighted_sum(&weights, first, value_size, values, sequence, position, rule.span));
            }
        }
    }
    out
}

/// The softmax weights of one head of one row, over the positions that it
/// attends to. The head's numbers begin at `first` in each row of `keys`.
fn softmax_weights(
    q: &[f32],
    first: usize,
    keys: HeldRows<'_>,
    sequence: &Sequence<'_>,
    position: usize,
    rule: ScoreRule,
) -> Vec<f64> {
    let seen = sequence.sees(rule.span, position);
    let mut weights: Vec<f64> = seen
        .map(|seen| {
            let key = &keys.row(sequence, seen)[first..first + q.len()];
            let score = f64::from(rule.scale) * reference::dot(q, key).sum;
            rule.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    reference::softmax(&mut weights);
    weights
}

/// The weighted sum of the values of one head, which begin at `first` in each row.
fn weighted_sum(
    weights: &[f64],
    first: usize,
    size: usize,
    values: HeldRows<'_>,
    sequence: &Sequence<'_>,
    position: usize,
    span: Span,
) -> Vec<f32> {
    let mut sums = vec![0.0f64; size];
    for (weight, seen) in weights.iter().zip(sequence.sees(span, position)) {
        let value = &values.row(sequence, seen)[first..first + size];
        sums.iter_mut().zip(value).for_each(|(sum, &v)| *sum += weight * f64::from(v));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}
