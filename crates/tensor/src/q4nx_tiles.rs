//! Tiles of Q4NX with the integers of Q4_0 and Q4_1.

use crate::coded_group::coded_group;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::{StoredGroup, fill_tile};

/// A matrix of Q4_0 or Q4_1 as tiles of Q4NX, as FastFlowLM's converter makes them: with the same integers, and with scales and
/// minimums rounded from half precision to the nearest bf16. Tiles of Q4_0 have no minimums.
///
/// # Errors
/// When the format is another one, or the bytes are not those of such a matrix.
pub fn q4nx_tiles(dtype: DType, [rows, columns]: [usize; 2], bytes: &[u8]) -> Result<Vec<u8>> {
    if !matches!(dtype, DType::Q4_0 | DType::Q4_1) {
        return Err(Error::new(format!("{dtype} has other integers than Q4NX; Q4_0 and Q4_1 have the same")));
    }
    let need = dtype.matrix_bytes(rows, columns)?;
    if bytes.len() != need {
        return Err(Error::new(format!(
            "{} bytes were given; {rows} x {columns} of {dtype} takes {need}",
            bytes.len()
        )));
    }
    let (size, (height, width)) = (dtype.block_bytes(), DType::Q4NX.tile());
    let (blocks, in_tile) = (columns / dtype.tile().1, width / dtype.tile().1);
    let is_signed = dtype == DType::Q4_0;
    let stored = |row: usize, block: usize| {
        if row >= rows || block >= blocks {
            return StoredGroup::default();
        }
        let group = coded_group(dtype, &bytes[(row * blocks + block) * size..][..size], 0, 0);
        // A code of Q4_0 is 8 more than its number.
        let codes = if is_signed { group.codes.map(|code| code ^ 8) } else { group.codes };
        StoredGroup { codes, scale: group.scales[0], minimum: group.offsets[0] }
    };
    let mut tiles = vec![0; DType::Q4NX.matrix_bytes(rows, columns)?];
    let tile_columns = columns.div_ceil(width).max(1);
    for (index, tile) in tiles.chunks_exact_mut(DType::Q4NX.block_bytes()).enumerate() {
        let (first_row, first_block) = (index / tile_columns * height, index % tile_columns * in_tile);
        fill_tile(is_signed, |row, group| stored(first_row + row, first_block + group), tile);
    }
    Ok(tiles)
}
