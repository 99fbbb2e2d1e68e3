//! Dot products, of one row or of four at once.
//!
//! ```text
//! sums[l] += a[i] · b[i]   for i = l, l + 8, l + 16 …   in eight lanes l
//! result   = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
//! ```
//! Eight lanes are two SSE registers; four rows at once are eight chains of
//! additions, which hides their latency, and load `x` once for four rows. A
//! step of eight columns loads 10 registers for 16 operations of arithmetic.

use std::array;

use super::QUAD;

/// Running sums of one dot product.
const LANES: usize = 8;

type Sums = [f32; LANES];

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot product of rows of equal length");
    let mut sums = [0.0; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        accumulate(&mut sums, a, b);
    }
    finish(sums, a_rest, b_rest)
}

pub(super) fn dots(rows: &[f32], x: &[f32]) -> [f32; QUAD] {
    assert_eq!(rows.len(), QUAD * x.len(), "four rows as long as the other operand");
    let rows: [&[f32]; QUAD] = array::from_fn(|row| &rows[row * x.len()..(row + 1) * x.len()]);
    let [(a, a_rest), (b, b_rest), (c, c_rest), (d, d_rest)] = rows.map(|row| row.as_chunks::<LANES>());
    let (x, x_rest) = x.as_chunks::<LANES>();
    let mut sums = [[0.0; LANES]; QUAD];
    for ((((x, a), b), c), d) in x.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, row) in sums.iter_mut().zip([a, b, c, d]) {
            accumulate(sums, row, x);
        }
    }
    let rests = [a_rest, b_rest, c_rest, d_rest];
    array::from_fn(|row| finish(sums[row], rests[row], x_rest))
}

#[inline(always)]
fn accumulate(sums: &mut Sums, a: &[f32; LANES], b: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += a[lane] * b[lane];
    }
}

/// Adds the columns beyond the last whole step, then the lanes.
#[inline(always)]
fn finish(mut sums: Sums, a: &[f32], b: &[f32]) -> f32 {
    for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
        *sum += a * b;
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
    ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}
