//! Q5_K: eight groups of 32 five-bit integers, six-bit scales and minimums.
//!
//! ```text
//! byte 0..16    head: see `k.rs`
//! byte 16..48   fifth bits: bit p of byte i belongs to q[32p + i]
//! byte 48..176  lower four bits: in each 32 bytes (64 values), byte i
//!               holds q[i] low and q[32 + i] high
//! ```
//! Layout and packing as in ggml (`block_q5_K`, `quantize_row_q5_K_ref`).

use super::block::{Block, Pack};
use super::k::{self, GROUP, HEAD, Search};
use super::planes;

/// Eight groups of 32 five-bit integers: 5.5 bits a value.
#[derive(Clone, Copy, Debug)]
pub struct Q5K;

const SEARCH: Search = Search { top: 31.0, first: -0.5, trials: 15 };

/// Where the lower four bits begin.
const LOWERS: usize = 48;

impl Block for Q5K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 176;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let lines = k::unpack_head(&block[..HEAD]);
        let mut fifths = [0; 256];
        planes::split::<1>(&block[HEAD..LOWERS], &mut fifths);
        let mut q = [0; 256];
        for (packed, q) in block[LOWERS..].chunks_exact(32).zip(q.chunks_exact_mut(64)) {
            planes::split::<4>(packed, q);
        }
        for (q, fifth) in q.iter_mut().zip(&fifths) {
            *q |= fifth << 4;
        }
        for (line, (q, values)) in lines.iter().zip(q.chunks_exact(GROUP).zip(values.chunks_exact_mut(GROUP)))
        {
            for (value, &q) in values.iter_mut().zip(q) {
                *value = line.scale * f32::from(q) - line.minimum;
            }
        }
    }
}

impl Pack for Q5K {
    fn pack(values: &[f32], block: &mut [u8]) {
        let q = k::pack_head(values, &SEARCH, &mut block[..HEAD]);
        planes::join::<1>(&q.map(|q| q >> 4), &mut block[HEAD..LOWERS]);
        for (packed, q) in block[LOWERS..].chunks_exact_mut(32).zip(q.chunks_exact(64)) {
            planes::join::<4>(q, packed);
        }
    }
}
