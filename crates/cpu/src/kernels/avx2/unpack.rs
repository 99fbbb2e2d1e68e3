//! Decoding of stored values, sixteen at a time.
//!
//! ```text
//! BF16, F16     widen, then shift or convert
//! the others    16 bytes of small integers -> 16 numbers, times their scale
//! ```
//! Each operation is the one that the format is defined by, on numbers that
//! are exact up to it, so the results are equal bit for bit.
//!
//! A core gets about 17 GB/s of DRAM, 5 bytes a cycle: 2.4 values of BF16, 8.5 of
//! Q4_0. BF16 takes a load, two operations and a store for eight values, so
//! DRAM binds; with four bits a value these instructions do, until weights are
//! multiplied without being decoded to memory first.

use std::arch::x86_64::*;

use super::super::x86::{GROUP, blocks, half, load_bytes, nibbles};
use super::super::{portable, x86};
use super::store;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn bf16(bytes: &[u8], values: &mut [f32]) {
    let whole = values.len() / GROUP * GROUP;
    let (bytes, bytes_rest) = bytes.split_at(2 * whole);
    let (values, values_rest) = values.split_at_mut(whole);
    for (bytes, values) in blocks::<{ 2 * GROUP }, GROUP>(bytes, values) {
        for (bytes, values) in bytes.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
            let bits = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_bytes(bytes)));
            store(_mm256_castsi256_ps(bits), values);
        }
    }
    portable::unpack::bf16(bytes_rest, values_rest);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn f16(bytes: &[u8], values: &mut [f32]) {
    let whole = values.len() / GROUP * GROUP;
    let (bytes, bytes_rest) = bytes.split_at(2 * whole);
    let (values, values_rest) = values.split_at_mut(whole);
    for (bytes, values) in blocks::<{ 2 * GROUP }, GROUP>(bytes, values) {
        for (bytes, values) in bytes.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
            store(_mm256_cvtph_ps(load_bytes(bytes)), values);
        }
    }
    portable::unpack::f16(bytes_rest, values_rest);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0(bytes: &[u8], values: &mut [f32]) {
    for (block, values) in blocks::<18, 32>(bytes, values) {
        let (scale, packed) = block.split_first_chunk().expect("18 bytes begin with 2");
        let integers = x86::q4_0(&packed.as_chunks().0[0]);
        let scale = half(*scale);
        for (integers, values) in integers.into_iter().zip(values.as_chunks_mut().0) {
            scaled(integers, scale, values);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0(bytes: &[u8], values: &mut [f32]) {
    for (block, values) in blocks::<34, 32>(bytes, values) {
        let (scale, integers) = block.split_first_chunk().expect("34 bytes begin with 2");
        let scale = half(*scale);
        for (integers, values) in integers.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
            scaled(load_bytes(integers), scale, values);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_k(bytes: &[u8], values: &mut [f32]) {
    for (block, values) in blocks::<144, 256>(bytes, values) {
        let (head, packed) = block.split_first_chunk::<16>().expect("144 bytes begin with 16");
        let lines = q4_k_lines(head);
        let values = values.as_chunks_mut::<GROUP>().0;
        for (index, packed) in packed.as_chunks().0.iter().enumerate() {
            // Two vectors of bytes hold a line below and the next above.
            let (line, group) = (index / 2 * 2, index / 2 * 4 + index % 2);
            let (low, high) = nibbles(load_bytes(packed));
            affine(low, lines[line], lines[8 + line], &mut values[group]);
            affine(high, lines[line + 1], lines[9 + line], &mut values[group + 2]);
        }
    }
}

/// The eight scales and then the eight minimums of a block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q4_k_lines(head: &[u8; 16]) -> [f32; GROUP] {
    let (d, rest) = head.split_first_chunk().expect("16 bytes begin with 2");
    let (dmin, packed) = rest.split_first_chunk().expect("14 bytes begin with 2");
    let own = [half(*d), half(*dmin)];
    let integers = load_bytes(&x86::q4_k_lines(packed.first_chunk().expect("14 bytes less 2 are 12")));
    let mut lines = [0.0; GROUP];
    for ((numbers, own), lines) in numbers(integers).into_iter().zip(own).zip(lines.as_chunks_mut().0) {
        store(_mm256_mul_ps(_mm256_set1_ps(own), numbers), lines);
    }
    lines
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k(bytes: &[u8], values: &mut [f32]) {
    for (block, values) in blocks::<210, 256>(bytes, values) {
        let (vectors, d) = block.as_chunks::<GROUP>();
        let (lows, uppers, scales) = (&vectors[..8], &vectors[8..12], &vectors[12]);
        let d = half([d[0], d[1]]);
        let values = values.as_chunks_mut::<GROUP>().0;
        // Two vectors for each half of the block, of which each brings every second group.
        for (index, upper) in uppers.iter().enumerate() {
            let (low, group) = (index / 2 * 4 + index % 2, index / 2 * 8 + index % 2);
            let integers = x86::q6_k(&lows[low], &lows[low + 2], upper);
            for (step, integers) in integers.into_iter().enumerate() {
                let group = group + 2 * step;
                scaled(integers, d * f32::from(scales[group] as i8), &mut values[group]);
            }
        }
    }
}

/// Sixteen integers as numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(integers: __m128i) -> [__m256; 2] {
    let upper = _mm_unpackhi_epi64(integers, integers);
    [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(integers)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(upper))]
}

/// Stores 16 integers times a scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn scaled(integers: __m128i, scale: f32, values: &mut [f32; GROUP]) {
    let scale = _mm256_set1_ps(scale);
    for (numbers, values) in numbers(integers).into_iter().zip(values.as_chunks_mut().0) {
        store(_mm256_mul_ps(scale, numbers), values);
    }
}

/// Stores 16 integers times a scale, less a minimum.
///
/// The product of 11, 6 and 4 bits is exact, so it makes no difference that it
/// is not rounded on its own.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn affine(integers: __m128i, scale: f32, minimum: f32, values: &mut [f32; GROUP]) {
    let (scale, minimum) = (_mm256_set1_ps(scale), _mm256_set1_ps(minimum));
    for (numbers, values) in numbers(integers).into_iter().zip(values.as_chunks_mut().0) {
        store(_mm256_fmsub_ps(scale, numbers, minimum), values);
    }
}
