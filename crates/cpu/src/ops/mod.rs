//! The operators over all rows of a step, a file for each: how a node is bound to its operands (`bind`), how
//! the work is cut into pieces for threads, and the kernel that a piece runs.
#![allow(missing_docs, reason = "the formula of a kernel names its operands")]

pub(crate) mod activate;
mod adapter_terms;
pub(crate) mod adapters;
pub(crate) mod add;
pub(crate) mod attend;
mod attend_scratch;
pub(crate) mod clamp;
pub(crate) mod concat;
pub(crate) mod delta_rule;
pub(crate) mod embed;
mod executor;
pub(crate) mod experts;
pub(crate) mod gate;
pub(crate) mod gate_heads;
pub(crate) mod gather;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod linear_heads;
pub(crate) mod match_rms;
pub(crate) mod mix_heads;
pub(crate) mod norm;
pub(crate) mod pool;
mod product;
pub(crate) mod reshape;
pub(crate) mod rope;
mod rotations;
pub(crate) mod route;
mod rows;
pub(crate) mod scale;
pub(crate) mod scale_columns;
pub(crate) mod select_keys;
pub(crate) mod shift_columns;
pub(crate) mod short_conv;
pub(crate) mod softcap;
mod sparse_product;
pub(crate) mod sparsify;
pub(crate) mod splice;
pub(crate) mod ssm_scan;
pub(crate) mod temper;
pub(crate) mod write;
pub(crate) mod xielu;

pub use activate::Activate;
pub use add::{Add, AddScaled};
pub use clamp::Clamp;
pub use gate::Gate;
pub use gate_heads::GateRow;
pub use layer_norm::LayerNorm;
pub use match_rms::MatchRms;
pub use mix_heads::MixRow;
pub use norm::Norm;
pub use rope::Rotate;
pub use rotations::Rotation;
pub use route::RouteRow;
pub use scale::Scale;
pub use scale_columns::ScaleColumns;
pub use shift_columns::ShiftColumns;
pub use softcap::Softcap;
pub use sparsify::Sparsify;
pub use xielu::ApplyXielu;

pub(crate) use executor::{Executor, RowOrigin, StepRows};
pub(crate) use linear::{Epilogue, MAX_MATMULS, MatmulOperands, linear, pack_activations, prefetch};
pub(crate) use rotations::{RopeParams, RotationTable, StepRotations, rotation_tables};
pub(crate) use write::{LostValue, MAX_WRITES, WrittenBlocks, write};
