//! The weighted sum of attention.
//!
//! ```text
//! for each 64 columns:   sums = fma(weights[i], values[i], sums)   for each row i
//! ```
//! The sums of 64 columns stay in eight registers while all rows pass, so a row
//! costs the loads of its values and no store.

use std::arch::x86_64::*;

use super::{LANES, load, load_part, store};

/// Vectors of sums that stay in registers.
const VECTORS: usize = 8;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn blend(weights: &[f32], values: &[f32], sums: &mut [f32]) {
    let width = sums.len();
    assert_eq!(values.len(), weights.len() * width, "one weight for each row");
    let (wide, rest) = sums.as_chunks_mut::<{ VECTORS * LANES }>();
    for (index, sums) in wide.iter_mut().enumerate() {
        columns::<VECTORS>(weights, values, index * VECTORS * LANES, width, sums.as_chunks_mut().0);
    }
    let left = width - rest.len();
    let (single, rest) = rest.as_chunks_mut::<LANES>();
    for (index, sums) in single.iter_mut().enumerate() {
        columns::<1>(weights, values, left + index * LANES, width, std::slice::from_mut(sums));
    }
    let left = width - rest.len();
    let mut total = load_part(rest);
    if !rest.is_empty() {
        for (weight, row) in weights.iter().zip(values.chunks_exact(width)) {
            total = _mm256_fmadd_ps(_mm256_set1_ps(*weight), load_part(&row[left..]), total);
        }
        let mut padded = [0.0; LANES];
        store(total, &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// Adds to the sums of some whole vectors of columns, from column `left` on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn columns<const N: usize>(
    weights: &[f32],
    values: &[f32],
    left: usize,
    width: usize,
    sums: &mut [[f32; LANES]],
) {
    let mut totals = [_mm256_setzero_ps(); N];
    for (total, sums) in totals.iter_mut().zip(&*sums) {
        *total = load(sums);
    }
    for (weight, row) in weights.iter().zip(values.chunks_exact(width)) {
        let weight = _mm256_set1_ps(*weight);
        let row = row[left..left + N * LANES].as_chunks::<LANES>().0;
        for (total, values) in totals.iter_mut().zip(row) {
            *total = _mm256_fmadd_ps(weight, load(values), *total);
        }
    }
    for (total, sums) in totals.iter().zip(sums) {
        store(*total, sums);
    }
}
