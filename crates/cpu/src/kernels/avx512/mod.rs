//! Kernels for AVX-512 (F, BW, VL, DQ, VNNI), and those that BF16 adds.
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
    let present = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    present.then_some(TABLE)
}

/// The same with products of brain floats, if the processor has them, too.
pub(super) fn brain_table() -> Option<Table> {
    let table = table().filter(|_| is_x86_feature_detected!("avx512bf16"))?;
    let products = Products {
        // SAFETY: the processor has just reported this feature, and to `table` all others.
        brains: |band, first, x, sums| unsafe { packed::brain_dots(band, first, x, sums) },
        brains_by: "bf16-dot",
        ..table.products
    };
    Some(Table { name: "avx512bf16", products, ..table })
}

const TABLE: Table = Table {
    name: "avx512",
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
const LANES: usize = 16;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn load(values: &[f32; LANES]) -> __m512 {
    // SAFETY: the array is 64 readable bytes; this load needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn store(vector: __m512, values: &mut [f32; LANES]) {
    // SAFETY: the array is 64 writable bytes; this store needs no alignment.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), vector) }
}
