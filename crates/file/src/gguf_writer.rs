//! Writes GGUF headers, version 3; `gguf.rs` describes the layout.

use std::path::Path;

use girih_tensor::{Error, Result};

use crate::gguf::{GGUF_MAGIC, alignment, type_id};
use crate::metadata::{Metadata, MetadataArray, MetadataValue};
use crate::quote::quote;
use crate::staged::folder_of;
use crate::writer::{ContainerWriter, NewTensor, TensorSlot};

/// The version that is written. Everything that girih uses is the same in version 2.
const GGUF_VERSION: u32 = 3;

impl ContainerWriter {
    /// Starts a GGUF file at `path`; `tensors` must be [appended](ContainerWriter::append)
    /// in their order. The alignment is `general.alignment`, or 32.
    ///
    /// # Errors
    /// When GGUF has no type for a tensor's format, when rows are not a whole
    /// number of blocks, or when the file cannot be created.
    pub fn gguf(path: &Path, metadata: &Metadata, tensors: &[NewTensor]) -> Result<ContainerWriter> {
        let (header, slots) = header(metadata, tensors).map_err(|error| error.of(path.display()))?;
        ContainerWriter::start(path, folder_of(path), &header, slots)
    }
}

fn header(metadata: &Metadata, tensors: &[NewTensor]) -> Result<(Vec<u8>, Vec<TensorSlot>)> {
    let alignment = u64::from(alignment(metadata)?);
    let mut header = GGUF_MAGIC.to_vec();
    header.extend(GGUF_VERSION.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.iter().len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut header, key);
        header.extend(value.kind().id().to_le_bytes());
        put_value(&mut header, value);
    }
    let mut slots = Vec::new();
    let mut offset = 0;
    for tensor in tensors {
        put_entry(&mut header, tensor, offset)?;
        let bytes = tensor.bytes()?;
        let padded = bytes.checked_next_multiple_of(alignment);
        let end = padded.and_then(|padded| padded.checked_add(offset));
        let (Some(padded), Some(end)) = (padded, end) else {
            return Err(Error::new("the total size of the tensors overflows 64 bits"));
        };
        slots.push(TensorSlot { name: tensor.name.clone(), bytes, padding: padded - bytes });
        offset = end;
    }
    header.resize(header.len().next_multiple_of(alignment as usize), 0);
    Ok((header, slots))
}

fn put_entry(header: &mut Vec<u8>, tensor: &NewTensor, offset: u64) -> Result<()> {
    let id = type_id(tensor.dtype).ok_or_else(|| {
        Error::new(format!("tensor {} is {}, for which GGUF has no type", quote(&tensor.name), tensor.dtype))
    })?;
    let extents = tensor.shape.extents();
    put_string(header, &tensor.name);
    header.extend((extents.len() as u32).to_le_bytes());
    for &extent in extents.iter().rev() {
        header.extend((extent as u64).to_le_bytes());
    }
    header.extend(id.to_le_bytes());
    header.extend(offset.to_le_bytes());
    Ok(())
}

fn put_string(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}

fn put_value(header: &mut Vec<u8>, value: &MetadataValue) {
    match value {
        MetadataValue::U8(n) => header.extend(n.to_le_bytes()),
        MetadataValue::I8(n) => header.extend(n.to_le_bytes()),
        MetadataValue::U16(n) => header.extend(n.to_le_bytes()),
        MetadataValue::I16(n) => header.extend(n.to_le_bytes()),
        MetadataValue::U32(n) => header.extend(n.to_le_bytes()),
        MetadataValue::I32(n) => header.extend(n.to_le_bytes()),
        MetadataValue::F32(n) => header.extend(n.to_le_bytes()),
        MetadataValue::Bool(flag) => header.push(u8::from(*flag)),
        MetadataValue::String(text) => put_string(header, text),
        MetadataValue::Array(array) => put_array(header, array),
        MetadataValue::U64(n) => header.extend(n.to_le_bytes()),
        MetadataValue::I64(n) => header.extend(n.to_le_bytes()),
        MetadataValue::F64(n) => header.extend(n.to_le_bytes()),
    }
}

fn put_array(header: &mut Vec<u8>, array: &MetadataArray) {
    header.extend(array.kind().id().to_le_bytes());
    header.extend((array.len() as u64).to_le_bytes());
    match array {
        MetadataArray::U8(list) => header.extend(list),
        MetadataArray::I8(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::U16(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::I16(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::U32(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::I32(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::F32(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::Bool(list) => header.extend(list.iter().map(|&flag| u8::from(flag))),
        MetadataArray::String(list) => list.iter().for_each(|text| put_string(header, text)),
        MetadataArray::Array(list) => list.iter().for_each(|inner| put_array(header, inner)),
        MetadataArray::U64(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::I64(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
        MetadataArray::F64(list) => header.extend(list.iter().flat_map(|n| n.to_le_bytes())),
    }
}
