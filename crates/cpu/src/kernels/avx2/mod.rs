//! Kernels for AVX2, with FMA and F16C.
//!
//! Bodies are safe code: within a `#[target_feature]` function the intrinsics
//! that only compute are safe to call. What remains `unsafe` is reading and
//! writing memory (`load`, `store`) and entering this folder (`enter!`).

/// A kernel of this folder as an ordinary function.
macro_rules! enter {
    (|$($operand:ident),*| $kernel:path) => {
        // SAFETY: `TABLE` is private to this file and leaves it by way of
        // `table` only, once the processor has reported every feature that the
        // kernels enable.
        |$($operand),*| unsafe { $kernel($($operand),*) }
    };
}

mod attend;
mod elementwise;
mod norm;
mod packed;
mod parts;
mod quantize;
mod rope;

use std::arch::x86_64::*;

use super::Table;
use super::packed::Products;
use super::x86::QUAD;

/// This folder's kernels, if the processor has the instructions.
pub(super) fn table() -> Option<Table> {
    let present = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    present.then_some(TABLE)
}

const TABLE: Table = Table {
    name: "avx2",
    products: Products {
        narrow: enter!(|band, x, sums| packed::narrow),
        decode: enter!(|band, first, count, panels| packed::decode),
        tile: enter!(|coding, panels, groups, x, sums| packed::tile),
        floats: enter!(|band, first, x, sums| packed::floats),
        brains: enter!(|band, first, x, sums| packed::brains),
        brains_by: "bf16",
    },
    norm: enter!(|x, weight, epsilon, y| norm::norm),
    rotate: enter!(|x, turns, pairing, y| rope::rotate),
    gate: enter!(|act, gate, up, y| elementwise::gate),
    add: enter!(|a, b, y| elementwise::add),
    scale: enter!(|x, factor, y| elementwise::scale),
    softcap: enter!(|values, cap| elementwise::softcap),
    quantize: enter!(|x, codes, scales, sums| quantize::quantize),
    attend: attend::ATTEND,
};

/// Numbers in a vector.
const LANES: usize = 8;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load(values: &[f32; LANES]) -> __m256 {
    // SAFETY: the array is 32 readable bytes; this load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store(vector: __m256, values: &mut [f32; LANES]) {
    // SAFETY: the array is 32 writable bytes; this store needs no alignment.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), vector) }
}
