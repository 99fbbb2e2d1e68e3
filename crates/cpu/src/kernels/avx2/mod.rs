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
mod dot;
mod norm;
mod unpack;

use std::arch::x86_64::*;

use girih_tensor::DType;

use super::{QUAD, Table, portable};

/// This folder's kernels, if the processor has the instructions.
pub(super) fn table() -> Option<Table> {
    let present = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    present.then_some(TABLE)
}

const TABLE: Table = Table {
    name: "avx2",
    formats: &[
        // A copy, for which the compiler knows what is best.
        (DType::F32, portable::unpack::f32),
        (DType::F16, enter!(|bytes, values| unpack::f16)),
        (DType::BF16, enter!(|bytes, values| unpack::bf16)),
        (DType::Q4_0, enter!(|bytes, values| unpack::q4_0)),
        (DType::Q8_0, enter!(|bytes, values| unpack::q8_0)),
        (DType::Q4_K, enter!(|bytes, values| unpack::q4_k)),
        (DType::Q6_K, enter!(|bytes, values| unpack::q6_k)),
    ],
    dot: enter!(|a, b| dot::dot),
    dots: enter!(|rows, x| dot::dots),
    attend: attend::ATTEND,
    norm: enter!(|x, weight, epsilon, y| norm::norm),
    ..portable::TABLE
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

/// Up to a vector of numbers, with zeros after them.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_part(values: &[f32]) -> __m256 {
    match values.as_array() {
        Some(whole) => load(whole),
        None => {
            let mut padded = [0.0; LANES];
            padded[..values.len()].copy_from_slice(values);
            load(&padded)
        }
    }
}
