//! Dot products, of one row or of four at once.
//!
//! ```text
//! sums[l] += a[i] · b[i]   for i = l, l + 8, l + 16 …   in eight lanes l
//! result   = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
//! ```
//! Eight lanes are two SSE registers; four rows at once are eight chains of
//! additions, which hides their latency, and load `x` once for four rows. A
//! step of eight columns loads 10 registers for 16 operations of arithmetic.

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
    let mut rests = [x; QUAD];
    let mut chunks = [x.as_chunks::<LANES>().0; QUAD];
    for (index, row) in rows.chunks_exact(x.len().max(1)).enumerate() {
        (chunks[index], rests[index]) = row.as_chunks::<LANES>();
    }
    let mut sums = [[0.0; LANES]; QUAD];
    let (x, x_rest) = x.as_chunks::<LANES>();
    let [a, b, c, d] = chunks;
    for ((((x, a), b), c), d) in x.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, row) in sums.iter_mut().zip([a, b, c, d]) {
            accumulate(sums, row, x);
        }
    }
    std::array::from_fn(|index| finish(sums[index], rests[index], x_rest))
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
