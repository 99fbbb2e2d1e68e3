//! Kernels in plain Rust that any machine runs, shaped so that the compiler
//! finds the vector instructions of the baseline it is given.
#![forbid(unsafe_code)]

mod attend;
pub(super) mod fp16;
pub(super) mod packed;
pub(super) mod quantize;
mod unpack;

use super::table::{InstructionSet, Table};

/// This folder's kernels.
pub(super) const TABLE: Table =
    Table { name: "portable", matmul: packed::MATMUL, attend: attend::ATTEND, set: InstructionSet::Portable };
