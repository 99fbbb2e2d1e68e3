//! Q5_1: 32 five-bit integers under one half-precision scale and minimum.
//!
//! ```text
//! byte 0..2   d, f16
//! byte 2..4   m, f16
//! byte 4..8   fifth bits, u32: bit i belongs to q[i]
//! byte 8..24  low four bits: q[i] low and q[16 + i] high in byte 8 + i
//!             value = d · q + m
//! ```
//! Layout as in ggml (`block_q5_1`).

use super::block::{BlockFormat, f16_at};
use super::levels::Levels;
use super::q5_0::five_bits;

/// 32 five-bit integers under one scale and minimum: 6 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q5_1;

impl BlockFormat for Q5_1 {
    const COLUMNS: usize = 32;
    const BYTES: usize = 24;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let (scale, minimum) = (f16_at(block, 0), f16_at(block, 2));
        let q = five_bits(&block[4..]);
        for (value, q) in values.iter_mut().zip(&q) {
            *value = scale * f32::from(*q) + minimum;
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let (scale, minimum) = (f16_at(block, 0), f16_at(block, 2));
        each(Levels::steps(32, minimum, scale, 31).rounded(scale, 31.0, Some(minimum)).fitted());
    }
}
