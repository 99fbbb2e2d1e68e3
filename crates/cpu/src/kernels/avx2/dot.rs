//! Dot products, of one row or of four at once.
//!
//! ```text
//! sums[v][l] = fma(a[i], b[i], sums[v][l])   for i = 8 v + l, 8 v + l + 16 …
//! result     = vectors added, then halves, then (l0 + l2) + (l1 + l3)
//! ```
//! Two vectors of eight lanes hold the sums of a row; a last, shorter step is
//! filled up with zeros, which change no sum.
//!
//! Four rows are eight chains; a processor that begins two FMAs a cycle, each
//! four cycles long, asks for eight. With one vector of `x` come one of each row
//! and four FMAs, 32 products: 2 cycles, or 2.5 where only two vectors are loaded a cycle.

use std::arch::x86_64::*;

use super::super::x86::add_lanes;
use super::{LANES, QUAD, load, load_part};

/// Vectors that hold the running sums of one row.
const VECTORS: usize = 2;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot product of rows of equal length");
    let [sums] = products([a], b);
    add_lanes([sums, _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()])[0]
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dots(rows: &[f32], x: &[f32]) -> [f32; QUAD] {
    assert_eq!(rows.len(), QUAD * x.len(), "four rows as long as the other operand");
    let (upper, lower) = rows.split_at(2 * x.len());
    let ((a, b), (c, d)) = (upper.split_at(x.len()), lower.split_at(x.len()));
    add_lanes(products([a, b, c, d], x))
}

/// The products of `x` with each row, added up to four lanes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn products<const ROWS: usize>(rows: [&[f32]; ROWS], x: &[f32]) -> [__m128; ROWS] {
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
    let (steps, x_rest) = x.as_chunks::<{ VECTORS * LANES }>();
    let rows = rows.map(|row| row.as_chunks::<{ VECTORS * LANES }>());
    for (step, x) in steps.iter().enumerate() {
        let x = x.as_chunks::<LANES>().0;
        for (sums, (row, _)) in sums.iter_mut().zip(rows) {
            let row = row[step].as_chunks::<LANES>().0;
            for ((sum, a), x) in sums.iter_mut().zip(row).zip(x) {
                *sum = _mm256_fmadd_ps(load(a), load(x), *sum);
            }
        }
    }
    if !x_rest.is_empty() {
        for (sums, (_, row)) in sums.iter_mut().zip(rows) {
            *sums = add_rest(*sums, row, x_rest);
        }
    }
    let mut folded = [_mm_setzero_ps(); ROWS];
    for (folded, sums) in folded.iter_mut().zip(sums) {
        *folded = fold(sums);
    }
    folded
}

/// Adds the products of a last step that is shorter than the others.
///
/// Apart, so that the sums of rows of whole steps never leave their registers.
#[target_feature(enable = "avx2,fma,f16c")]
#[cold]
fn add_rest(mut sums: [__m256; VECTORS], row: &[f32], x: &[f32]) -> [__m256; VECTORS] {
    for (sum, (a, x)) in sums.iter_mut().zip(row.chunks(LANES).zip(x.chunks(LANES))) {
        *sum = _mm256_fmadd_ps(load_part(a), load_part(x), *sum);
    }
    sums
}

/// Adds up a row's sums to four lanes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fold(sums: [__m256; VECTORS]) -> __m128 {
    let [a, b] = sums;
    let sums = _mm256_add_ps(a, b);
    _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums))
}
