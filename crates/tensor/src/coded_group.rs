//! The codes, scales and offsets of the blocks of each format, group by group of 32 values, for devices that
//! compute with codes.

use crate::dtype::DType;
use crate::format::{StoredGroup, group_of};

/// Values of a group, the largest that share a scale in a format.
const GROUP: usize = 32;

/// 32 values of a row: their codes, and for each 16 of them a scale and an offset. A value is
/// `scale · number(code) + offset`.
#[derive(Clone, Copy, Debug)]
pub struct CodedGroup {
    /// The codes; [`CodeKind`] says what they stand for.
    pub codes: [u8; GROUP],
    /// The scales of each half.
    pub scales: [f32; 2],
    /// The offsets of each half; 0 in formats without.
    pub offsets: [f32; 2],
}

/// What the codes of a format stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeKind {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bf16.
    BF16,
    /// Four bits, as they are.
    Four,
    /// Four bits, minus 8.
    FourLess8,
    /// Four bits that stand for a level of IQ4_NL.
    Iq4,
    /// Four bits that stand for twice a number of E2M1.
    E2m1,
    /// Signed bytes.
    Byte,
}

impl CodedGroup {
    /// Codes that share a scale and an offset.
    fn of(codes: [u8; GROUP], scale: f32, offset: f32) -> CodedGroup {
        CodedGroup { codes, scales: [scale; 2], offsets: [offset; 2] }
    }
}

/// The half precision number at these bytes.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    let bits = u32::from(bytes[at]) | u32::from(bytes[at + 1]) << 8;
    let (sign, exponent, fraction) = ((bits & 0x8000) << 16, bits >> 10 & 31, bits & 0x3ff);
    match exponent {
        // 2⁻²⁴ is the smallest one.
        0 => f32::from_bits(sign | (fraction as f32 * f32::from_bits(0x3380_0000)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// `BITS` bits of 32 values in planes of `packed.len()` values each, from value `first` on.
fn plane<const BITS: usize>(packed: &[u8], first: usize) -> [u8; GROUP] {
    let mask = (1 << BITS) - 1;
    std::array::from_fn(|index| {
        let value = first + index;
        packed[value % packed.len()] >> (BITS * (value / packed.len())) & mask
    })
}

/// The sums of codes and of higher bits.
fn joined(low: [u8; GROUP], high: [u8; GROUP], shift: u32) -> [u8; GROUP] {
    std::array::from_fn(|index| low[index] | high[index] << shift)
}

/// The 6-bit scales and minimums of Q4_K and Q5_K: `byte 4 + i` and so on, as ggml has them.
fn six_bits(head: &[u8], group: usize) -> [f32; 2] {
    let [scale, minimum] = if group < 4 {
        [head[4 + group] & 63, head[8 + group] & 63]
    } else {
        let (upper, low) = (group - 4, head[8 + group]);
        [head[4 + upper] >> 6 << 4 | low & 15, head[8 + upper] >> 6 << 4 | low >> 4]
    };
    [half_at(head, 0) * f32::from(scale), half_at(head, 2) * f32::from(minimum)]
}

/// The five-bit codes of Q5_0 and Q5_1: a word of fifth bits, then nibbles.
fn five_bits(bytes: &[u8]) -> [u8; GROUP] {
    let fifths = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    joined(plane::<4>(&bytes[4..20], 0), std::array::from_fn(|index| (fifths >> index) as u8 & 1), 4)
}

/// The six-bit scales of Q3_K.
fn three_bit_scale(packed: &[u8], index: usize) -> f32 {
    let low = packed[index % 8] >> (4 * (index / 8)) & 15;
    let high = packed[8 + index % 4] >> (2 * (index / 4)) & 3;
    f32::from(low | high << 4) - 32.0
}

/// Group `group` of a block; of a tile of Q4NX, that of row `row`.
///
/// # Panics
/// When the format has no groups.
pub fn coded_group(dtype: DType, block: &[u8], row: usize, group: usize) -> CodedGroup {
    let first = group * GROUP;
    match dtype {
        DType::Q4_0 => CodedGroup::of(plane::<4>(&block[2..18], 0), half_at(block, 0), 0.0),
        DType::Q4_1 => CodedGroup::of(plane::<4>(&block[4..20], 0), half_at(block, 0), half_at(block, 2)),
        DType::Q5_0 => {
            CodedGroup::of(five_bits(&block[2..]).map(|q| q.wrapping_sub(16)), half_at(block, 0), 0.0)
        }
        DType::Q5_1 => CodedGroup::of(five_bits(&block[4..]), half_at(block, 0), half_at(block, 2)),
        DType::Q8_0 => CodedGroup::of(std::array::from_fn(|index| block[2 + index]), half_at(block, 0), 0.0),
        DType::Q2_K => {
            let (d, least) = (half_at(block, 80), half_at(block, 82));
            let factors = [block[group * 2], block[group * 2 + 1]];
            CodedGroup {
                codes: plane::<2>(&block[16 + group / 4 * 32..][..32], first % 128),
                scales: factors.map(|factor| d * f32::from(factor & 15)),
                offsets: factors.map(|factor| -(least * f32::from(factor >> 4))),
            }
        }
        DType::Q3_K => {
            let d = half_at(block, 108);
            let low = plane::<2>(&block[32 + group / 4 * 32..][..32], first % 128);
            // The codes count from 4 on, those of the layout from 8 on.
            let codes = joined(low, plane::<1>(&block[..32], first), 2).map(|q| q + 4);
            let scales = [0, 1].map(|half| d * three_bit_scale(&block[96..108], group * 2 + half));
            CodedGroup { codes, scales, offsets: [0.0; 2] }
        }
        DType::Q4_K => {
            let [scale, minimum] = six_bits(block, group);
            CodedGroup::of(plane::<4>(&block[16 + group / 2 * 32..][..32], first % 64), scale, -minimum)
        }
        DType::Q5_K => {
            let [scale, minimum] = six_bits(block, group);
            let low = plane::<4>(&block[48 + group / 2 * 32..][..32], first % 64);
            CodedGroup::of(joined(low, plane::<1>(&block[16..48], first), 4), scale, -minimum)
        }
        DType::Q6_K => {
            let d = half_at(block, 208);
            let low = plane::<4>(&block[group / 4 * 64..][..64], first % 128);
            let high = plane::<2>(&block[128 + group / 4 * 32..][..32], first % 128);
            let codes = joined(low, high, 4).map(|q| q.wrapping_sub(32));
            let scales = [0, 1].map(|half| d * f32::from(block[192 + group * 2 + half] as i8));
            CodedGroup { codes, scales, offsets: [0.0; 2] }
        }
        DType::IQ4_NL => CodedGroup::of(plane::<4>(&block[2..18], 0), half_at(block, 0), 0.0),
        DType::IQ4_XS => {
            let uppers = u16::from_le_bytes([block[2], block[3]]);
            let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
            let factor = f32::from((uppers >> (2 * group)) as u8 & 3) * 16.0 + f32::from(low) - 32.0;
            CodedGroup::of(plane::<4>(&block[8 + group * 16..][..16], 0), half_at(block, 0) * factor, 0.0)
        }
        DType::MXFP4 => {
            // 2^(e − 128); the two smallest are subnormal.
            let scale = match block[0] {
                e @ (0 | 1) => f32::from_bits(0x0020_0000 << e),
                e => f32::from_bits(u32::from(e - 1) << 23),
            };
            CodedGroup::of(plane::<4>(&block[1..17], 0), scale, 0.0)
        }
        DType::Q4NX => {
            let StoredGroup { codes, scale, minimum } = group_of(block, row, group);
            CodedGroup::of(codes, scale, minimum)
        }
        DType::F32 | DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::I64 => {
            panic!("{dtype} has no groups")
        }
    }
}
