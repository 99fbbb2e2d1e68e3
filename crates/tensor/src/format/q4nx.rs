//! Q4NX: tiles of 32 rows × 256 columns, four bits, bf16 scales and minimums.
//!
//! A group is 32 neighbouring columns of one row. A tile has 8 groups for each of
//! its 32 rows, 256 in total, and `value = d · q + m` with q in 0..16 (Eq. 3 and
//! section 3.1.1 of the paper that names the format: "Q4NX, Quantized 4-bit NPU
//! eXpress"). The paper gives the sizes but not the order; girih's order is:
//!
//! ```text
//! byte 0..4096      q: 8 groups g of 512 bytes, each 8 lines j of 64 bytes,
//!                   each 16 lanes r of 4 bytes b
//! byte 4096..4608   d: 8 groups g of 32 bf16, rows 0..32
//! byte 4608..5120   m: 8 groups g of 32 bf16, rows 0..32
//!
//! line j of group g, at byte 512 g + 64 j:
//!          lane 0                lane 1                   lane 15
//!   +----+----+----+----+ +----+----+----+----+     +----+----+----+----+
//!   | b0   b1   b2   b3 | | b0   b1   b2   b3 | ... | b0   b1   b2   b3 |
//!   +----+----+----+----+ +----+----+----+----+     +----+----+----+----+
//!   low nibble  of lane r, byte b: row r,      column 32 g + 4 j + b
//!   high nibble of lane r, byte b: row 16 + r, column 32 g + 4 j + b
//! ```
//! One 64-byte load and one broadcast of four neighbouring inputs feed two four-way
//! dot products of 16 rows each, and the 32 scales (or minimums) of a group are one
//! 64-byte load. All loads are 64-byte aligned.
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
/// The bytes of the integers of one group, all rows.
const GROUP_BYTES: usize = 512;
/// The offset of the scales.
const SCALES_AT: usize = 4096;
/// The offset of the minimums.
const MINIMUMS_AT: usize = 4608;

impl BlockFormat for Q4nx {
    const ROWS: usize = 32;
    const COLUMNS: usize = 256;
    const BYTES: usize = 5120;

    fn unpack(block: &[u8], values: &mut [f32]) {
        for group in 0..GROUPS_PER_ROW {
            let scales = bf16_row(block, SCALES_AT, group);
            let minimums = bf16_row(block, MINIMUMS_AT, group);
            for row in 0..16 {
                let (low, high) = row_pair(block, group, row);
                for (row, q) in [(row, low), (16 + row, high)] {
                    let (scale, minimum) = (scales[row], minimums[row]);
                    let start = row * Self::COLUMNS + group * Q4NX_GROUP;
                    for (value, q) in values[start..start + Q4NX_GROUP].iter_mut().zip(q) {
                        *value = scale * f32::from(q) + minimum;
                    }
                }
            }
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let rows = |at| array::from_fn(|group| bf16_row(block, at, group));
        let scales: [_; GROUPS_PER_ROW] = rows(SCALES_AT);
        let minimums: [_; GROUPS_PER_ROW] = rows(MINIMUMS_AT);
        for row in 0..Self::ROWS {
            for (scales, minimums) in scales.iter().zip(&minimums) {
                each(Levels::steps(Q4NX_GROUP, minimums[row], scales[row], 15));
            }
        }
    }
}

impl Pack for Q4nx {
    fn pack(values: &[f32], block: &mut [u8]) {
        for group in 0..GROUPS_PER_ROW {
            for row in 0..16 {
                let low = pack_group(values, block, group, row);
                let high = pack_group(values, block, group, 16 + row);
                put_row_pair(block, group, row, &low, &high);
            }
        }
    }
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
    let at = 2 * (group * Q4nx::ROWS + row);
    block[SCALES_AT + at..][..2].copy_from_slice(&scale.to_le_bytes());
    block[MINIMUMS_AT + at..][..2].copy_from_slice(&minimum.to_le_bytes());

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

/// Reads the integers of one group in rows `row` and `16 + row`.
fn row_pair(block: &[u8], group: usize, row: usize) -> ([u8; Q4NX_GROUP], [u8; Q4NX_GROUP]) {
    let mut packed = [0; Q4NX_GROUP];
    let lines = block[group * GROUP_BYTES..][..GROUP_BYTES].chunks_exact(64);
    for (quad, line) in packed.chunks_exact_mut(4).zip(lines) {
        quad.copy_from_slice(&line[4 * row..4 * row + 4]);
    }
    (packed.map(|byte| byte & 15), packed.map(|byte| byte >> 4))
}

/// Stores the integers of one group in rows `row` and `16 + row`.
fn put_row_pair(block: &mut [u8], group: usize, row: usize, low: &[u8; Q4NX_GROUP], high: &[u8; Q4NX_GROUP]) {
    let lines = block[group * GROUP_BYTES..][..GROUP_BYTES].chunks_exact_mut(64);
    for (line, (low, high)) in lines.zip(low.chunks_exact(4).zip(high.chunks_exact(4))) {
        for (byte, (low, high)) in line[4 * row..4 * row + 4].iter_mut().zip(low.iter().zip(high)) {
            *byte = low | high << 4;
        }
    }
}
