//! The list of all entries.

use super::entry::KernelEntry;
use super::{attend, matmul, q4nx, rows};

/// All entries.
pub const ENTRIES: &[KernelEntry] = &[
    matmul::GEMM_BF16,
    matmul::GEMM_BF16_DIRECT,
    matmul::GEMM_BF16_LOW,
    matmul::GEMM_BF16_TUNED,
    matmul::GEMM_BFP16,
    matmul::GEMM_INT8,
    matmul::GEMM_INT8_I8,
    matmul::GEMM_INT8_I16,
    matmul::GEMV_BF16,
    matmul::GEMV_BF16_PART,
    q4nx::GEMV_Q4NX,
    q4nx::DEQUANT_Q4NX,
    q4nx::UNPACK_Q4NX,
    rows::RMS_NORM,
    rows::LAYER_NORM,
    rows::ROPE_HALVES,
    rows::ROPE_NEIGHBOURS,
    rows::SILU_MUL,
    rows::GELU_MUL,
    rows::GELU,
    rows::ADD,
    rows::SCALE,
    rows::ZERO_F32,
    rows::COPY,
    rows::STORE_BF16,
    attend::ATTEND_CLEAR,
    attend::ATTEND,
    attend::ATTEND_SCORES,
    attend::ATTEND_VALUES,
    attend::ATTEND_MERGE,
    attend::ATTEND_STORE,
    rows::SEND,
    rows::RECEIVE,
];

/// Finds an entry by name.
pub fn entry(name: &str) -> Option<&'static KernelEntry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}
