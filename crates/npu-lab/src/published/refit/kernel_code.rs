//! The functions of each kernel entry, as they are written in public sources: mlir-air at the commit of the tables, and
//! for kernels that nobody published `crates/npu/kernels/kernels.cc`. Their code and the cycles of entering them follow.
//!
//! Kernels whose sources are not public have the code of a known one: `gemm_bf16_direct` and `gemm_bf16_tuned` that of
//! `gemm_bf16`, and a rotation of neighbours that of halves.

use super::attention_code::{attend_clear, attend_merge, attend_scores, attend_store, attend_values};
use super::function_code::{
    CONSTANT, CodePart, KernelFunction, LOOP_PROLOGUE, ROUNDING, call_cycles, function, function_bytes,
};
use super::loop_schedule::{AIE2P, LoopBody, VectorUnit};
use super::product_code::{
    WideSums, dequantize, gemm, gemm_bfp16, gemm_int8, gemv, gemv_part, gemv_q4nx, unpack,
};
use super::vector_loops::vector_loops;

/// A signed division by a power of two.
const SIGNED_SHIFT: u32 = 3;

/// The bytes of an entry's functions; each is laid out once. None for norms: their division and their sum of f32 scalars
/// are functions of a library (`AIE2PLegalizerInfo.cpp`: `libcallFor`), whose size and time nobody publishes.
pub(super) fn program_bytes(unit: VectorUnit, entry: &str) -> Option<f64> {
    if matches!(entry, "rms_norm" | "layer_norm") {
        return None;
    }
    let bytes = |function: KernelFunction| f64::from(function_bytes(unit, &function.parts));
    Some(kernel_functions(unit, entry)?.into_iter().map(bytes).sum())
}

/// The cycles of a call of an entry that no loop of its figures has.
pub(super) fn entry_cycles(unit: VectorUnit, entry: &str) -> Option<f64> {
    let cycles = |function: KernelFunction| {
        let once = call_cycles(unit, function.arguments, &function.parts);
        f64::from(function.calls * (once + function.loops * LOOP_PROLOGUE))
    };
    Some(kernel_functions(unit, entry)?.into_iter().map(cycles).sum())
}

/// The functions of an entry.
pub(super) fn kernel_functions(unit: VectorUnit, entry: &str) -> Option<Vec<KernelFunction>> {
    let functions = match entry {
        "gemm_bf16" | "gemm_bf16_direct" | "gemm_bf16_tuned" => gemm(unit, WideSums::Stored),
        "gemm_bf16_low" => gemm(unit, WideSums::Rounded),
        "gemm_bfp16" => gemm_bfp16(unit),
        "gemm_int8" | "gemm_int8_i8" | "gemm_int8_i16" => gemm_int8(unit),
        "gemv_bf16" => gemv(unit),
        "gemv_bf16_part" => gemv_part(unit),
        "gemv_q4nx" => gemv_q4nx(unit),
        "dequant_q4nx" => dequantize(),
        "unpack_q4nx" => unpack(unit),
        "attend_clear" => attend_clear(unit),
        "attend" => [attend_scores(unit), attend_values(unit)].concat(),
        "attend_scores" => attend_scores(unit),
        "attend_values" => attend_values(unit),
        "attend_merge" => attend_merge(unit),
        "attend_store" => attend_store(unit),
        "rms_norm" | "layer_norm" => norm(),
        "rope_halves" | "rope_neighbours" => rotation(&loops_of(unit, entry)),
        "silu_mul" => elements(4, 2 * CONSTANT + SIGNED_SHIFT, unit, entry),
        "gelu_mul" => elements(4, 4 * CONSTANT + ROUNDING + 1, unit, entry),
        "gelu" => elements(3, 4 * CONSTANT + ROUNDING + 1, unit, entry),
        "add" => elements(4, ROUNDING + 1, unit, entry),
        "scale" => elements(4, CONSTANT + ROUNDING + 1, unit, entry),
        "zero_f32" => elements(2, CONSTANT, unit, entry),
        "copy" => elements(3, 1, unit, entry),
        "store_bf16" => elements(3, ROUNDING + 1, unit, entry),
        "send" | "receive" => beats(),
        _ => return None,
    };
    Some(functions)
}

/// The loops over vectors of an entry. Those of AIE2P stand for loops that nobody has scheduled on AIE2.
fn loops_of(unit: VectorUnit, entry: &str) -> Vec<LoopBody> {
    let loops = vector_loops(unit, entry).or_else(|| vector_loops(AIE2P, entry));
    loops.expect("the caller names an entry with loops over vectors")
}

/// A loop over vectors behind the settings of its constants and its count.
fn elements(arguments: u32, scalars: u32, unit: VectorUnit, entry: &str) -> Vec<KernelFunction> {
    let loops = loops_of(unit, entry).into_iter().map(CodePart::Loop);
    vec![function(arguments, [CodePart::Scalars(scalars)].into_iter().chain(loops).collect())]
}

/// The call of a norm: its arguments are three pointers, rows, the length of a row, the number that divides sums, and
/// epsilon. Its rows have figures of their own.
fn norm() -> Vec<KernelFunction> {
    vec![function(7, vec![CodePart::Scalars(ROUNDING + 2), CodePart::OuterLoop(Vec::new())])]
}

/// `rope_halfsplit.cc`: two events, half of the size, and behind the comparison its vectors and six addresses.
fn rotation(loops: &[LoopBody]) -> Vec<KernelFunction> {
    let ahead = [CodePart::Scalars(2 + SIGNED_SHIFT), CodePart::Guard(2 + 6)];
    let loops = loops.iter().cloned().map(CodePart::Loop);
    vec![function(4, ahead.into_iter().chain(loops).collect())]
}

/// A beat of the cascade is 16 words: a vector that is loaded and sent, or received and stored.
fn beats() -> Vec<KernelFunction> {
    let mut body = LoopBody::new();
    let words = body.load();
    body.store(words);
    vec![function(2, vec![CodePart::Scalars(1), CodePart::Loop(body)])]
}
