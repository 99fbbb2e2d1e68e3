//! Writes safetensors headers; `safetensors.rs` describes the layout.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use girih_tensor::{Error, Result};
use serde_json::json;

use crate::quote::quote;
use crate::safetensors::{METADATA, SAFETENSORS_TYPES};
use crate::staged::folder_of;
use crate::writer::{ContainerWriter, NewTensor, TensorSlot};

impl ContainerWriter {
    /// Starts a safetensors file at `path`; the tensors must be
    /// [appended](ContainerWriter::append) in the [order](ContainerWriter::order) of the
    /// reference implementation: by type, widest first, then by name.
    ///
    /// # Errors
    /// When safetensors has no type for a tensor's format (store such blocks
    /// as `u8`), or when the file cannot be created.
    pub fn safetensors(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        tensors: &[NewTensor],
    ) -> Result<ContainerWriter> {
        let (header, slots) = header(metadata, tensors).map_err(|error| error.of(path.display()))?;
        ContainerWriter::start(path, folder_of(path), &header, slots)
    }

    /// As [`ContainerWriter::safetensors`], for a folder that does not exist yet. It must exist when
    /// the writer [finishes](ContainerWriter::finish).
    ///
    /// # Errors
    /// As [`ContainerWriter::safetensors`].
    pub fn safetensors_for_new_folder(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        tensors: &[NewTensor],
    ) -> Result<ContainerWriter> {
        let (header, slots) = header(metadata, tensors).map_err(|error| error.of(path.display()))?;
        ContainerWriter::start(path, folder_of(folder_of(path)), &header, slots)
    }
}

fn header(metadata: &BTreeMap<String, String>, tensors: &[NewTensor]) -> Result<(Vec<u8>, Vec<TensorSlot>)> {
    let mut ranked = tensors.iter().map(|tensor| Ok((rank(tensor)?, tensor))).collect::<Result<Vec<_>>>()?;
    ranked.sort_by_key(|(rank, tensor)| (Reverse(*rank), &tensor.name));
    let mut json = serde_json::Map::new();
    if !metadata.is_empty() {
        json.insert(METADATA.to_owned(), json!(metadata));
    }
    let mut slots = Vec::new();
    let mut offset = 0u64;
    for (rank, tensor) in ranked {
        let bytes = tensor.bytes()?;
        let end = offset.checked_add(bytes);
        let end = end.ok_or_else(|| Error::new("the total size of the tensors overflows 64 bits"))?;
        let (name, extents) = (SAFETENSORS_TYPES[rank].1, tensor.shape.extents());
        let entry = json!({ "dtype": name, "shape": extents, "data_offsets": [offset, end] });
        json.insert(tensor.name.clone(), entry);
        slots.push(TensorSlot { name: tensor.name.clone(), bytes, padding: 0 });
        offset = end;
    }
    let mut text = serde_json::Value::Object(json).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok((header, slots))
}

/// The index of the tensor's type in [`SAFETENSORS_TYPES`].
fn rank(tensor: &NewTensor) -> Result<usize> {
    if tensor.name == METADATA {
        return Err(Error::new(format!("a tensor cannot be called {METADATA}")));
    }
    SAFETENSORS_TYPES.iter().position(|row| row.0 == tensor.dtype).ok_or_else(|| {
        Error::new(format!(
            "tensor {} is {}, for which safetensors has no type",
            quote(&tensor.name),
            tensor.dtype
        ))
    })
}
