//! Q5_0: 32 five-bit integers under one half-precision scale.
//!
//! ```text
//! byte 0..2   d, f16
//! byte 2..6   fifth bits, u32: bit i belongs to q[i]
//! byte 6..22  low four bits: q[i] low and q[16 + i] high in byte 6 + i
//!             value = d · (q − 16)
//! ```
//! Layout and rounding as in ggml (`block_q5_0`, `quantize_row_q5_0_ref`); the
//! extreme values are treated as in Q4_0.

use super::block::{BlockFormat, Pack, extreme, f16_at, inverse, put_f16};
use super::levels::Levels;
use super::planes;

/// 32 five-bit integers under one half-precision scale: 5.5 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q5_0;

impl BlockFormat for Q5_0 {
    const COLUMNS: usize = 32;
    const BYTES: usize = 22;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let scale = f16_at(block, 0);
        let q = five_bits(&block[2..]);
        for (value, q) in values.iter_mut().zip(&q) {
            *value = scale * (f32::from(*q) - 16.0);
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let scale = f16_at(block, 0);
        each(Levels::steps(32, -16.0 * scale, scale, 31).rounded(scale, 16.0, None).fitted());
    }
}

impl Pack for Q5_0 {
    fn pack(values: &[f32], block: &mut [u8]) {
        let scale = extreme(values) / -16.0;
        let inverse = inverse(scale);
        put_f16(block, 0, scale);
        let mut q = [0; 32];
        for (q, value) in q.iter_mut().zip(values) {
            *q = ((value * inverse + 16.5) as u8).min(31);
        }
        let fifths = q.iter().rev().fold(0u32, |bits, q| bits << 1 | u32::from(q >> 4));
        block[2..6].copy_from_slice(&fifths.to_le_bytes());
        planes::join::<4>(&q, &mut block[6..]);
    }
}

/// Decodes the integers from 4 bytes of fifth bits and 16 bytes of low bits.
pub(super) fn five_bits(packed: &[u8]) -> [u8; 32] {
    let mut q = [0; 32];
    planes::split::<4>(&packed[4..], &mut q);
    let fifths = u32::from_le_bytes([packed[0], packed[1], packed[2], packed[3]]);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((fifths >> i) as u8 & 1) << 4;
    }
    q
}
