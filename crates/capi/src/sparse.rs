//! Block-sparse matrices of f32 that lie elsewhere: their checks, and the product with a vector. girih reads their files.

use std::ops::Range;

pub use girih::tools::iebs::{SparseError, SparseFault, SparseFile, SparseShape};

use crate::status::Fault;

impl From<SparseError> for Fault {
    fn from(error: SparseError) -> Fault {
        Fault::argument(error.sentence)
    }
}

/// A matrix whose parts lie elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct SparseView<'a> {
    /// Its shape.
    pub shape: SparseShape,
    /// Where the blocks of each row of blocks begin, and the end.
    pub row_ptr: &'a [u32],
    /// The column of each block.
    pub col_idx: &'a [u32],
    /// The values of each block, row by row.
    pub values: &'a [f32],
}

impl SparseView<'_> {
    /// Checks that the parts belong together: rows of blocks follow each other, and columns ascend.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self) -> Result<(), SparseError> {
        self.shape.check()?;
        let fault = |sentence: String| Err(SparseError::new(SparseFault::Format, sentence));
        let blocks = u32::try_from(self.col_idx.len());
        let lengths = (Some(self.row_ptr.len()), Some(self.values.len()), blocks);
        if lengths != (self.shape.row_ptr_len(), self.shape.value_count(), Ok(self.shape.blocks)) {
            return fault("the arrays of the matrix have other lengths than its shape says".to_owned());
        }
        self.shape.check_pattern(self.row_ptr, self.col_idx)
    }

    /// The blocks of a row of blocks.
    fn blocks_of(&self, row: usize) -> Range<usize> {
        self.row_ptr[row] as usize..self.row_ptr[row + 1] as usize
    }

    /// `y = W x + bias` of a checked matrix. Each sum begins with the bias, or 0, and adds the products in the order of
    /// the columns. `x` has a value for each column, `y` and `bias` one for each row.
    pub fn multiply(&self, x: &[f32], y: &mut [f32], bias: Option<&[f32]>) {
        let (height, width) = (self.shape.block_rows as usize, self.shape.block_cols as usize);
        for (row, y) in y.iter_mut().enumerate() {
            let mut sum = bias.map_or(0.0, |bias| bias[row]);
            for block in self.blocks_of(row / height) {
                let begin = self.col_idx[block] as usize * width;
                let values = &self.values[(block * height + row % height) * width..][..width];
                // The block may reach beyond the last column.
                sum = values.iter().zip(&x[begin..]).fold(sum, |sum, (value, x)| sum + value * x);
            }
            *y = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 rows and 5 columns in blocks of 2×2: blocks at (0, 0), (0, 2) and (1, 1), those at the edges reach beyond.
    #[test]
    fn a_product_is_that_of_the_dense_matrix() {
        let shape = SparseShape { rows: 3, cols: 5, block_rows: 2, block_cols: 2, blocks: 3 };
        let values = [1.0, 2.0, 0.0, 3.0, 4.0, 9.0, 5.0, 9.0, 6.0, 7.0, 9.0, 9.0];
        let view = SparseView { shape, row_ptr: &[0, 2, 3], col_idx: &[0, 2, 1], values: &values };
        view.check().unwrap();
        let mut y = [f32::NAN; 3];
        view.multiply(&[1.0, 10.0, 100.0, 1000.0, 10000.0], &mut y, Some(&[0.5, 0.0, 0.0]));
        // 1·1 + 2·10 + 4·10000 + 0.5; 3·10 + 5·10000; 6·100 + 7·1000.
        assert_eq!(y, [40021.5, 50030.0, 7600.0]);
        for wrong in [
            SparseView { row_ptr: &[0, 3], ..view },
            SparseView { values: &values[..8], ..view },
            SparseView { col_idx: &[2, 0, 1], ..view },
            SparseView { row_ptr: &[0, 4, 3], ..view },
        ] {
            assert_eq!(wrong.check().unwrap_err().kind, SparseFault::Format, "{wrong:?}");
        }
    }
}
