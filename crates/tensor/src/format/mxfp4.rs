//! MXFP4: 32 four-bit floats (E2M1) under one power of two (E8M0).
//!
//! ```text
//! byte 0      e: the scale is 2^(e − 127)
//! byte 1..17  q[0..32], 4 bits: q[i] low and q[16 + i] high in byte 1 + i
//!             value = 2^(e − 127) · (sign, magnitude of q)
//! q & 7        0    1    2    3    4    5    6    7
//! magnitude    0   0.5   1   1.5   2    3    4    6        sign: q & 8
//! ```
//! Numbers: OCP Microscaling Formats specification 1.0. Layout as in ggml
//! (`block_mxfp4`), which also reads e = 255 as 2^128 where the specification
//! says NaN; girih does the same, and decodes a negative zero as zero.
//!
//! Packing sets `e` to the exponent of the largest magnitude minus 2, which is the
//! exponent of 6, the largest E2M1 value. Values between 6 and 8 times the scale
//! saturate to 6. An exponent below the range is clamped to 0.

use super::block::{BlockFormat, Pack, extreme};
use super::levels::Levels;
use super::planes;

/// 32 four-bit floats under one power of two: 4.25 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4;

/// All levels times 2, so that they are whole numbers.
const DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// The same levels in ascending order, zero once.
const ASCENDING: [f32; 15] =
    [-12.0, -8.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];

/// Midpoints between neighbouring doubled magnitudes; ties go to the smaller one.
const DOUBLED_MIDPOINTS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

impl BlockFormat for Mxfp4 {
    const COLUMNS: usize = 32;
    const BYTES: usize = 17;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let half_scale = half_scale(block[0]);
        let mut q = [0; 32];
        planes::split::<4>(&block[1..], &mut q);
        for (value, q) in values.iter_mut().zip(&q) {
            *value = half_scale * DOUBLED[usize::from(q & 15)];
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        each(Levels::table(32, half_scale(block[0]), &ASCENDING));
    }
}

impl Pack for Mxfp4 {
    fn pack(values: &[f32], block: &mut [u8]) {
        let biased_exponent = (extreme(values).abs().to_bits() >> 23) as u8;
        block[0] = biased_exponent.saturating_sub(2);
        let midpoints = DOUBLED_MIDPOINTS.map(|midpoint| midpoint * half_scale(block[0]));
        let mut q = [0; 32];
        for (q, value) in q.iter_mut().zip(values) {
            let magnitude: u8 = midpoints.iter().map(|&midpoint| u8::from(value.abs() > midpoint)).sum();
            let negative = *value < 0.0 && magnitude != 0;
            *q = magnitude | u8::from(negative) << 3;
        }
        planes::join::<4>(&q, &mut block[1..]);
    }
}

/// Returns 2^(e − 128); the two smallest are subnormal.
fn half_scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}
