//! The definition of attention: all scores of a row, one softmax, one sum.

use girih_tensor::reference;

use super::StateTensor;
use crate::Span;
use crate::backend::Lane;

/// How scores are made; the constants of [`Op::Attend`](crate::Op::Attend).
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
}

/// Attends with every head of every row of `q`, each within its lane.
pub(super) fn attend(
    q: &[f32],
    heads: usize,
    keys: &StateTensor,
    values: &StateTensor,
    lanes: &[Lane<'_>],
    scores: Scores,
) -> Vec<f32> {
    let rows: usize = lanes.iter().map(|lane| lane.rows.indexes().len()).sum();
    let size = q.len() / (rows * heads).max(1);
    let shared = heads * size / keys.inner;
    let value_size = values.inner * size / keys.inner;
    let mut out = Vec::with_capacity(rows * heads * value_size);
    for lane in lanes {
        for (row, position) in lane.rows.indexes().zip(lane.position as usize..) {
            for head in 0..heads {
                let q = &q[(row * heads + head) * size..][..size];
                let at = head / shared;
                let weights = weigh(q, at * size, keys, lane, position, scores);
                out.extend(blend(&weights, at * value_size, value_size, values, lane, position, scores.span));
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
    lane: &Lane<'_>,
    position: usize,
    how: Scores,
) -> Vec<f64> {
    let seen = lane.sees(how.span, position);
    let mut weights: Vec<f64> = seen
        .map(|seen| {
            let key = &keys.row(lane, seen)[at..at + q.len()];
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
    lane: &Lane<'_>,
    position: usize,
    span: Span,
) -> Vec<f32> {
    let mut sums = vec![0.0f64; size];
    for (weight, seen) in weights.iter().zip(lane.sees(span, position)) {
        let value = &values.row(lane, seen)[at..at + size];
        sums.iter_mut().zip(value).for_each(|(sum, &v)| *sum += weight * f64::from(v));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}
