//! Attention: all scores of a row, one softmax, one sum.

use std::borrow::Cow;
use std::ops::Range;

use girih_tensor::{Result, Shape, reference};

use crate::constant::Span;
use crate::selection::is_selected;
use crate::sequence::Sequence;
use crate::value::Value;
use crate::work::{NodeWork, Reads, WorkStep};

/// The same number of query heads for each KV head.
pub(super) fn fits(q: &Value, keys: &Value, values: &Value, sinks: Option<&Value>, y: &Value) -> bool {
    let (&[heads, size], &[kv_heads, key_size]) = (q.inner(), keys.inner()) else { return false };
    let &[value_heads, value_size] = values.inner() else { return false };
    kv_heads > 0
        && heads.is_multiple_of(kv_heads)
        && size == key_size
        && value_heads == kv_heads
        && y.has_rows_of(q)
        && y.inner() == [heads, value_size]
        && sinks.is_none_or(|sinks| sinks.is_vector(heads))
}

/// Two sums for each head of each row and each position that it reads. The softmax is not counted: it
/// has one number where a sum has those of a head.
#[allow(clippy::too_many_arguments, reason = "the constants and operands of the table")]
pub(super) fn work(
    _scale: f32,
    span: Span,
    _softcap: Option<f32>,
    q: Shape,
    _keys: Shape,
    values: Shape,
    sinks: Option<Shape>,
    step: WorkStep<'_>,
) -> NodeWork {
    let of_sinks = if sinks.is_some() { Reads::All } else { Reads::Nothing };
    let positions = step.positions(span);
    let results = q.extents()[1] * values.columns();
    NodeWork {
        multiply_adds: positions.by_row * (q.stride() + results) as u64,
        ..NodeWork::reading([Reads::All, Reads::Positions(positions), Reads::Positions(positions), of_sinks])
    }
}

/// The constants of attention, and the sink of each head.
#[derive(Clone, Copy)]
pub(crate) struct ScoreRule<'a> {
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
    pub sinks: Option<&'a [f32]>,
    /// The selection of each row, and its numbers.
    pub selected: Option<(&'a [f32], usize)>,
}

/// Returns the rows of a sequence at some positions.
pub(crate) type RowsAt<'a> = dyn Fn(&Sequence<'_>, Range<usize>) -> Result<Cow<'a, [f32]>> + 'a;

/// Keys or values, of `inner` numbers for each position.
#[derive(Clone, Copy)]
pub(crate) struct HeldRows<'a> {
    pub inner: usize,
    /// Returns those at some positions of a sequence.
    pub at: &'a RowsAt<'a>,
}

/// Keys or values of consecutive positions.
struct SeenRows<'a> {
    rows: Cow<'a, [f32]>,
    /// The position of the first one.
    first: usize,
    inner: usize,
}

impl<'a> HeldRows<'a> {
    /// The rows at some positions of a sequence.
    fn seen(self, sequence: &Sequence<'_>, positions: Range<usize>) -> Result<SeenRows<'a>> {
        let first = positions.start;
        Ok(SeenRows { rows: (self.at)(sequence, positions)?, first, inner: self.inner })
    }
}

impl SeenRows<'_> {
    /// `size` numbers of one position, from number `at` on.
    fn part(&self, position: usize, at: usize, size: usize) -> &[f32] {
        &self.rows[(position - self.first) * self.inner + at..][..size]
    }
}

/// Computes attention for every head of every row of `q`, each within its own sequence.
pub(crate) fn define(
    q: &[f32],
    heads: usize,
    keys: HeldRows<'_>,
    values: HeldRows<'_>,
    sequences: &[Sequence<'_>],
    rule: ScoreRule<'_>,
) -> Result<Vec<f32>> {
    let rows: usize = sequences.iter().map(|sequence| sequence.rows.indexes().len()).sum();
    let size = q.len() / (rows * heads).max(1);
    let heads_per_kv_head = heads * size / keys.inner;
    let value_size = values.inner * size / keys.inner;
    let mut out = Vec::with_capacity(rows * heads * value_size);
    for sequence in sequences {
        let all = seen_by_rows(sequence, rule.span);
        let (keys, values) = (keys.seen(sequence, all.clone())?, values.seen(sequence, all)?);
        for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
            let seen = sequence.sees(rule.span, position);
            let selected = rule.selected.map(|(all, numbers)| &all[row * numbers..][..numbers]);
            let reads = |position: usize| selected.is_none_or(|selected| is_selected(selected, position));
            for head in 0..heads {
                let q = &q[(row * heads + head) * size..][..size];
                let kv_head = head / heads_per_kv_head;
                let weights = softmax_weights(q, [head, kv_head * size], &keys, (seen.clone(), &reads), rule);
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

/// The softmax weights of one `head` of one row, over the positions `seen`, of which it may read some. The head's numbers
/// begin at `first` in each row of `keys`.
fn softmax_weights(
    q: &[f32],
    [head, first]: [usize; 2],
    keys: &SeenRows<'_>,
    (seen, reads): (Range<usize>, &dyn Fn(usize) -> bool),
    rule: ScoreRule<'_>,
) -> Vec<f64> {
    let mut weights: Vec<f64> = seen
        .map(|position| {
            if !reads(position) {
                return f64::NEG_INFINITY;
            }
            let score = f64::from(rule.scale) * reference::dot(q, keys.part(position, first, q.len())).sum;
            rule.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    let positions = weights.len();
    weights.extend(rule.sinks.map(|sinks| f64::from(sinks[head])));
    reference::softmax(&mut weights);
    weights.truncate(positions);
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
