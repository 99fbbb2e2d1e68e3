//! Weight formats, one file per format.
//!
//! A format is a [`BlockFormat`]: a fixed number of values in a fixed number of
//! bytes. Most blocks are consecutive values of one row; a block of several rows
//! (Q4NX) covers a tile of a matrix. Formats that girih also writes are [`Pack`].
//! `dtype.rs` has the only list of all formats.

mod block;
mod dense;
mod iq4_nl;
mod iq4_xs;
mod k;
mod levels;
mod mxfp4;
mod planes;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q4nx;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

pub use block::{BlockFormat, Pack};
pub(crate) use block::{pack_blocks, unpack_blocks};
pub use dense::{Bf16, F16, F32, I8, I32, I64, U8};
pub use iq4_nl::Iq4Nl;
pub use iq4_xs::Iq4Xs;
pub use levels::Levels;
pub use mxfp4::Mxfp4;
pub use q2_k::Q2K;
pub use q3_k::Q3K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::Q4K;
pub use q4nx::Q4nx;
pub(crate) use q4nx::{StoredGroup, fill_tile, group_of};
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5K;
pub use q6_k::Q6K;
pub use q8_0::Q8_0;
