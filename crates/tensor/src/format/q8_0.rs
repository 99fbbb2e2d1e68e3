//! Q8_0: 32 signed bytes under one half-precision scale.
//!
//! ```text
//! byte 0..2   d, f16
//! byte 2..34  q[0..32], i8          value = d · q
//! ```
//! Layout and rounding as in ggml (`block_q8_0`, `quantize_row_q8_0_ref`).

use super::block::{BlockFormat, Pack, extreme, f16_at, inverse, put_f16};
use super::levels::Levels;

/// 32 signed bytes under one half-precision scale: 8.5 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0;

impl BlockFormat for Q8_0 {
    const COLUMNS: usize = 32;
    const BYTES: usize = 34;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let scale = f16_at(block, 0);
        for (value, &q) in values.iter_mut().zip(&block[2..]) {
            *value = scale * f32::from(q as i8);
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let scale = f16_at(block, 0);
        each(Levels::steps(32, -128.0 * scale, scale, 255).rounded(scale, 128.0, None));
    }
}

impl Pack for Q8_0 {
    fn pack(values: &[f32], block: &mut [u8]) {
        let scale = extreme(values).abs() / 127.0;
        let inverse = inverse(scale);
        put_f16(block, 0, scale);
        for (byte, value) in block[2..].iter_mut().zip(values) {
            *byte = (value * inverse).round() as i8 as u8;
        }
    }
}
