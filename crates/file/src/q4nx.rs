//! FastFlowLM's `model.q4nx`: safetensors whose matrices are tiles of Q4NX.
//!
//! ```text
//! NAME   I8     [tiles, 5120]   a matrix: tile row by tile row; the format's own file describes a tile
//! NAME   BF16   …               all other tensors
//! ```
//! (FastFlowLM/FLM_Q4NX_Converter at dd0993c: `_pack_q4nx` and `_export_q4nx_tensors` of `q4nx/model_converter.py`.) The file does
//! not state the rows and columns of a matrix. It is shown as a column of tiles, `[32 · tiles, 256]`, which has the same bytes;
//! what it is a matrix of follows from the model.

use girih_tensor::{DType, Result, Shape};

use crate::container::{HeaderContents, UnreadableTensor};
use crate::limits::FileLimits;
use crate::safetensors;
use crate::source::ReadAt;

/// The name of the file in its folder.
pub const Q4NX_FILE: &str = "model.q4nx";

/// The key in `__metadata__` with the architecture of a model that FastFlowLM has no converter for.
pub const OWN_Q4NX_FAMILY: &str = "girih.q4nx";

/// The `I8` shape that stores a matrix of Q4NX.
///
/// # Errors
/// When the matrix exceeds the address space.
pub fn stored_shape(matrix: &Shape) -> Result<Shape> {
    let tile = DType::Q4NX.block_bytes();
    Shape::new(&[DType::Q4NX.bytes(matrix)? / tile, tile])
}

/// Reads a header as [`safetensors::parse`] does, and shows matrices of tiles as such.
///
/// # Errors
/// Those of [`safetensors::parse`].
pub(super) fn parse(source: &dyn ReadAt, limits: &FileLimits) -> Result<HeaderContents> {
    let mut contents = safetensors::parse(source, limits)?;
    let mut others = Vec::new();
    for (name, info) in contents.tensors.iter_mut().filter(|(_, info)| info.dtype == DType::I8) {
        let (rows, columns) = DType::Q4NX.tile();
        match *info.shape.extents() {
            [tiles, bytes] if bytes == DType::Q4NX.block_bytes() => {
                // No overflow: a tile has more bytes than rows.
                (info.dtype, info.shape) = (DType::Q4NX, Shape::matrix(tiles * rows, columns));
            }
            _ => others.push((name.clone(), info.shape)),
        }
    }
    for (name, shape) in others {
        contents.tensors.remove(&name);
        let why = format!(
            "is I8 of the shape {shape}; of model.q4nx, girih reads tiles of 32x256 in the shape [tiles, 5120]"
        );
        contents.unreadable.insert(name, UnreadableTensor { shard: 0, why, words: None });
    }
    Ok(contents)
}
