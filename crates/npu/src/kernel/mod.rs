//! The kernels that a core can call: for each entry its operands with their
//! layouts, the values it computes and the cycles it takes.
//!
//! Values are those of the hardware: operands are rounded to bf16, sums are
//! kept in f32 and added in the order that each entry states. Cycles come from
//! `targets/npu/kernels-*.toml`, one set of figures for each published code
//! generator.

mod attend;
mod bfp16;
mod cycles;
mod entries;
mod entry;
mod matmul;
mod q4nx;
mod rows;

pub(crate) use attend::{MAX_SPANS, WEIGHTS_HEAD};
pub use bfp16::{BFP16_BLOCK, bfp16_quantize};
pub(crate) use cycles::kernel_time_file;
pub use cycles::{KernelTimes, OperandExtent, program_bytes};
pub use entries::{ENTRIES, entry};
pub use entry::{Access, Axis, CascadeUse, KernelEntry, KernelOperand, KernelValues, Param, ParamKind};

#[cfg(test)]
mod tests;
