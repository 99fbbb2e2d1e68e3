//! IQ4_XS: eight groups of 32 values from the table of IQ4_NL, six-bit scales.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..4    upper two bits of the scales, u16: bits 2g.. belong to s[g]
//! byte 4..8    lower four bits: s[2i] low and s[2i + 1] high in byte 4 + i
//! byte 8..136  8 groups of 16 bytes: q[i] low and q[16 + i] high in byte i
//!              value = d · (s[g] − 32) · TABLE[q]
//! ```
//! Layout as in ggml (`block_iq4_xs`).

use super::block::{BlockFormat, f16_at};
use super::iq4_nl::{TABLE, look_up};
use super::levels::Levels;

/// Eight groups of 32 table values with six-bit scales: 4.25 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Xs;

impl BlockFormat for Iq4Xs {
    const COLUMNS: usize = 256;
    const BYTES: usize = 136;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let d = f16_at(block, 0);
        let groups = block[8..].chunks_exact(16).zip(values.chunks_exact_mut(32));
        for (group, (packed, values)) in groups.enumerate() {
            look_up(d * factor(block, group), packed, values);
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let d = f16_at(block, 0);
        for group in 0..8 {
            // Integers are chosen with the scale before it is rounded to half precision.
            let factor = factor(block, group);
            let levels = Levels::table(32, d * factor, &TABLE);
            let largest = 127.0 * f64::from(factor).abs();
            each(levels.rounded(d, largest, None).coarse(d, 127.0, 32.0, None));
        }
    }
}

/// The factor of a group's scale.
fn factor(block: &[u8], group: usize) -> f32 {
    let uppers = u16::from_le_bytes([block[2], block[3]]);
    let lower = block[4 + group / 2] >> (4 * (group % 2)) & 15;
    let upper = (uppers >> (2 * group)) as u8 & 3;
    f32::from(upper << 4 | lower) - 32.0
}
