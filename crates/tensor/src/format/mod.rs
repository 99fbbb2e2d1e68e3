//! Weight formats: how groups of values are stored, one file per format.
//!
//! A format is a [`Block`]: a fixed number of values in a fixed number of
//! bytes. Most blocks are a run of one row; a block of several rows (Q4NX)
//! covers a tile of a matrix. Formats that girih also writes are [`Pack`].
//! The list of all formats is in `dtype.rs`; nothing else enumerates them.

mod dense;
mod iq4_nl;
mod iq4_xs;
mod k;
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

pub use dense::{Bf16, F16, F32, I8, I32, U8};
pub use iq4_nl::Iq4Nl;
pub use iq4_xs::Iq4Xs;
pub use mxfp4::Mxfp4;
pub use q2_k::Q2K;
pub use q3_k::Q3K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::Q4K;
pub use q4nx::Q4nx;
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5K;
pub use q6_k::Q6K;
pub use q8_0::Q8_0;

/// A storage format: `ROWS` × `COLUMNS` values in `BYTES` bytes, little-endian.
pub trait Block {
    /// Rows of a matrix that one block covers.
    const ROWS: usize = 1;
    /// Consecutive values of a row that one block covers.
    const COLUMNS: usize;
    /// The block's size in bytes.
    const BYTES: usize;

    /// Decodes one block into `ROWS` × `COLUMNS` values, row after row.
    ///
    /// # Panics
    /// When a slice has another length than the constants say.
    fn unpack(block: &[u8], values: &mut [f32]);
}

/// A storage format that girih writes.
///
/// Values must be finite and within the reach of the format's scale; others
/// are encoded without a panic, but as what is not defined.
pub trait Pack: Block {
    /// Encodes `ROWS` × `COLUMNS` values into one block.
    ///
    /// # Panics
    /// When a slice has another length than the constants say.
    fn pack(values: &[f32], block: &mut [u8]);
}

/// Decodes consecutive blocks of one row; both lengths are whole blocks.
pub(crate) fn unpack_blocks<B: Block>(bytes: &[u8], values: &mut [f32]) {
    let blocks = bytes.chunks_exact(B::BYTES).zip(values.chunks_exact_mut(B::ROWS * B::COLUMNS));
    for (block, values) in blocks {
        B::unpack(block, values);
    }
}

/// Encodes consecutive blocks of one row; both lengths are whole blocks.
pub(crate) fn pack_blocks<B: Pack>(values: &[f32], bytes: &mut [u8]) {
    let blocks = values.chunks_exact(B::ROWS * B::COLUMNS).zip(bytes.chunks_exact_mut(B::BYTES));
    for (values, block) in blocks {
        B::pack(values, block);
    }
}

/// The half-precision number at `bytes[at..at + 2]`.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Stores `value` as half precision, rounded to nearest even.
pub(crate) fn put_f16(bytes: &mut [u8], at: usize, value: f32) {
    bytes[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// The value of largest magnitude, with its sign; the first of several.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |extreme: f32, &v| if v.abs() > extreme.abs() { v } else { extreme })
}

/// The smallest and the largest value.
fn range(values: &[f32]) -> (f32, f32) {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (least, greatest)
}

/// `1 / scale`, or 0 where all values are 0 and so is their scale.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
