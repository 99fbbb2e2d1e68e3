//! Q2_K: 16 groups of 16 two-bit integers, four-bit scales and minimums.
//!
//! ```text
//! byte 0..16   group g: scale s low, minimum n high, 4 bits each
//! byte 16..80  q[0..256], 2 bits: in each 32 bytes (128 values), byte i
//!              holds q[i], q[32 + i], q[64 + i], q[96 + i] from bit 0 upward
//! byte 80..82  d, f16
//! byte 82..84  dmin, f16         value = (d · s) · q − (dmin · n)
//! ```
//! Layout as in ggml (`block_q2_K`).

use super::block::{BlockFormat, f16_at};
use super::levels::Levels;
use super::planes;

/// 16 groups of 16 two-bit integers: 2.625 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q2K;

impl BlockFormat for Q2K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 84;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        let mut q = [0; 256];
        for (packed, q) in block[16..80].chunks_exact(32).zip(q.chunks_exact_mut(128)) {
            planes::split::<2>(packed, q);
        }
        let groups = q.chunks_exact(16).zip(values.chunks_exact_mut(16));
        for (factors, (q, values)) in block[..16].iter().zip(groups) {
            let scale = d * f32::from(factors & 15);
            let minimum = dmin * f32::from(factors >> 4);
            for (value, &q) in values.iter_mut().zip(q) {
                *value = scale * f32::from(q) - minimum;
            }
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for factors in &block[..16] {
            let scale = d * f32::from(factors & 15);
            let minimum = dmin * f32::from(factors >> 4);
            each(Levels::steps(16, -minimum, scale, 3).coarse(d, 3.0, 15.0, Some(dmin)));
        }
    }
}
