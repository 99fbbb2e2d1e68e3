//! The ops that compute one row at a time.

use girih_tensor::{Result, reference};

use super::weights::WeightRows;
use crate::backend::{GivenRows, Sequence};
use crate::constant::{Act, Pairing, Pooling};

/// Looks up rows of a table, which is the weight `table`.
pub(super) fn embed(ids: &[u32], table: &str, weights: &dyn WeightRows) -> Result<Vec<f32>> {
    let mut rows = Vec::new();
    for &id in ids {
        rows.extend_from_slice(&weights.rows(table, id as usize..id as usize + 1)?);
    }
    Ok(rows)
}

pub(super) fn splice(x: &[f32], given: &[GivenRows<'_>], width: usize) -> Vec<f32> {
    let mut rows = x.to_vec();
    for GivenRows { first_row, values } in given {
        rows[*first_row as usize * width..][..values.len()].copy_from_slice(values);
    }
    rows
}

pub(super) fn norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let normed = x.chunks_exact(weight.len()).flat_map(|row| {
        let root = reference::root_mean_square(row, f64::from(epsilon));
        row.iter().zip(weight).map(move |(&x, &w)| (f64::from(x) / root * f64::from(w)) as f32)
    });
    normed.collect()
}

pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, epsilon: f32) -> Vec<f32> {
    let normed = x.chunks_exact(weight.len()).flat_map(|row| {
        let (mean, root) = reference::mean_and_deviation(row, f64::from(epsilon));
        row.iter().enumerate().map(move |(i, &x)| {
            let offset = bias.map_or(0.0, |bias| f64::from(bias[i]));
            ((f64::from(x) - mean) / root * f64::from(weight[i]) + offset) as f32
        })
    });
    normed.collect()
}

pub(super) fn linear(x: &[f32], weight: &[f32], bias: Option<&[f32]>, inputs: usize) -> Vec<f32> {
    let sums = x.chunks_exact(inputs).flat_map(|row| {
        weight.chunks_exact(inputs).enumerate().map(move |(output, weights)| {
            let offset = bias.map_or(0.0, |bias| f64::from(bias[output]));
            (reference::dot(row, weights).sum + offset) as f32
        })
    });
    sums.collect()
}

/// Rotates every head of every row; a row has `stride` numbers.
pub(super) fn rope(
    x: &[f32],
    frequencies: &[f32],
    pairing: Pairing,
    sequences: &[Sequence<'_>],
    stride: usize,
) -> Vec<f32> {
    let mut rotated = x.to_vec();
    for sequence in sequences {
        for (row, position) in sequence.rows.indexes().zip(sequence.position..) {
            for head in rotated[row * stride..(row + 1) * stride].chunks_exact_mut(2 * frequencies.len()) {
                rotate(head, frequencies, pairing, position);
            }
        }
    }
    rotated
}

/// Rotates one head. The angle is rounded to `f32` before its sine and cosine
/// are computed, because models were trained with that number.
fn rotate(head: &mut [f32], frequencies: &[f32], pairing: Pairing, position: u32) {
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = match pairing {
            Pairing::Halves => (i, i + frequencies.len()),
            Pairing::Neighbours => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        head[a] = (x * cos - y * sin) as f32;
        head[b] = (x * sin + y * cos) as f32;
    }
}

pub(super) fn gather(x: &[f32], stride: usize, sequences: &[Sequence<'_>]) -> Vec<f32> {
    let rows = sequences.iter().flat_map(Sequence::output_rows);
    rows.flat_map(|row| &x[row * stride..(row + 1) * stride]).copied().collect()
}

pub(super) fn pool(x: &[f32], stride: usize, how: Pooling, sequences: &[Sequence<'_>]) -> Vec<f32> {
    let row = |index: usize| x[index * stride..(index + 1) * stride].iter().copied();
    let pooled = sequences.iter().flat_map(|sequence| {
        let rows = sequence.rows.indexes();
        match how {
            Pooling::First => row(rows.start).collect::<Vec<f32>>(),
            Pooling::Last => row(rows.end - 1).collect(),
            Pooling::Mean => {
                let count = rows.len() as f64;
                let sum =
                    |column: usize| rows.clone().map(|row| f64::from(x[row * stride + column])).sum::<f64>();
                (0..stride).map(|column| (sum(column) / count) as f32).collect()
            }
        }
    });
    pooled.collect()
}

/// One row of `width` columns: the sum over the rows seen, each times its tap.
pub(super) fn convolved(seen: &[f32], taps: &[f32], width: usize) -> impl Iterator<Item = f32> {
    (0..width).map(move |column| {
        let of_column = |rows: &'_ [f32]| rows[column..].iter().step_by(width).copied().collect::<Vec<f32>>();
        reference::dot(&of_column(seen), &of_column(taps)).sum as f32
    })
}

pub(super) fn pairwise(a: &[f32], b: &[f32], f: impl Fn(f64, f64) -> f64) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| f(f64::from(a), f64::from(b)) as f32).collect()
}

pub(super) fn each(x: &[f32], f: impl Fn(f64) -> f64) -> Vec<f32> {
    x.iter().map(|&x| f(f64::from(x)) as f32).collect()
}

pub(super) fn act(act: Act, x: f64) -> f64 {
    match act {
        Act::Silu => x / (1.0 + (-x).exp()),
        Act::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Act::Gelu => 0.5 * x * (1.0 + reference::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Act::Identity => x,
    }
}
