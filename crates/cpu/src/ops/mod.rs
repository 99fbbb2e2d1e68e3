//! The operators over all rows of a step: how each is cut into pieces for threads,
//! and the kernels that a piece runs.

mod activate;
mod add;
pub(crate) mod attend;
mod embed;
mod executor;
mod gate;
mod gather;
mod layer_norm;
pub(crate) mod linear;
mod norm;
mod pool;
mod rope;
mod rows;
mod scale;
mod softcap;
mod splice;
pub(crate) mod write;

pub use activate::Activate;
pub use add::Add;
pub use gate::Gate;
pub use layer_norm::LayerNorm;
pub use norm::Norm;
pub use rope::{Rotate, Rotation};
pub use scale::Scale;
pub use softcap::Softcap;

pub(crate) use attend::{AttentionOperands, attend};
pub(crate) use embed::embed;
pub(crate) use executor::{Executor, RowOrigin, StepRows};
pub(crate) use gather::gather;
pub(crate) use layer_norm::layer_norm;
pub(crate) use linear::{Epilogue, MAX_MATMULS, MatmulOperands, linear, pack_activations, prefetch};
pub(crate) use norm::norm;
pub(crate) use pool::pool;
pub(crate) use rope::{StepRotations, rope};
pub(crate) use rows::elementwise;
pub(crate) use splice::splice;
pub(crate) use write::{LostValue, MAX_WRITES, WrittenBlocks, write};
