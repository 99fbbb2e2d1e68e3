//! Q5_K: eight groups of 32 five-bit integers, six-bit scales and minimums.
//!
//! ```text
//! byte 0..16    header: see `k.rs`
//! byte 16..48   fifth bits: bit p of byte i belongs to q[32p + i]
//! byte 48..176  lower four bits: in each 32 bytes (64 values), byte i
//!               holds q[i] low and q[32 + i] high
//! ```
//! Layout and packing as in ggml (`block_q5_K`, `quantize_row_q5_K_ref`).

use super::block::{BlockFormat, Pack};
use super::k::{self, K_GROUP, K_HEAD_BYTES, ScaleSearch};
use super::levels::Levels;
use super::planes;

/// Eight groups of 32 five-bit integers: 5.5 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q5K;

const Q5K_SEARCH: ScaleSearch = ScaleSearch { top: 31.0, first: -0.5, trials: 15 };

/// The offset of the lower four bits.
const LOW_BITS_AT: usize = 48;

impl BlockFormat for Q5K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 176;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let all_levels = k::unpack_head(&block[..K_HEAD_BYTES]);
        let mut fifths = [0; 256];
        planes::split::<1>(&block[K_HEAD_BYTES..LOW_BITS_AT], &mut fifths);
        let mut q = [0; 256];
        for (packed, q) in block[LOW_BITS_AT..].chunks_exact(32).zip(q.chunks_exact_mut(64)) {
            planes::split::<4>(packed, q);
        }
        for (q, fifth) in q.iter_mut().zip(&fifths) {
            *q |= fifth << 4;
        }
        for (levels, (q, values)) in
            all_levels.iter().zip(q.chunks_exact(K_GROUP).zip(values.chunks_exact_mut(K_GROUP)))
        {
            for (value, &q) in values.iter_mut().zip(q) {
                *value = levels.scale * f32::from(q) - levels.minimum;
            }
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        k::levels(&block[..K_HEAD_BYTES], 31, each);
    }
}

impl Pack for Q5K {
    fn pack(values: &[f32], block: &mut [u8]) {
        let q = k::pack_head(values, &Q5K_SEARCH, &mut block[..K_HEAD_BYTES]);
        planes::join::<1>(&q.map(|q| q >> 4), &mut block[K_HEAD_BYTES..LOW_BITS_AT]);
        for (packed, q) in block[LOW_BITS_AT..].chunks_exact_mut(32).zip(q.chunks_exact(64)) {
            planes::join::<4>(q, packed);
        }
    }
}
