//! Q4_0: 32 four-bit integers under one half-precision scale.
//!
//! ```text
//! byte 0..2   d, f16
//! byte 2..18  q[0..32], 4 bits: q[i] low and q[16 + i] high in byte 2 + i
//!             value = d · (q − 8)
//! ```
//! Layout and rounding as in ggml (`block_q4_0`, `quantize_row_q4_0_ref`): the
//! extreme value becomes −8 · d exactly, so `d` may be negative. A value near the
//! opposite extreme is off by up to one step, because there is no level 16.

use super::block::{BlockFormat, Pack, extreme, f16_at, inverse, put_f16};
use super::levels::Levels;
use super::planes;

/// 32 four-bit integers under one half-precision scale: 4.5 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q4_0;

impl BlockFormat for Q4_0 {
    const COLUMNS: usize = 32;
    const BYTES: usize = 18;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let scale = f16_at(block, 0);
        let mut q = [0; 32];
        planes::split::<4>(&block[2..], &mut q);
        for (value, q) in values.iter_mut().zip(&q) {
            *value = scale * (f32::from(*q) - 8.0);
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let scale = f16_at(block, 0);
        each(Levels::steps(32, -8.0 * scale, scale, 15).rounded(scale, 8.0, None).fitted());
    }
}

impl Pack for Q4_0 {
    fn pack(values: &[f32], block: &mut [u8]) {
        let scale = extreme(values) / -8.0;
        let inverse = inverse(scale);
        put_f16(block, 0, scale);
        let mut q = [0; 32];
        for (q, value) in q.iter_mut().zip(values) {
            *q = ((value * inverse + 8.5) as u8).min(15);
        }
        planes::join::<4>(&q, &mut block[2..]);
    }
}
