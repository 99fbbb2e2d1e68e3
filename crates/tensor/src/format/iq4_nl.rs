//! IQ4_NL: 32 values from a table of 16, under one half-precision scale.
//!
//! ```text
//! byte 0..2   d, f16
//! byte 2..18  q[0..32], 4 bits: q[i] low and q[16 + i] high in byte 2 + i
//!             value = d · TABLE[q]
//! ```
//! Layout and table as in ggml (`block_iq4_nl`, `kvalues_iq4nl`).

use super::block::{BlockFormat, f16_at};
use super::levels::Levels;
use super::planes;

/// The levels of IQ4_NL and IQ4_XS, denser around zero.
pub(super) const TABLE: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// 32 values from a table of 16, under one scale: 4.5 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Nl;

impl BlockFormat for Iq4Nl {
    const COLUMNS: usize = 32;
    const BYTES: usize = 18;

    fn unpack(block: &[u8], values: &mut [f32]) {
        look_up(f16_at(block, 0), &block[2..], values);
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let scale = f16_at(block, 0);
        each(Levels::table(32, scale, &TABLE).rounded(scale, 127.0, None));
    }
}

/// Decodes 16 bytes of table indices into 32 values.
pub(super) fn look_up(scale: f32, packed: &[u8], values: &mut [f32]) {
    let mut q = [0; 32];
    planes::split::<4>(packed, &mut q);
    for (value, q) in values.iter_mut().zip(&q) {
        *value = scale * TABLE[usize::from(q & 15)];
    }
}
