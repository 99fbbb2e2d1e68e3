//! Q4_K: eight groups of 32 four-bit integers, six-bit scales and minimums.
//!
//! ```text
//! byte 0..16    head: see `k.rs`
//! byte 16..144  q[0..256], 4 bits: in each 32 bytes (64 values), byte i
//!               holds q[i] low and q[32 + i] high
//! ```
//! Layout and packing as in ggml (`block_q4_K`, `quantize_row_q4_K_ref`).

use super::block::{Block, Pack};
use super::k::{self, GROUP, HEAD, Search};
use super::planes;

/// Eight groups of 32 four-bit integers: 4.5 bits a value.
#[derive(Clone, Copy, Debug)]
pub struct Q4K;

const SEARCH: Search = Search { top: 15.0, first: -1.0, trials: 20 };

impl Block for Q4K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 144;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let lines = k::unpack_head(&block[..HEAD]);
        let mut q = [0; 256];
        for (packed, q) in block[HEAD..].chunks_exact(32).zip(q.chunks_exact_mut(64)) {
            planes::split::<4>(packed, q);
        }
        for (line, (q, values)) in lines.iter().zip(q.chunks_exact(GROUP).zip(values.chunks_exact_mut(GROUP)))
        {
            for (value, &q) in values.iter_mut().zip(q) {
                *value = line.scale * f32::from(q) - line.minimum;
            }
        }
    }
}

impl Pack for Q4K {
    fn pack(values: &[f32], block: &mut [u8]) {
        let q = k::pack_head(values, &SEARCH, &mut block[..HEAD]);
        for (packed, q) in block[HEAD..].chunks_exact_mut(32).zip(q.chunks_exact(64)) {
            planes::join::<4>(q, packed);
        }
    }
}
