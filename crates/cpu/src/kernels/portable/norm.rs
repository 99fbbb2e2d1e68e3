//! Normalisation of a row: by its root mean square, or by its mean and its variance.
//!
//! ```text
//! sums[l] += term(x[i])      for i = l, l + 32, l + 64 …   in 32 lanes l
//! sum      = halves of the sums added, halves of these, … down to one
//!
//! norm:        y[i] = (x[i] · (1 / √(sum of x² / n + epsilon))) · weight[i]
//! layer norm:  mean = sum of x / n
//!              d[i] = x[i] − mean
//!              y[i] = (d[i] · (1 / √(sum of d² / n + epsilon))) · weight[i] + bias[i]
//! ```
//! Nothing is fused: each multiplication and each addition is rounded, so every
//! table that compiles this code gets the same bits. 32 lanes are two vectors of
//! AVX-512, whose additions follow each other without waiting.
//!
//! Bytes: 12 a value, 16 with a bias; `x` is read again from L1.

/// Running sums of a row.
const LANES: usize = 32;

#[inline(always)] // Tables compile it with their own vector instructions.
pub(in super::super) fn norm(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    let mean = sum(x, |x| x * x) / x.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * weight;
    }
}

/// Distances from the mean are squared, so nothing cancels if the mean is large.
#[inline(always)] // As above.
pub(in super::super) fn layer_norm(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    epsilon: f32,
    y: &mut [f32],
) {
    let count = x.len() as f32;
    let mean = sum(x, |x| x) / count;
    let variance = sum(x, |x| (x - mean) * (x - mean)) / count;
    let scale = 1.0 / (variance + epsilon).sqrt();
    let scaled = y.iter_mut().zip(x).zip(weight);
    match bias {
        Some(bias) => {
            for (((y, x), weight), bias) in scaled.zip(bias) {
                *y = (x - mean) * scale * weight + bias;
            }
        }
        None => {
            for ((y, x), weight) in scaled {
                *y = (x - mean) * scale * weight;
            }
        }
    }
}

/// The sum of a term of each value of a row.
#[inline(always)]
fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (steps, rest) = x.as_chunks::<LANES>();
    for step in steps {
        add_terms(&mut sums, step, &term);
    }
    add_terms(&mut sums, rest, &term);
    let mut half = LANES / 2;
    while half > 0 {
        let (lower, upper) = sums.split_at_mut(half);
        lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
        half /= 2;
    }
    sums[0]
}

#[inline(always)]
fn add_terms(sums: &mut [f32; LANES], x: &[f32], term: impl Fn(f32) -> f32) {
    for (sum, x) in sums.iter_mut().zip(x) {
        *sum += term(*x);
    }
}
