//! Root-mean-square normalisation of a row.
//!
//! ```text
//! sums[l] += x[i] · x[i]     for i = l, l + 32, l + 64 …   in 32 lanes l
//! squares  = halves of the sums added, halves of these, … down to one
//! y[i]     = (x[i] · (1 / √(squares / n + epsilon))) · weight[i]
//! ```
//! Nothing is fused: each multiplication and each addition is rounded, so every
//! table that compiles this code gets the same bits. 32 lanes are two vectors of
//! AVX-512, whose additions follow each other without waiting.
//!
//! Bytes: 12 a value; the second read of `x` is from L1.

/// Running sums of a row's squares.
const LANES: usize = 32;

#[inline(always)] // Tables compile it with their own vector instructions.
pub(in super::super) fn norm(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    let mean = squares(x) / x.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * weight;
    }
}

/// The sum of the squares of a row.
#[inline(always)]
fn squares(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (steps, rest) = x.as_chunks::<LANES>();
    for step in steps {
        add_squares(&mut sums, step);
    }
    add_squares(&mut sums, rest);
    let mut half = LANES / 2;
    while half > 0 {
        let (lower, upper) = sums.split_at_mut(half);
        lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
        half /= 2;
    }
    sums[0]
}

#[inline(always)]
fn add_squares(sums: &mut [f32; LANES], x: &[f32]) {
    for (sum, x) in sums.iter_mut().zip(x) {
        *sum += x * x;
    }
}
