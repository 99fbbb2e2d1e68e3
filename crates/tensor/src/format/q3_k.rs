//! Q3_K: 16 groups of 16 three-bit integers, six-bit scales.
//!
//! ```text
//! byte 0..32    third bits h: bit p of byte i belongs to q[32p + i]
//! byte 32..96   lower two bits: in each 32 bytes (128 values), byte i holds
//!               q[i], q[32 + i], q[64 + i], q[96 + i] from bit 0 upward
//! byte 96..104  lower four bits of the scales: s[i] low, s[8 + i] high
//! byte 104..108 upper two bits: s[i], s[4 + i], s[8 + i], s[12 + i] upward
//! byte 108..110 d, f16           value = d · (s − 32) · (q + 4h − 4)
//! ```
//! Layout as in ggml (`block_q3_K`).

use super::block::{BlockFormat, f16_at};
use super::levels::Levels;
use super::planes;

/// 16 groups of 16 three-bit integers: 3.4375 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q3K;

impl BlockFormat for Q3K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 110;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let d = f16_at(block, 108);
        let mut thirds = [0; 256];
        planes::split::<1>(&block[..32], &mut thirds);
        let mut lowers = [0; 256];
        for (packed, lowers) in block[32..96].chunks_exact(32).zip(lowers.chunks_exact_mut(128)) {
            planes::split::<2>(packed, lowers);
        }
        let scales = scales(&block[96..108]).map(|s| d * (f32::from(s) - 32.0));
        let groups = thirds.chunks_exact(16).zip(lowers.chunks_exact(16));
        for ((scale, (thirds, lowers)), values) in scales.iter().zip(groups).zip(values.chunks_exact_mut(16))
        {
            for ((value, third), lower) in values.iter_mut().zip(thirds).zip(lowers) {
                *value = scale * (f32::from(lower | third << 2) - 4.0);
            }
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let d = f16_at(block, 108);
        for scale in scales(&block[96..108]).map(|s| d * (f32::from(s) - 32.0)) {
            each(Levels::steps(16, -4.0 * scale, scale, 7).coarse(d, 4.0, 32.0, None));
        }
    }
}

/// The sixteen six-bit scales in 12 bytes.
fn scales(packed: &[u8]) -> [u8; 16] {
    let (mut scales, mut uppers) = ([0; 16], [0; 16]);
    planes::split::<4>(&packed[..8], &mut scales);
    planes::split::<2>(&packed[8..], &mut uppers);
    for (scale, upper) in scales.iter_mut().zip(&uppers) {
        *scale |= upper << 4;
    }
    scales
}
