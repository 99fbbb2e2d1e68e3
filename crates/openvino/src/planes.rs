//! Matrices in block formats as OpenVINO reads them: planes of codes, zero points and scales.
//!
//! ```text
//! codes   [rows, groups, group]   four bits, the even column low, or bytes
//! zeros   [rows, groups, 1]       f32; in many formats one number for all
//! offsets [rows, groups, 1]       f32, in formats with zero points of groups
//! scales  [rows, groups, 1]       f32
//! value = (code − zero) · scale          matrices of products
//! value = code · scale + offset          tables, whose rows have the numbers of the format to the bit
//! ```

use girih_tensor::{CodeKind, DType, Shape, coded_group};

use crate::ir::Precision;

/// Columns of the groups that a format is read by.
const GROUP: usize = 32;

/// Twice the numbers of E2M1 (OCP Microscaling Formats 1.0, section 5.3.3), in order of their codes.
const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The levels of IQ4_NL, in order of their codes (`kvalues_iq4nl` of ggml).
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// What is taken from codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ZeroKind {
    /// Nothing.
    None,
    /// One number.
    Same(f32),
    /// A number of each group.
    Each,
}

/// The planes of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlaneFormat {
    dtype: DType,
    kind: CodeKind,
    pub codes: Precision,
    pub zeros: ZeroKind,
    /// Columns that share a scale.
    pub group: usize,
}

impl PlaneFormat {
    /// The planes of a block format; `None` if it is none.
    pub fn of(dtype: DType) -> Option<PlaneFormat> {
        let (kind, zeros, group) = match dtype {
            DType::Q4_0 => (CodeKind::FourLess8, ZeroKind::Same(8.0), 32),
            DType::Q4_1 | DType::Q4_K | DType::Q4NX => (CodeKind::Four, ZeroKind::Each, 32),
            DType::Q5_0 | DType::Q8_0 => (CodeKind::Byte, ZeroKind::Same(128.0), 32),
            DType::Q5_1 | DType::Q5_K => (CodeKind::Byte, ZeroKind::Each, 32),
            DType::Q2_K => (CodeKind::Four, ZeroKind::Each, 16),
            DType::Q3_K => (CodeKind::FourLess8, ZeroKind::Same(8.0), 16),
            DType::Q6_K => (CodeKind::Byte, ZeroKind::Same(128.0), 16),
            DType::IQ4_NL | DType::IQ4_XS => (CodeKind::Iq4, ZeroKind::None, 32),
            DType::MXFP4 => (CodeKind::E2m1, ZeroKind::None, 32),
            DType::F32 | DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::I64 => {
                return None;
            }
        };
        let codes = match kind {
            CodeKind::Four | CodeKind::FourLess8 => Precision::U4,
            CodeKind::Iq4 | CodeKind::E2m1 => Precision::I8,
            CodeKind::Byte | CodeKind::F32 | CodeKind::F16 | CodeKind::BF16 => Precision::U8,
        };
        Some(PlaneFormat { dtype, kind, codes, zeros, group })
    }

    /// The groups of a row.
    pub fn groups(&self, shape: Shape) -> usize {
        shape.columns() / self.group
    }

    /// The bytes of the codes of a matrix.
    pub fn code_bytes(&self, shape: Shape) -> usize {
        match self.codes {
            Precision::U4 => shape.elements() / 2,
            _ => shape.elements(),
        }
    }

    /// The bytes of one number for each group of a matrix.
    pub fn group_bytes(&self, shape: Shape) -> usize {
        (shape.rows() * self.groups(shape)).saturating_mul(size_of::<f32>())
    }

    /// Fills the planes from the bytes of a file: codes, zero points, offsets and scales. Those that a matrix does not have are
    /// empty.
    pub fn fill(&self, shape: Shape, bytes: &[u8], [codes, zeros, offsets, scales]: [&mut [u8]; 4]) {
        let (tile_rows, tile_columns) = self.dtype.tile();
        let (rows, columns, block_bytes) = (shape.rows(), shape.columns(), self.dtype.block_bytes());
        let blocks = columns / tile_columns;
        let code_bytes = self.code_bytes(shape) / (rows * columns / GROUP).max(1);
        let parts = GROUP / self.group;
        let mut codes = codes.chunks_exact_mut(code_bytes.max(1));
        let mut numbers_of =
            [zeros, offsets, scales].map(|plane| plane.chunks_exact_mut(size_of::<f32>() * parts));
        for row in 0..rows {
            for group in 0..columns / GROUP {
                let (block, within) = (group / (tile_columns / GROUP), group % (tile_columns / GROUP));
                let at = (row / tile_rows * blocks + block) * block_bytes;
                let coded = coded_group(self.dtype, &bytes[at..at + block_bytes], row % tile_rows, within);
                let mut numbers = self.numbers(coded.codes);
                let mut of_parts = [[0.0; 3]; 2];
                for (part, into) in of_parts.iter_mut().enumerate().take(parts) {
                    let (scale, offset) = (coded.scales[part], coded.offsets[part]);
                    let [zero, scale] =
                        self.zero(scale, offset, &mut numbers[part * self.group..][..self.group]);
                    *into = [zero, offset, scale];
                }
                let into = codes.next().expect("the planes have the matrix's groups");
                self.store(&numbers, into);
                for (index, plane) in numbers_of.iter_mut().enumerate() {
                    let places = plane.next().into_iter().flat_map(|plane| plane.as_chunks_mut::<4>().0);
                    places.zip(&of_parts).for_each(|(place, numbers)| *place = numbers[index].to_le_bytes());
                }
            }
        }
    }

    /// Codes as the plane has them.
    fn numbers(&self, codes: [u8; GROUP]) -> [u8; GROUP] {
        match (self.kind, self.zeros) {
            (CodeKind::Iq4, _) => codes.map(|code| IQ4[usize::from(code & 15)] as u8),
            (CodeKind::E2m1, _) => codes.map(|code| TWICE_E2M1[usize::from(code & 15)] as u8),
            (CodeKind::Byte, ZeroKind::Same(_)) => codes.map(|code| code ^ 0x80),
            _ => codes,
        }
    }

    /// The zero point and the scale of codes with an offset. Codes without a scale become 0, one from the zero point −1.
    fn zero(&self, scale: f32, offset: f32, codes: &mut [u8]) -> [f32; 2] {
        if self.zeros != ZeroKind::Each {
            return [0.0, scale];
        }
        let zero = -offset / scale;
        if zero.is_finite() {
            return [zero, scale];
        }
        codes.fill(0);
        [-1.0, offset]
    }

    fn store(&self, numbers: &[u8; GROUP], into: &mut [u8]) {
        if self.codes == Precision::U4 {
            let pairs = numbers.as_chunks::<2>().0;
            into.iter_mut().zip(pairs).for_each(|(byte, [even, odd])| *byte = even | odd << 4);
        } else {
            into.copy_from_slice(numbers);
        }
    }
}
