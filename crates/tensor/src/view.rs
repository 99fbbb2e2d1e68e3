//! Borrowed matrices: bytes with a format and a shape, checked once.

use std::ops::Range;

use crate::{DType, Error};

/// A matrix of `rows` × `columns` values, stored as `dtype` in borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    dtype: DType,
    rows: usize,
    columns: usize,
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Returns a view of `bytes`.
    ///
    /// # Errors
    /// When the number of bytes does not match the format and the sizes.
    pub fn new(dtype: DType, rows: usize, columns: usize, bytes: &'a [u8]) -> Result<View<'a>, Error> {
        let need = dtype.matrix_bytes(rows, columns)?;
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!(
                "{rows} x {columns} values of {dtype} need {need} bytes, not {have}"
            )));
        }
        Ok(View { dtype, rows, columns, bytes })
    }

    /// The storage format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of values in a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Decodes `rows` into `values`, row after row, without padding.
    ///
    /// # Panics
    /// When the range exceeds the matrix, or `values` has the wrong length.
    pub fn unpack_rows(&self, rows: Range<usize>, values: &mut [f32]) {
        assert!(rows.end <= self.rows, "rows {rows:?} of a matrix of {}", self.rows);
        assert_eq!(values.len(), rows.len() * self.columns, "one value per cell");
        let (tile_rows, _) = self.dtype.tile();
        if tile_rows == 1 {
            let row_bytes = self.bytes.len() / self.rows.max(1);
            self.dtype.unpack(&self.bytes[rows.start * row_bytes..rows.end * row_bytes], values);
            return;
        }
        self.unpack_tiles(rows, values);
    }

    /// Decodes rows of a format with two-dimensional blocks, each block once.
    fn unpack_tiles(&self, rows: Range<usize>, values: &mut [f32]) {
        let (tile_rows, tile_columns) = self.dtype.tile();
        let across = self.columns.div_ceil(tile_columns);
        let bands = rows.start / tile_rows..rows.end.div_ceil(tile_rows);
        let band_bytes = across * self.dtype.block_bytes();
        let blocks = &self.bytes[bands.start * band_bytes..bands.end * band_bytes];
        let mut tile = vec![0.0; tile_rows * tile_columns];
        for (index, block) in blocks.chunks_exact(self.dtype.block_bytes()).enumerate() {
            self.dtype.unpack(block, &mut tile);
            let top = (bands.start + index / across) * tile_rows;
            let left = index % across * tile_columns;
            let width = tile_columns.min(self.columns - left);
            for row in rows.start.max(top)..rows.end.min(top + tile_rows) {
                let to = (row - rows.start) * self.columns + left;
                let from = (row - top) * tile_columns;
                values[to..to + width].copy_from_slice(&tile[from..from + width]);
            }
        }
    }
}
