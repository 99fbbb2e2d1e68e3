//! The traits of a block format, and arithmetic that several formats share.

use super::levels::Levels;

/// A storage format: `ROWS` × `COLUMNS` values in `BYTES` bytes, little-endian.
pub trait BlockFormat {
    /// Rows of a matrix that one block covers.
    const ROWS: usize = 1;
    /// Consecutive values of a row that one block covers.
    const COLUMNS: usize;
    /// The block's size in bytes.
    const BYTES: usize;

    /// Decodes one block into `ROWS` × `COLUMNS` values, row after row.
    ///
    /// # Panics
    /// When a slice does not have the length that the constants give.
    fn unpack(block: &[u8], values: &mut [f32]);

    /// Calls `each` with the levels of each group of values that share a scale, in order; plain
    /// floats and integers have none.
    ///
    /// # Panics
    /// When the slice does not have the length that the constants give.
    fn levels(block: &[u8], each: &mut dyn FnMut(Levels));
}

/// A storage format that girih writes.
///
/// Values must be finite and within the range of the format's scale. Other values
/// do not panic; their encoding is unspecified.
pub trait Pack: BlockFormat {
    /// Encodes `ROWS` × `COLUMNS` values into one block.
    ///
    /// # Panics
    /// When a slice does not have the length that the constants give.
    fn pack(values: &[f32], block: &mut [u8]);
}

/// Decodes consecutive blocks of one row; both lengths are whole blocks.
pub(crate) fn unpack_blocks<B: BlockFormat>(bytes: &[u8], values: &mut [f32]) {
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

/// Reads the half-precision number at `bytes[at..at + 2]`.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Stores `value` as half precision, rounded to nearest even.
pub(crate) fn put_f16(bytes: &mut [u8], at: usize, value: f32) {
    bytes[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// Returns the value of largest magnitude, with its sign; the first one if
/// several are equal.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |extreme: f32, &v| if v.abs() > extreme.abs() { v } else { extreme })
}

/// Returns the smallest and the largest value.
pub(super) fn range(values: &[f32]) -> (f32, f32) {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (least, greatest)
}

/// Returns `1 / scale`, or 0 if the scale is 0 because all values are 0.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
