//! The operators over all rows of a step: how each is cut into pieces for threads,
//! and which kernels a piece calls.

pub(crate) mod attend;
mod executor;
pub(crate) mod linear;
mod rope;
mod rows;
mod short_conv;
pub(crate) mod write;

pub(crate) use attend::{AttentionOperands, attend};
pub(crate) use executor::{Executor, RowOrigin, StepRows};
pub(crate) use linear::{Epilogue, MAX_MATMULS, MatmulOperands, linear, pack_activations, prefetch};
pub(crate) use rope::{StepRotations, rope};
pub(crate) use rows::{elementwise, embed, gather, layer_norm, norm, pool, splice};
pub(crate) use short_conv::short_conv;
pub(crate) use write::{LostValue, MAX_WRITES, WrittenBlocks, write};
