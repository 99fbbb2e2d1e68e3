//! Matrices in block formats as OpenVINO reads them: planes of codes, zero points and scales.
//!
//! ```text
//! codes   [rows, groups, group]   four bits, the even column low, or signed or unsigned bytes
//! zeros   [rows, groups, 1]       f32, of matrices in formats with an offset; else nothing, or 8 for all codes
//! offsets [rows, groups, 1]       f32, of tables in formats with an offset
//! scales  [rows, groups, 1]       f16 if the file's are, else f32
//! value = (code − zero) · scale          matrices of products
//! value = code · scale + offset          tables
//! ```
//! Values are those of the file to the bit, but for matrices in formats with an offset. There it becomes a zero point
//! `−offset / scale`, so that a value has three roundings of single precision, each of at most 2⁻²⁴ of the larger of the
//! offset and the product.

use std::num::NonZero;
use std::thread;

use girih_tensor::{CodeKind, DType, Shape, coded_group};

use crate::ir::Precision;

/// Columns of the groups that a format is read by.
const GROUP: usize = 32;

/// Twice the numbers of E2M1 (OCP Microscaling Formats 1.0, section 5.3.3), in order of their codes.
const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The levels of IQ4_NL, in order of their codes (`kvalues_iq4nl` of ggml).
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The smallest number of codes for which another thread is worth its start: some tenths of a millisecond.
const CODES_PER_THREAD: usize = 1 << 18;

/// What is taken from codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroKind {
    /// Nothing.
    None,
    /// 8, from codes of four bits.
    Eight,
    /// A number of each group.
    Each,
}

/// The planes of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaneFormat {
    dtype: DType,
    kind: CodeKind,
    pub codes: Precision,
    pub zeros: ZeroKind,
    pub scales: Precision,
    /// Columns that share a scale.
    pub group: usize,
}

/// The planes of some rows of a matrix, to be filled.
struct PlaneRows<'a> {
    first: usize,
    rows: usize,
    /// Codes, zero points, offsets and scales; those that the matrix does not have are empty.
    planes: [&'a mut [u8]; 4],
}

impl PlaneFormat {
    /// The planes of a block format; `None` if it is none.
    pub fn of(dtype: DType) -> Option<PlaneFormat> {
        let half = Precision::F16;
        let (kind, zeros, scales, group) = match dtype {
            DType::Q4_0 => (CodeKind::FourLess8, ZeroKind::Eight, half, 32),
            DType::Q4_1 | DType::Q4_K | DType::Q4NX => (CodeKind::Four, ZeroKind::Each, Precision::F32, 32),
            DType::Q5_0 | DType::Q8_0 => (CodeKind::Byte, ZeroKind::None, half, 32),
            DType::Q5_1 | DType::Q5_K => (CodeKind::Byte, ZeroKind::Each, Precision::F32, 32),
            DType::Q2_K => (CodeKind::Four, ZeroKind::Each, Precision::F32, 16),
            DType::Q3_K => (CodeKind::FourLess8, ZeroKind::Eight, Precision::F32, 16),
            DType::Q6_K => (CodeKind::Byte, ZeroKind::None, Precision::F32, 16),
            DType::IQ4_NL => (CodeKind::Iq4, ZeroKind::None, half, 32),
            DType::IQ4_XS => (CodeKind::Iq4, ZeroKind::None, Precision::F32, 32),
            DType::MXFP4 => (CodeKind::E2m1, ZeroKind::None, Precision::F32, 32),
            DType::F32 | DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::I64 => {
                return None;
            }
        };
        let codes = match (kind, zeros) {
            (CodeKind::Four | CodeKind::FourLess8, _) => Precision::U4,
            (CodeKind::Byte, ZeroKind::Each) => Precision::U8,
            _ => Precision::I8,
        };
        Some(PlaneFormat { dtype, kind, codes, zeros, scales, group })
    }

    /// Why a matrix of this shape has no planes; a clause.
    pub fn objection(&self, shape: Shape) -> Option<String> {
        let columns = shape.columns();
        (!columns.is_multiple_of(GROUP)).then(|| {
            let dtype = self.dtype;
            format!(
                "its rows of {columns} values in {dtype} are no whole groups of {GROUP}; use another format"
            )
        })
    }

    /// The groups of a row.
    pub fn groups(&self, shape: Shape) -> usize {
        shape.columns() / self.group
    }

    /// The bytes of the codes of a matrix.
    pub fn code_bytes(&self, shape: Shape) -> usize {
        shape.rows() * self.row_bytes(shape)[0]
    }

    /// The bytes of the zero points, or of the offsets, of a matrix.
    pub fn offset_bytes(&self, shape: Shape) -> usize {
        shape.rows().saturating_mul(self.row_bytes(shape)[1])
    }

    /// The bytes of the scales of a matrix.
    pub fn scale_bytes(&self, shape: Shape) -> usize {
        shape.rows().saturating_mul(self.row_bytes(shape)[2])
    }

    /// The bytes of codes, zero points or offsets, and scales of a row.
    fn row_bytes(&self, shape: Shape) -> [usize; 3] {
        let (columns, groups) = (shape.columns(), self.groups(shape));
        let codes = if self.codes == Precision::U4 { columns / 2 } else { columns };
        let zeros = if self.zeros == ZeroKind::Each { groups * size_of::<f32>() } else { 0 };
        [codes, zeros, groups * if self.scales == Precision::F16 { 2 } else { 4 }]
    }

    /// Fills the planes from the bytes of a file, by a thread of each processor: codes, zero points, offsets and scales. Those
    /// that a matrix does not have are empty.
    pub fn fill(&self, shape: Shape, bytes: &[u8], planes: [&mut [u8]; 4]) {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let useful = (shape.elements() / CODES_PER_THREAD).clamp(1, threads);
        let rows = shape.rows().div_ceil(useful).max(1);
        let [codes, offsets, scales] = self.row_bytes(shape).map(|bytes| (bytes * rows).max(1));
        let [mut codes, mut zeros, mut offsets, mut scales] =
            pair_up(planes, [codes, offsets, offsets, scales]).map(|(plane, each)| plane.chunks_mut(each));
        thread::scope(|scope| {
            for first in (0..shape.rows()).step_by(rows) {
                let planes = [&mut codes, &mut zeros, &mut offsets, &mut scales]
                    .map(|plane| plane.next().unwrap_or_default());
                let part = PlaneRows { first, rows: rows.min(shape.rows() - first), planes };
                scope.spawn(move || self.fill_rows(shape, bytes, part));
            }
        });
    }

    /// Fills the planes of some rows.
    fn fill_rows(&self, shape: Shape, bytes: &[u8], part: PlaneRows<'_>) {
        let (tile_rows, tile_columns) = self.dtype.tile();
        let block_bytes = self.dtype.block_bytes();
        let (blocks, groups) = (shape.columns().div_ceil(tile_columns), shape.columns() / GROUP);
        if self.dtype == DType::Q4_0 {
            let [codes, _, _, scales] = part.planes;
            let bytes = &bytes[part.first * blocks * block_bytes..][..part.rows * blocks * block_bytes];
            return fill_q4_0(bytes, codes, scales);
        }
        let [codes, offsets, scales] = self.row_bytes(shape).map(|bytes| (bytes / groups.max(1)).max(1));
        let mut planes = pair_up(part.planes, [codes, offsets, offsets, scales])
            .map(|(plane, each)| plane.chunks_exact_mut(each));
        for row in part.first..part.first + part.rows {
            for group in 0..groups {
                let (block, within) = (group / (tile_columns / GROUP), group % (tile_columns / GROUP));
                let at = (row / tile_rows * blocks + block) * block_bytes;
                let block = &bytes[at..at + block_bytes];
                let planes = planes.each_mut().map(|plane| plane.next().unwrap_or_default());
                self.fill_group(block, row % tile_rows, within, planes);
            }
        }
    }

    /// Fills the planes of 32 columns of a row.
    fn fill_group(
        &self,
        block: &[u8],
        row: usize,
        group: usize,
        [codes, zeros, offsets, scales]: [&mut [u8]; 4],
    ) {
        let coded = coded_group(self.dtype, block, row, group);
        let mut numbers = self.numbers(coded.codes);
        if self.scales == Precision::F16 {
            // The scale is stored as it is in the file, first of all.
            scales.copy_from_slice(&block[..2]);
        } else {
            let [mut zeros, mut offsets] =
                [zeros, offsets].map(|plane| plane.as_chunks_mut::<4>().0.iter_mut());
            for (part, place) in scales.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let own = &mut numbers[part * self.group..][..self.group];
                let (zero, scale) = self.zero_and_scale(coded.scales[part], coded.offsets[part], own);
                *place = scale.to_le_bytes();
                zeros.by_ref().take(1).for_each(|place| *place = zero.to_le_bytes());
                offsets.by_ref().take(1).for_each(|place| *place = coded.offsets[part].to_le_bytes());
            }
        }
        if self.codes == Precision::U4 {
            let pairs = numbers.as_chunks::<2>().0;
            codes.iter_mut().zip(pairs).for_each(|(byte, [even, odd])| *byte = even | odd << 4);
        } else {
            codes.copy_from_slice(&numbers);
        }
    }

    /// Codes as the plane has them.
    fn numbers(&self, codes: [u8; GROUP]) -> [u8; GROUP] {
        match self.kind {
            CodeKind::Iq4 => codes.map(|code| IQ4[usize::from(code & 15)] as u8),
            CodeKind::E2m1 => codes.map(|code| TWICE_E2M1[usize::from(code & 15)] as u8),
            _ => codes,
        }
    }

    /// The zero point and the scale of codes with an offset. Codes whose products do not count beside the offset become 0,
    /// one from the zero point −1.
    fn zero_and_scale(&self, scale: f32, offset: f32, codes: &mut [u8]) -> (f32, f32) {
        if self.zeros != ZeroKind::Each {
            return (0.0, scale);
        }
        let zero = -offset / scale;
        // Devices flush subnormal numbers.
        if zero.is_finite() && scale.is_normal() {
            return (zero, scale);
        }
        codes.fill(0);
        (-1.0, offset)
    }
}

/// Fills the planes of blocks of Q4_0, as [`PlaneFormat::fill_group`] does, in less time. For a group, it reads 18 bytes and writes 18.
fn fill_q4_0(blocks: &[u8], codes: &mut [u8], scales: &mut [u8]) {
    let planes = codes.as_chunks_mut::<16>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for ([low, high, nibbles @ ..], (codes, scale)) in blocks.as_chunks::<18>().0.iter().zip(planes) {
        *scale = [*low, *high];
        let [first, second] = [0, 8].map(|at| {
            let (half, _) = nibbles[at..].split_first_chunk::<8>().expect("a block has 16 bytes of codes");
            u64::from_le_bytes(*half)
        });
        // Byte `i` has column `i` below and column `16 + i` above.
        let columns = [first, second, first >> 4, second >> 4].map(joined_nibbles);
        codes.as_chunks_mut::<4>().0.iter_mut().zip(columns).for_each(|(place, codes)| *place = codes);
    }
}

/// The lower nibbles of eight bytes, two in a byte, the first one low.
fn joined_nibbles(bytes: u64) -> [u8; 4] {
    let pairs = bytes & 0x0f0f_0f0f_0f0f_0f0f;
    let pairs = (pairs | pairs >> 4) & 0x00ff_00ff_00ff_00ff;
    let pairs = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    ((pairs | pairs >> 16) as u32).to_le_bytes()
}

/// Planes with a number for each.
fn pair_up(planes: [&mut [u8]; 4], [codes, zeros, offsets, scales]: [usize; 4]) -> [(&mut [u8], usize); 4] {
    let [a, b, c, d] = planes;
    [(a, codes), (b, zeros), (c, offsets), (d, scales)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_q4_0_have_the_planes_of_their_groups() {
        let blocks: Vec<u8> = (0..3 * 18_u32).map(|index| (index * 89 % 251) as u8).collect();
        let format = PlaneFormat::of(DType::Q4_0).expect("Q4_0 has planes");
        let [mut codes, mut slow_codes] = [[0; 48]; 2];
        let [mut scales, mut slow_scales] = [[0; 6]; 2];
        fill_q4_0(&blocks, &mut codes, &mut scales);
        let planes = slow_codes.chunks_exact_mut(16).zip(slow_scales.chunks_exact_mut(2));
        for (block, (codes, scales)) in blocks.chunks_exact(18).zip(planes) {
            format.fill_group(block, 0, 0, [codes, &mut [], &mut [], scales]);
        }
        assert_eq!((codes, scales), (slow_codes, slow_scales));
        assert_eq!(
            (codes[0], codes[8]),
            (blocks[2] & 15 | blocks[3] << 4, blocks[2] >> 4 | blocks[3] & 0xf0)
        );
    }
}
