//! Writes safetensors headers; `safetensors.rs` describes the layout.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use girih_tensor::{Error, Result};
use serde_json::json;

use crate::quote::quote;
use crate::safetensors::{METADATA, TYPES};
use crate::writer::{NewTensor, Part, Writer};

impl Writer {
    /// Starts a safetensors file at `path`; the tensors must be
    /// [appended](Writer::append) in the [order](Writer::order) of the
    /// reference implementation: by type, widest first, then by name.
    ///
    /// # Errors
    /// When safetensors has no type for a tensor's format (store such blocks
    /// as `u8`), or when the file cannot be created.
    pub fn safetensors(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        tensors: &[NewTensor],
    ) -> Result<Writer> {
        let (header, parts) = header(metadata, tensors).map_err(|error| error.of(path.display()))?;
        Writer::start(path, &header, parts)
    }
}

fn header(metadata: &BTreeMap<String, String>, tensors: &[NewTensor]) -> Result<(Vec<u8>, Vec<Part>)> {
    let mut ranked = tensors.iter().map(|tensor| Ok((rank(tensor)?, tensor))).collect::<Result<Vec<_>>>()?;
    ranked.sort_by_key(|(rank, tensor)| (Reverse(*rank), &tensor.name));
    let mut json = serde_json::Map::new();
    if !metadata.is_empty() {
        json.insert(METADATA.to_owned(), json!(metadata));
    }
    let mut parts = Vec::new();
    let mut offset = 0u64;
    for (rank, tensor) in ranked {
        let bytes = tensor.bytes()?;
        let end = offset.checked_add(bytes);
        let end = end.ok_or_else(|| Error::new("the total size of the tensors overflows 64 bits"))?;
        let (name, extents) = (TYPES[rank].1, tensor.shape.extents());
        let entry = json!({ "dtype": name, "shape": extents, "data_offsets": [offset, end] });
        json.insert(tensor.name.clone(), entry);
        parts.push(Part { name: tensor.name.clone(), bytes, padding: 0 });
        offset = end;
    }
    let mut text = serde_json::Value::Object(json).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok((header, parts))
}

/// The index of the tensor's type in [`TYPES`].
fn rank(tensor: &NewTensor) -> Result<usize> {
    if tensor.name == METADATA {
        return Err(Error::new(format!("a tensor cannot be called {METADATA}")));
    }
    TYPES.iter().position(|row| row.0 == tensor.dtype).ok_or_else(|| {
        Error::new(format!(
            "tensor {} is {}, for which safetensors has no type",
            quote(&tensor.name),
            tensor.dtype
        ))
    })
}
