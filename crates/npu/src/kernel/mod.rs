//! What a core can call: for each entry the operands with their layouts, the
//! values that the tile computes and the cycles that it takes.
//!
//! Values are those of the tile: operands are rounded to bf16, sums are kept in
//! f32 and added in the order that each entry states. Cycles are figures of
//! `targets/npu/kernels-*.toml`, one set for each published code generator.

mod attend;
mod bfp16;
mod cycles;
mod entries;
mod entry;
mod matmul;
mod rows;

pub use bfp16::{BLOCK as BFP16_BLOCK, quantise as bfp16_quantise};
pub use cycles::{KernelTimes, OperandExtent};
pub use entries::{ENTRIES, entry};
pub use entry::{Access, Axis, CascadeUse, KernelEntry, KernelOperand, KernelValues, Param, ParamKind};

#[cfg(test)]
mod tests;
