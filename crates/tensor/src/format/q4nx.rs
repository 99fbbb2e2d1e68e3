//! Q4NX: tiles of 32 rows × 256 columns, four bits, bf16 scales and minimums.
//!
//! A group is 32 neighbouring columns of one row. A tile has 8 groups for each of its 32 rows, 256 in total, and
//! `value = d · q + m` with q in 0..16 (Eq. 3 and section 3.1.1 of the paper that names the format: "Q4NX, Quantized 4-bit
//! NPU eXpress"). The order of the bytes is that of FastFlowLM's `model.q4nx`, as its converter writes it
//! (FastFlowLM/FLM_Q4NX_Converter at dd0993c, `_pack_q4nx` of `q4nx/model_converter.py`, with 16 rows side by side):
//!
//! ```text
//! byte 0..512       d: 8 groups of 32 bf16, rows 0..32
//! byte 512..1024    m: 8 groups of 32 bf16, rows 0..32
//! byte 1024..5120   q: 2 halves h of 16 rows, each 256 columns of 8 bytes p
//!                   low nibble of byte p: row 16 h + 2 p; high nibble: row 16 h + 2 p + 1
//! ```
//! A tile that the converter makes of Q4_0 has only scales: its minimums are all zero, bit for bit, and its integers are
//! -8..8 in two's complement (`unpack_q4_0` of `q4nx/gguf_tensor.py`). Nothing else in the file tells such tiles from
//! others, so all zeros mean this here. Packing never writes it: where all minimums are zero and a value is not, they are
//! stored as -0.
//!
//! Packing rounds `m` down to bf16, computes `d` from the remaining range, rounded
//! to nearest, and chooses integers with the stored numbers. So no value lies below
//! the levels, a value above them exceeds them by less than 15 · 2^−8 · d, and every
//! other value is within half a step, d / 2, of a level (while d is a normal number).
//! A group of zeros decodes to exactly 0. As `d` has 8 bits and `q` has 4, `d · q` is
//! exact in f32, so a fused multiply-add decodes to the same value.

use std::array;

use half::bf16;

use super::block::{BlockFormat, Pack, range};
use super::levels::Levels;

/// A tile of 32 × 256 four-bit integers, with a scale and a minimum per 32 values: 5
/// bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q4nx;

/// The number of columns of a group.
const Q4NX_GROUP: usize = 32;
/// The number of groups of a row.
const GROUPS_PER_ROW: usize = 8;
/// The offset of the minimums; the scales are before them.
const MINIMUMS_AT: usize = 512;
/// The offset of the integers.
const INTEGERS_AT: usize = 1024;
/// The pairs of rows that share bytes.
const PAIRS: usize = 16;
/// The bytes of a column of a half: its pairs.
const COLUMN_BYTES: usize = PAIRS / 2;
/// The bytes of a half.
const HALF_BYTES: usize = 256 * COLUMN_BYTES;

impl BlockFormat for Q4nx {
    const ROWS: usize = 32;
    const COLUMNS: usize = 256;
    const BYTES: usize = 5120;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let zero = zero_of(block);
        for group in 0..GROUPS_PER_ROW {
            let scales = bf16_row(block, 0, group);
            let minimums = bf16_row(block, MINIMUMS_AT, group);
            for pair in 0..PAIRS {
                for (row, q) in (2 * pair..).zip(row_pair(block, zero, group, pair)) {
                    let (scale, minimum) = (scales[row], minimums[row]);
                    let start = row * Self::COLUMNS + group * Q4NX_GROUP;
                    for (value, q) in values[start..start + Q4NX_GROUP].iter_mut().zip(q) {
                        *value = scale * (f32::from(q) - f32::from(zero)) + minimum;
                    }
                }
            }
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let rows = |at| array::from_fn(|group| bf16_row(block, at, group));
        let scales: [_; GROUPS_PER_ROW] = rows(0);
        let minimums: [_; GROUPS_PER_ROW] = rows(MINIMUMS_AT);
        let zero = f32::from(zero_of(block));
        for row in 0..Self::ROWS {
            for (scales, minimums) in scales.iter().zip(&minimums) {
                each(Levels::steps(Q4NX_GROUP, minimums[row] - zero * scales[row], scales[row], 15));
            }
        }
    }
}

impl Pack for Q4nx {
    fn pack(values: &[f32], block: &mut [u8]) {
        for group in 0..GROUPS_PER_ROW {
            for pair in 0..PAIRS {
                let codes = [2 * pair, 2 * pair + 1].map(|row| pack_group(values, block, group, row));
                put_row_pair(block, group, pair, &codes);
            }
        }
        keep_unsigned(block);
    }
}

/// The integers and factors of a group of one row, to be stored as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoredGroup {
    /// Four bits each.
    pub codes: [u8; Q4NX_GROUP],
    pub scale: f32,
    pub minimum: f32,
}

/// Fills a tile with the groups that `of(row, group)` returns. Scales and minimums are rounded to the nearest bf16.
pub(crate) fn fill_tile(is_signed: bool, of: impl Fn(usize, usize) -> StoredGroup, block: &mut [u8]) {
    for group in 0..GROUPS_PER_ROW {
        for pair in 0..PAIRS {
            let rows = [2 * pair, 2 * pair + 1];
            let both = rows.map(|row| of(row, group));
            for (row, StoredGroup { scale, minimum, .. }) in rows.into_iter().zip(both) {
                put_factors(block, group, row, [bf16::from_f32(scale), bf16::from_f32(minimum)]);
            }
            put_row_pair(block, group, pair, &both.map(|group| group.codes));
        }
    }
    if !is_signed {
        keep_unsigned(block);
    }
}

/// What is taken from each integer, after those in two's complement have become 0..16: 8 in a tile without minimums.
fn zero_of(block: &[u8]) -> u8 {
    if block[MINIMUMS_AT..INTEGERS_AT].iter().all(|&byte| byte == 0) { 8 } else { 0 }
}

/// Stores minimums that are all zero as -0, unless all integers are zero: else they would be in two's complement.
fn keep_unsigned(block: &mut [u8]) {
    if zero_of(block) != 0 && block[INTEGERS_AT..].iter().any(|&byte| byte != 0) {
        block[MINIMUMS_AT..INTEGERS_AT].as_chunks_mut().0.fill(bf16::NEG_ZERO.to_le_bytes());
    }
}

/// The integers from 0 on of a group of a row, its scale and its offset.
pub(crate) fn group_of(block: &[u8], row: usize, group: usize) -> StoredGroup {
    let zero = zero_of(block);
    let codes = row_pair(block, zero, group, row / 2)[row % 2];
    let [scale, minimum] = [0, MINIMUMS_AT].map(|table| bf16_row(block, table, group)[row]);
    StoredGroup { codes, scale, minimum: minimum - f32::from(zero) * scale }
}

/// Stores the scale and the minimum of a group and returns its integers.
fn pack_group(values: &[f32], block: &mut [u8], group: usize, row: usize) -> [u8; Q4NX_GROUP] {
    let start = row * Q4nx::COLUMNS + group * Q4NX_GROUP;
    let values = &values[start..start + Q4NX_GROUP];
    let (least, greatest) = range(values);
    let minimum = bf16_below(least);
    // In f64, because the range of finite values may overflow f32.
    let steps = (f64::from(greatest) - minimum.to_f64()) / 15.0;
    let scale = bf16::from_f32(steps as f32);
    put_factors(block, group, row, [scale, minimum]);
    let (scale, minimum) = (scale.to_f64(), minimum.to_f64());
    let mut q = [0; Q4NX_GROUP];
    if scale != 0.0 {
        for (q, value) in q.iter_mut().zip(values) {
            *q = (((f64::from(*value) - minimum) / scale + 0.5) as u8).min(15);
        }
    }
    q
}

/// Returns the largest bf16 that is not above `value`.
fn bf16_below(value: f32) -> bf16 {
    let bits = (value.to_bits() >> 16) as u16;
    let truncated = bf16::from_bits(bits);
    // Truncation rounds towards zero, which is up for negative values.
    if truncated.to_f32() > value { bf16::from_bits(bits + 1) } else { truncated }
}

/// Reads the scales or minimums of one group, all rows.
fn bf16_row(block: &[u8], table: usize, group: usize) -> [f32; Q4nx::ROWS] {
    let bytes = &block[table + group * 2 * Q4nx::ROWS..][..2 * Q4nx::ROWS];
    array::from_fn(|row| bf16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]).to_f32())
}

/// Stores the scale and the minimum of a group of a row.
fn put_factors(block: &mut [u8], group: usize, row: usize, [scale, minimum]: [bf16; 2]) {
    let at = 2 * (group * Q4nx::ROWS + row);
    block[at..][..2].copy_from_slice(&scale.to_le_bytes());
    block[MINIMUMS_AT + at..][..2].copy_from_slice(&minimum.to_le_bytes());
}

/// The offset of the first byte of a group in a pair of rows; those of further columns follow at distances of `COLUMN_BYTES`.
fn pair_at(group: usize, pair: usize) -> usize {
    let column = group * Q4NX_GROUP * COLUMN_BYTES;
    INTEGERS_AT + pair / COLUMN_BYTES * HALF_BYTES + column + pair % COLUMN_BYTES
}

/// Reads the integers of a group in the rows `2 * pair` and `2 * pair + 1` of a tile with this [`zero_of`].
fn row_pair(block: &[u8], zero: u8, group: usize, pair: usize) -> [[u8; Q4NX_GROUP]; 2] {
    let start = pair_at(group, pair);
    let bytes: [u8; Q4NX_GROUP] = array::from_fn(|column| block[start + column * COLUMN_BYTES]);
    // Adding 8 to a number of four bits in two's complement flips its highest bit.
    [bytes.map(|byte| byte & 15 ^ zero), bytes.map(|byte| byte >> 4 ^ zero)]
}

/// Stores the integers of a group in the rows `2 * pair` and `2 * pair + 1`.
fn put_row_pair(block: &mut [u8], group: usize, pair: usize, [even, odd]: &[[u8; Q4NX_GROUP]; 2]) {
    let bytes = block[pair_at(group, pair)..].iter_mut().step_by(COLUMN_BYTES);
    for (byte, (even, odd)) in bytes.zip(even.iter().zip(odd)) {
        *byte = even | odd << 4;
    }
}
