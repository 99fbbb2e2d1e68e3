//! Some rows of a stored tensor, as a tensor of their own, and the order of rows in which llama.cpp stores heads.

use std::ops::Range;

use girih_file::{TensorInfo, quote};
use girih_tensor::{Error, Result};

/// Some rows of a tensor, as a tensor of its own.
pub(crate) fn rows_of(tensor: &str, info: &TensorInfo, rows: Range<usize>) -> Result<TensorInfo> {
    rows_in(info, rows).map_err(|error| {
        Error::new(format!("tensor {} has the shape {}, {error}", quote(tensor), info.shape))
    })
}

pub(crate) fn rows_in(info: &TensorInfo, rows: Range<usize>) -> Result<TensorInfo> {
    let all = info.shape.extents()[0] as u64;
    if info.dtype.tile().0 != 1 || rows.end as u64 > all || !info.bytes.is_multiple_of(all) {
        return Err(Error::new(format!("of which the rows {rows:?} cannot be read")));
    }
    let row = info.bytes / all;
    let shape = info.shape.with_outermost(rows.len());
    let (offset, bytes) = (info.offset + rows.start as u64 * row, rows.len() as u64 * row);
    Ok(TensorInfo { shape, offset, bytes, ..info.clone() })
}

/// The row to which llama.cpp's converter moves row `row` of a matrix of heads of
/// `size` rows: the halves of a head are interleaved.
pub fn interleaved_row(row: usize, size: usize) -> usize {
    let (head, within) = (row / size, row % size);
    let (half, i) = (within / (size / 2), within % (size / 2));
    head * size + 2 * i + half
}
