//! Weights that are made of something else than a model's tensors.

use std::fmt;
use std::ops::Range;

use girih_tensor::{DType, Result, Shape};

use crate::weight_bytes::past_end;

/// Such a weight. Its debug form is a part of the identity of a model's weights.
pub(crate) trait MadeWeight: fmt::Debug + Send + Sync {
    /// The format in which it is read, and its shape.
    fn info(&self) -> (DType, Shape);

    /// Fills `into` with its bytes from `offset` on.
    ///
    /// # Errors
    /// When a file cannot be read, or a number exceeds the format.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Checks that its files have not changed since they were opened.
    ///
    /// # Errors
    /// When one was changed meanwhile.
    fn check_unchanged(&self) -> Result<()>;
}

/// Fills `into` with the bytes from `offset` on of a matrix that is made row by row. `make(rows, begun)` returns the bytes
/// of `rows`, which `into` overlaps; `begun` are those whose first byte lies in `into`.
///
/// # Errors
/// As `make`, or when `into` goes beyond the matrix.
pub(crate) fn read_rows(
    (dtype, shape): (DType, &Shape),
    offset: u64,
    into: &mut [u8],
    make: impl FnOnce(Range<usize>, Range<usize>) -> Result<Vec<u8>>,
) -> Result<()> {
    let row_bytes = dtype.matrix_bytes(1, shape.columns())?;
    let start = usize::try_from(offset).map_err(|_| past_end())?;
    let end = start.checked_add(into.len()).ok_or_else(past_end)?;
    let rows = start / row_bytes..end.div_ceil(row_bytes);
    if rows.end > shape.rows() {
        return Err(past_end());
    }
    let first = rows.start * row_bytes;
    let begun = start.div_ceil(row_bytes)..rows.end;
    let bytes = make(rows, begun)?;
    into.copy_from_slice(&bytes[start - first..end - first]);
    Ok(())
}
