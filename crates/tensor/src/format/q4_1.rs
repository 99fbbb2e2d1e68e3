//! Q4_1: 32 four-bit integers under one half-precision scale and minimum.
//!
//! ```text
//! byte 0..2   d, f16
//! byte 2..4   m, f16
//! byte 4..20  q[0..32], 4 bits: q[i] low and q[16 + i] high in byte 4 + i
//!             value = d · q + m
//! ```
//! Layout and rounding as in ggml (`block_q4_1`, `quantize_row_q4_1_ref`).

use super::block::{BlockFormat, Pack, f16_at, inverse, put_f16, range};
use super::levels::Levels;
use super::planes;

/// 32 four-bit integers under one scale and minimum: 5 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q4_1;

impl BlockFormat for Q4_1 {
    const COLUMNS: usize = 32;
    const BYTES: usize = 20;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let (scale, minimum) = (f16_at(block, 0), f16_at(block, 2));
        let mut q = [0; 32];
        planes::split::<4>(&block[4..], &mut q);
        for (value, q) in values.iter_mut().zip(&q) {
            *value = scale * f32::from(*q) + minimum;
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let (scale, minimum) = (f16_at(block, 0), f16_at(block, 2));
        each(Levels::steps(32, minimum, scale, 15).rounded(scale, 15.0, Some(minimum)).fitted());
    }
}

impl Pack for Q4_1 {
    fn pack(values: &[f32], block: &mut [u8]) {
        let (least, greatest) = range(values);
        let scale = (greatest - least) / 15.0;
        let inverse = inverse(scale);
        put_f16(block, 0, scale);
        put_f16(block, 2, least);
        let mut q = [0; 32];
        for (q, value) in q.iter_mut().zip(values) {
            *q = (((value - least) * inverse + 0.5) as u8).min(15);
        }
        planes::join::<4>(&q, &mut block[4..]);
    }
}
