//! Q4_K: eight groups of 32 four-bit integers, six-bit scales and minimums.
//!
//! ```text
//! byte 0..16    header: see `k.rs`
//! byte 16..144  q[0..256], 4 bits: in each 32 bytes (64 values), byte i
//!               holds q[i] low and q[32 + i] high
//! ```
//! Layout and packing as in ggml (`block_q4_K`, `quantize_row_q4_K_ref`).

use super::block::{BlockFormat, Pack};
use super::k::{self, K_GROUP, K_HEAD_BYTES, ScaleSearch};
use super::levels::Levels;
use super::planes;

/// Eight groups of 32 four-bit integers: 4.5 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q4K;

const Q4K_SEARCH: ScaleSearch = ScaleSearch { top: 15.0, first: -1.0, trials: 20 };

impl BlockFormat for Q4K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 144;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let all_levels = k::unpack_head(&block[..K_HEAD_BYTES]);
        let mut q = [0; 256];
        for (packed, q) in block[K_HEAD_BYTES..].chunks_exact(32).zip(q.chunks_exact_mut(64)) {
            planes::split::<4>(packed, q);
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
        k::levels(&block[..K_HEAD_BYTES], 15, each);
    }
}

impl Pack for Q4K {
    fn pack(values: &[f32], block: &mut [u8]) {
        let q = k::pack_head(values, &Q4K_SEARCH, &mut block[..K_HEAD_BYTES]);
        for (packed, q) in block[K_HEAD_BYTES..].chunks_exact_mut(32).zip(q.chunks_exact(64)) {
            planes::join::<4>(q, packed);
        }
    }
}
