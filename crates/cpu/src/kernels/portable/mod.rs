//! Kernels in plain Rust that any machine runs, shaped so that the compiler
//! finds the vector instructions of the baseline it is given.
#![forbid(unsafe_code)]

mod attend;
pub(super) mod elementwise;
pub(super) mod norm;
pub(super) mod packed;
pub(super) mod quantize;
pub(super) mod rope;
mod unpack;

use super::table::Table;

/// This folder's kernels.
pub(super) const TABLE: Table = Table {
    name: "portable",
    matmul: packed::MATMUL,
    norm: norm::norm,
    layer_norm: norm::layer_norm,
    rotate: rope::rotate,
    attend: attend::ATTEND,
    gate: elementwise::gate,
    activate: elementwise::activate,
    add: elementwise::add,
    scale: elementwise::scale,
    softcap: elementwise::softcap,
    quantize: quantize::quantize,
};
