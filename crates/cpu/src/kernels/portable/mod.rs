//! Kernels in plain Rust that any machine runs, shaped so that the compiler
//! finds the vector instructions of the baseline it is given.
#![forbid(unsafe_code)]

mod attend;
mod dot;
mod elementwise;
pub(super) mod norm;
mod rope;
pub(super) mod unpack;

use girih_tensor::DType;

use super::{QUAD, Table, Turns};

/// This folder's kernels.
pub(super) const TABLE: Table = Table {
    name: "portable",
    formats: &[(DType::F32, unpack::f32), (DType::F16, unpack::f16), (DType::BF16, unpack::bf16)],
    dot: dot::dot,
    dots: dot::dots,
    norm: norm::norm,
    rotate: rope::rotate,
    attend: attend::ATTEND,
    gate: elementwise::gate,
    add: elementwise::add,
    scale: elementwise::scale,
    softcap: elementwise::softcap,
};
