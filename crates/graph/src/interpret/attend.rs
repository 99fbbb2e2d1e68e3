//! The definition of attention: all scores of a row, one softmax, one sum.

use girih_tensor::reference;

use super::StateTensor;
use crate::Span;
use crate::backend::Sequence;

/// How scores are made; the constants of [`Op::Attend`](crate::Op::Attend).
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
}

/// Attends with every head of every row of `q`, each within its sequence.
pub(super) fn attend(
    q: &[f32],
    heads: usize,
    keys: &StateTensor,
    values: &StateTensor,
    sequences: &[Sequence<'_>],
    scores: Scores,
) -> Vec<f32> {
    let rows: usize = sequences.iter().map(|sequence| sequence.rows.indexes().len()).sum();
    let size = q.len() / (rows * heads).max(1);
    let shared = heads * size / keys.inner;
    let value_size = values.inner * size / keys.inner;
    let mut out = Vec::with_capacity(rows * heads * value_size);
    for sequence in sequences {
        for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
            for head in 0..heads {
                let q = &q[(row * heads + head) * size..][..size];
                let at = head / shared;
                let weights = weigh(q, at * size, keys, sequence, position, scores);
                out.extend(blend(
                    &weights,
                    at * value_size,
                    value_size,
                    values,
                    sequence,
                    position,
                    scores.span,
                ));
            }
        }
    }
    out
}

/// The softmax weights of one head of one row, over the positions it sees.
fn weigh(
    q: &[f32],
    at: usize,
    keys: &StateTensor,
    sequence: &Sequence<'_>,
    position: usize,
    how: Scores,
) -> Vec<f64> {
    let seen = sequence.sees(how.span, position);
    let mut weights: Vec<f64> = seen
        .map(|seen| {
            let key = &keys.row(sequence, seen)[at..at + q.len()];
            let score = f64::from(how.scale) * reference::dot(q, key).sum;
            how.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    reference::softmax(&mut weights);
    weights
}

/// The weighted sum of the values of one head.
fn blend(
    weights: &[f64],
    at: usize,
    size: usize,
    values: &StateTensor,
    sequence: &Sequence<'_>,
    position: usize,
    span: Span,
) -> Vec<f32> {
    let mut sums = vec![0.0f64; size];
    for (weight, seen) in weights.iter().zip(sequence.sees(span, position)) {
        let value = &values.row(sequence, seen)[at..at + size];
        sums.iter_mut().zip(value).for_each(|(sum, &v)| *sum += weight * f64::from(v));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}
