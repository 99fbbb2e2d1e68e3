//! Matrices of IEBIN: integers with one scale for each row or for all, shown in a block format with the same numbers.
//!
//! ```text
//! int4  a row is ⌈columns / 2⌉ bytes: column 2j is the lower half of byte j, column 2j + 1 the upper one; code = q + 8
//! int8  a row is one signed byte for each column: q
//!       value = scale · q
//! ```
//! Codes of Q4_0 and Q8_0 mean the same, so a matrix whose rows are whole blocks and whose scales are of half precision is shown as
//! one of these, with the row's scale in each block, without rounding. Any other is shown as F32, each value rounded once for
//! the product.

use std::ops::Range;

use girih_tensor::{DType, Error, ErrorKind, Result, Shape};

use crate::container::{Container, MadeTensor, TensorInfo};
use crate::quote::quote;
use crate::scale_numbers::ScaleNumbers;

/// The values of a block of Q4_0 and of Q8_0.
const BLOCK: usize = 32;

/// The most columns of a matrix: a row is made as a whole. The largest of known models has 2^18.
const COLUMNS_MAX: usize = 1 << 24;

/// The stored bytes that are read at once, if a row has no more.
const BYTES_AT_ONCE: usize = 1 << 18;

/// The scales that are checked at once.
const SCALES_AT_ONCE: u64 = 1 << 16;

/// The bits of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeBits {
    Four,
    Eight,
}

impl CodeBits {
    /// The stored bytes of a row.
    fn row_bytes(self, columns: usize) -> usize {
        match self {
            CodeBits::Four => columns.div_ceil(2),
            CodeBits::Eight => columns,
        }
    }

    /// The stored bytes of a matrix.
    ///
    /// # Errors
    /// When they exceed the address space.
    pub fn stored_bytes(self, shape: &Shape) -> Result<u64> {
        let bytes = shape.rows().checked_mul(self.row_bytes(shape.columns()));
        let bytes = bytes
            .ok_or_else(|| Error::new(format!("has the shape {shape}, which exceeds the address space")))?;
        Ok(bytes as u64)
    }

    /// The block format with the same codes.
    fn block_format(self) -> DType {
        match self {
            CodeBits::Four => DType::Q4_0,
            CodeBits::Eight => DType::Q8_0,
        }
    }
}

/// A matrix of integers and scales.
#[derive(Clone, Debug)]
pub(crate) struct IebinMatrix {
    /// The name of the tensor, for errors.
    name: String,
    bits: CodeBits,
    codes: TensorInfo,
    /// One scale for each row, or one for all.
    scales: TensorInfo,
    /// The format in which it is shown.
    dtype: DType,
    shape: Shape,
}

impl IebinMatrix {
    /// A matrix of a container that has its codes and scales.
    ///
    /// # Errors
    /// When a scale is not finite or cannot be read, or rows are too long.
    pub fn new(
        container: &Container,
        name: &str,
        bits: CodeBits,
        (codes, scales): (TensorInfo, TensorInfo),
        shape: Shape,
    ) -> Result<IebinMatrix> {
        let columns = shape.columns();
        if columns > COLUMNS_MAX {
            return Err(Error::new(format!("has rows of {columns} values; the cap is {COLUMNS_MAX}")));
        }
        if shape.elements() == 0 {
            return Err(Error::new(format!("has the shape {shape}, which has no values")));
        }
        let fits = are_half(container, &scales)? && columns.is_multiple_of(BLOCK);
        let dtype = if fits { bits.block_format() } else { DType::F32 };
        dtype.bytes(&shape)?;
        Ok(IebinMatrix { name: name.to_owned(), bits, codes, scales, dtype, shape })
    }

    /// It as a tensor, without its shard.
    ///
    /// # Errors
    /// When it exceeds the address space.
    pub fn info(&self) -> Result<TensorInfo> {
        let bytes = self.dtype.bytes(&self.shape)? as u64;
        Ok(TensorInfo { dtype: self.dtype, shape: self.shape, shard: 0, offset: 0, bytes })
    }

    /// The bytes of some rows in the format in which they are shown.
    fn rows(&self, container: &Container, rows: Range<u64>) -> Result<Vec<u8>> {
        let stored = self.bits.row_bytes(self.shape.columns());
        let mut codes = vec![0; (rows.end - rows.start) as usize * stored];
        container.read(&self.codes, rows.start * stored as u64, &mut codes)?;
        let is_by_row = self.scales.shape.elements() == self.shape.rows();
        let scales = ScaleNumbers::read(container, &self.scales, if is_by_row { rows } else { 0..1 })?;
        let mut made = Vec::new();
        for (index, codes) in codes.chunks_exact(stored).enumerate() {
            self.put(codes, &scales, if is_by_row { index } else { 0 }, &mut made)?;
        }
        Ok(made)
    }

    /// Appends a row.
    fn put(&self, codes: &[u8], scales: &ScaleNumbers, scale: usize, made: &mut Vec<u8>) -> Result<()> {
        match (self.dtype, self.bits) {
            (DType::Q4_0, _) => {
                let scale = scales.half(scale)?;
                for codes in codes.chunks_exact(BLOCK / 2) {
                    made.extend(scale);
                    made.extend(halves(codes));
                }
            }
            (DType::Q8_0, _) => {
                let scale = scales.half(scale)?;
                for codes in codes.chunks_exact(BLOCK) {
                    made.extend(scale);
                    made.extend(codes);
                }
            }
            (_, bits) => {
                let scale = scales.values[scale];
                let code = |column: usize| match bits {
                    CodeBits::Four => f32::from(codes[column / 2] >> (4 * (column % 2)) & 15) - 8.0,
                    CodeBits::Eight => f32::from(codes[column].cast_signed()),
                };
                made.extend(
                    (0..self.shape.columns()).flat_map(|column| (scale * code(column)).to_le_bytes()),
                );
            }
        }
        Ok(())
    }
}

impl MadeTensor for IebinMatrix {
    fn read(&self, container: &Container, start: u64, into: &mut [u8]) -> Result<()> {
        let row = self.dtype.matrix_bytes(1, self.shape.columns())? as u64;
        let at_once = (BYTES_AT_ONCE / self.bits.row_bytes(self.shape.columns()).max(1)).max(1) as u64;
        let (mut at, mut rest) = (start, into);
        while !rest.is_empty() {
            let (first, skipped) = (at / row, (at % row) as usize);
            let last = (at + rest.len() as u64).div_ceil(row).min(first + at_once);
            let bytes = self.rows(container, first..last).map_err(|error| error.of(quote(&self.name)))?;
            let length = (bytes.len() - skipped).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            now.copy_from_slice(&bytes[skipped..skipped + length]);
            (at, rest) = (at + length as u64, later);
        }
        Ok(())
    }
}

/// The codes of a block in the order of Q4_0: value i in the lower half of byte i, value 16 + i in its upper half.
fn halves(codes: &[u8]) -> impl Iterator<Item = u8> {
    let code = |index: usize| codes[index / 2] >> (4 * (index % 2)) & 15;
    (0..BLOCK / 2).map(move |index| code(index) | code(BLOCK / 2 + index) << 4)
}

/// Whether half precision holds all of these scales.
fn are_half(container: &Container, scales: &TensorInfo) -> Result<bool> {
    let (count, mut all) = (scales.shape.elements() as u64, true);
    for first in (0..count).step_by(SCALES_AT_ONCE as usize) {
        let some = first..(first + SCALES_AT_ONCE).min(count);
        let numbers = ScaleNumbers::read(container, scales, some)?;
        if let Some(scale) = numbers.values.iter().find(|scale| !scale.is_finite()) {
            return Err(Error::with_kind(
                ErrorKind::Refused,
                format!("has the scale {scale}; it must be finite"),
            ));
        }
        all &= (0..numbers.values.len()).all(|index| numbers.is_half(index));
    }
    Ok(all)
}
