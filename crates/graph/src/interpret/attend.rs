//! The definition of attention: all scores of a row, one softmax, one sum.

use std::borrow::Cow;
use std::ops::Range;

use girih_tensor::{Result, reference};

use crate::backend::Sequence;
use crate::constant::Span;
use crate::state::PositionMajor;

/// The constants of [`Op::Attend`](crate::Op::Attend).
#[derive(Clone, Copy)]
pub(super) struct ScoreRule {
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
}

/// The rows of keys or values, of `inner` numbers each: those of the state, or those of the step.
#[derive(Clone, Copy)]
pub(super) enum HeldRows<'a> {
    State { state: &'a PositionMajor, name: &'a str, inner: usize },
    Step { rows: &'a [f32], inner: usize },
}

/// Keys or values of consecutive positions.
struct SeenRows<'a> {
    rows: Cow<'a, [f32]>,
    /// The position of the first one.
    first: usize,
    inner: usize,
}

impl<'a> HeldRows<'a> {
    /// Numbers of one position.
    fn inner(self) -> usize {
        match self {
            HeldRows::State { inner, .. } | HeldRows::Step { inner, .. } => inner,
        }
    }

    /// The rows at some positions of a sequence.
    fn at(self, sequence: &Sequence<'_>, positions: Range<usize>) -> Result<SeenRows<'a>> {
        let (first, inner) = (positions.start, self.inner());
        let rows = match self {
            HeldRows::State { state, name, .. } => state.rows(name, sequence, positions)?.into(),
            HeldRows::Step { rows, .. } => {
                let row =
                    |position: usize| sequence.rows.start as usize + position - sequence.position as usize;
                rows[row(positions.start) * inner..row(positions.end) * inner].into()
            }
        };
        Ok(SeenRows { rows, first, inner })
    }
}

impl SeenRows<'_> {
    /// `size` numbers of one position, from number `at` on.
    fn part(&self, position: usize, at: usize, size: usize) -> &[f32] {
        &self.rows[(position - self.first) * self.inner + at..][..size]
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
) -> Result<Vec<f32>> {
    let rows: usize = sequences.iter().map(|sequence| sequence.rows.indexes().len()).sum();
    let size = q.len() / (rows * heads).max(1);
    let heads_per_kv_head = heads * size / keys.inner();
    let value_size = values.inner() * size / keys.inner();
    let mut out = Vec::with_capacity(rows * heads * value_size);
    for sequence in sequences {
        let all = seen_by_rows(sequence, rule.span);
        let (keys, values) = (keys.at(sequence, all.clone())?, values.at(sequence, all)?);
        for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
            let seen = sequence.sees(rule.span, position);
            for head in 0..heads {
                let q = &q[(row * heads + head) * size..][..size];
                let kv_head = head / heads_per_kv_head;
                let weights = softmax_weights(q, kv_head * size, &keys, seen.clone(), rule);
                out.extend(weighted_sum(&weights, kv_head * value_size, value_size, &values, seen.start));
            }
        }
    }
    Ok(out)
}

/// The positions that any row of a sequence attends to; they have no gap.
fn seen_by_rows(sequence: &Sequence<'_>, span: Span) -> Range<usize> {
    let first = sequence.position as usize;
    let positions = first..first + sequence.rows.indexes().len();
    let seen = positions.map(|position| sequence.sees(span, position));
    let all = seen.reduce(|all, seen| all.start.min(seen.start)..all.end.max(seen.end));
    all.unwrap_or(first..first)
}

/// The softmax weights of one head of one row, over the positions `seen`. The head's numbers
/// begin at `first` in each row of `keys`.
fn softmax_weights(
    q: &[f32],
    first: usize,
    keys: &SeenRows<'_>,
    seen: Range<usize>,
    rule: ScoreRule,
) -> Vec<f64> {
    let mut weights: Vec<f64> = seen
        .map(|position| {
            let score = f64::from(rule.scale) * reference::dot(q, keys.part(position, first, q.len())).sum;
            rule.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    reference::softmax(&mut weights);
    weights
}

/// The weighted sum of the values of one head, which begin at `first` in each row. The first
/// weight is that of the position `from`.
fn weighted_sum(
    weights: &[f64],
    first: usize,
    size: usize,
    values: &SeenRows<'_>,
    from: usize,
) -> impl Iterator<Item = f32> {
    let mut sums = vec![0.0f64; size];
    for (weight, position) in weights.iter().zip(from..) {
        let value = values.part(position, first, size);
        sums.iter_mut().zip(value).for_each(|(sum, &v)| *sum += weight * f64::from(v));
    }
    sums.into_iter().map(|sum| sum as f32)
}
