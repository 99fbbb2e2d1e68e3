//! Q4NX tensors inside safetensors files.
//!
//! safetensors has no type for Q4NX, so such a tensor is stored as `U8` with the
//! shape `[⌈N/32⌉, ⌈K/256⌉, 5120]`, one block per tile. The padding hides the
//! matrix's shape, so `__metadata__` has it: `"girih.q4nx.NAME": "[N, K]"`.

use std::collections::BTreeMap;

use girih_tensor::{DType, Error, Result, Shape};

use crate::container::{TensorInfo, shape};
use crate::metadata::Metadata;
use crate::quote::quote;

/// The prefix of the keys of shapes in `__metadata__`.
const SHAPE_KEY_PREFIX: &str = "girih.q4nx.";

/// The `U8` shape that stores a Q4NX matrix of `shape`.
pub fn stored_shape(shape: &Shape) -> Result<Shape> {
    let dtype = DType::Q4NX;
    let (rows, columns) = dtype.tile();
    dtype.bytes(shape)?; // refuses overflow
    Shape::new(&[shape.rows().div_ceil(rows), shape.columns().div_ceil(columns), dtype.block_bytes()])
}

/// The `__metadata__` pair of a Q4NX matrix.
pub fn pair(name: &str, shape: &Shape) -> (String, String) {
    (format!("{SHAPE_KEY_PREFIX}{name}"), shape.to_string())
}

/// Whether a key of `__metadata__` is that of a Q4NX matrix's shape.
pub fn is_pair(key: &str) -> bool {
    key.starts_with(SHAPE_KEY_PREFIX)
}

/// Sets the format and shape of the tensors that `metadata` marks as Q4NX.
pub(super) fn reveal(metadata: &Metadata, tensors: &mut BTreeMap<String, TensorInfo>) -> Result<()> {
    for (key, _) in metadata.iter() {
        let Some(name) = key.strip_prefix(SHAPE_KEY_PREFIX) else { continue };
        let of_key = |error: Error| error.of(format!("key {}", quote(key)));
        let text = metadata.require::<&str>(key)?;
        let info = tensors
            .get_mut(name)
            .ok_or_else(|| of_key(Error::new("names a tensor that the file does not have")))?;
        let extents: [u64; 2] = serde_json::from_str(text)
            .map_err(|_| of_key(Error::new(format!("is {}; [rows, columns] is needed", quote(text)))))?;
        let matrix = shape(&extents).map_err(of_key)?;
        let stored = stored_shape(&matrix).map_err(of_key)?;
        if extents.contains(&0) || info.dtype != DType::U8 || info.shape != stored {
            let (dtype, held) = (info.dtype, info.shape);
            return Err(of_key(Error::new(format!(
                "{matrix} of q4nx is stored as u8 {stored}, but the tensor is {dtype} {held}"
            ))));
        }
        (info.dtype, info.shape) = (DType::Q4NX, matrix);
    }
    Ok(())
}
