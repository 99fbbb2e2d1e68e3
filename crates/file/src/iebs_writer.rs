//! Writes block-sparse matrices of f32; `iebs.rs` describes the file.

use std::path::Path;

use girih_tensor::{Error, Result};

use crate::iebs::SparseShape;
use crate::sparse_blocks::{SparseLayout, list};
use crate::staged::folder_of;
use crate::writer::{ContainerWriter, TensorSlot};

/// The name under which the values of the blocks are appended.
pub const IEBS_VALUES: &str = "values";

impl ContainerWriter {
    /// Starts a file of a matrix of f32: `present` has the columns of the blocks of each row of blocks, whose values must be
    /// appended as [`IEBS_VALUES`].
    ///
    /// # Errors
    /// When a size exceeds 32 bits, or the file cannot be created.
    pub fn iebs(path: &Path, layout: &SparseLayout, present: &[Vec<u32>]) -> Result<ContainerWriter> {
        let named = |error: Error| error.of(path.display());
        let list = list(present).map_err(named)?;
        let (shape, [height, width]) = (layout.shape(), layout.block());
        let blocks = present.iter().map(Vec::len).sum::<usize>();
        let size = |size: usize| {
            u32::try_from(size)
                .map_err(|_| named(Error::new(format!("has the size {size}; 32 bits hold less"))))
        };
        let shape = SparseShape {
            rows: size(shape.rows())?,
            cols: size(shape.columns())?,
            block_rows: size(height)?,
            block_cols: size(width)?,
            blocks: size(blocks)?,
        };
        let bytes = (blocks as u64).checked_mul(layout.block_bytes() as u64);
        let bytes = bytes.ok_or_else(|| named(Error::new("has more values than 64 bits can count")))?;
        let slot = TensorSlot { name: IEBS_VALUES.to_owned(), bytes, padding: 0 };
        ContainerWriter::start(path, folder_of(path), &[shape.header(), list].concat(), vec![slot])
    }
}
