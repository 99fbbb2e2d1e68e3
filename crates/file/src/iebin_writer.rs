//! Writes folders of IEBIN; `iebin.rs` describes the layout.

use std::path::Path;

use girih_tensor::{DType, Error, Result, Shape};
use serde_json::{Value, json};

use crate::iebin::{BIN, FORMAT, INT4, INT8, PACK, type_name};
use crate::iebin_matrix::CodeBits;
use crate::quote::quote;
use crate::staged::folder_of;
use crate::writer::{ContainerWriter, TensorSlot};

/// The beginning of each tensor is a multiple of this number of bytes, as by default in the program that defines the container.
const ALIGNMENT: u64 = 64;

/// A tensor of a new folder.
#[derive(Clone, Debug)]
pub struct IebinTensor {
    /// Its name.
    pub name: String,
    /// The shape, outermost dimension first.
    pub shape: Shape,
    /// How its values are stored.
    pub storage: IebinStorage,
}

/// How the values of a tensor are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IebinStorage {
    /// Each for itself.
    Plain(DType),
    /// As integers of four bits, two in a byte.
    Int4(IebinScales),
    /// As integers of eight bits.
    Int8(IebinScales),
}

/// Where the scales of a matrix lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IebinScales {
    /// Whether each row has one, instead of one for all.
    pub is_by_row: bool,
    /// The file of the folder that has only these scales.
    pub file: String,
    /// Their format: half or single precision.
    pub dtype: DType,
}

impl IebinTensor {
    /// The bytes that it takes in [`BIN`].
    ///
    /// # Errors
    /// When they exceed the address space.
    pub fn bytes(&self) -> Result<u64> {
        match &self.storage {
            IebinStorage::Plain(dtype) => Ok(dtype.bytes(&self.shape)? as u64),
            IebinStorage::Int4(_) => CodeBits::Four.stored_bytes(&self.shape),
            IebinStorage::Int8(_) => CodeBits::Eight.stored_bytes(&self.shape),
        }
    }

    /// Its entry in the manifest.
    fn entry(&self, offset: u64, bytes: u64) -> Result<Value> {
        let (kind, quant) = match &self.storage {
            IebinStorage::Plain(dtype) => {
                let unnamed = || {
                    Error::new(format!("is {dtype}, for which IEBIN has no type; name another in a recipe"))
                };
                (type_name(*dtype).ok_or_else(unnamed)?, None)
            }
            IebinStorage::Int4(scales) => (INT4, Some(scales.entry(Some(PACK)))),
            IebinStorage::Int8(scales) => (INT8, Some(scales.entry(None))),
        };
        let mut entry = json!({
            "name": self.name, "shape": self.shape.extents(), "dtype": kind, "offset": offset, "nbytes": bytes,
        });
        if let Some(quant) = quant {
            entry["quant"] = quant;
        }
        Ok(entry)
    }
}

impl IebinScales {
    fn entry(&self, pack: Option<&str>) -> Value {
        let mut quant = json!({
            "per": if self.is_by_row { "row" } else { "tensor" },
            "scale_bin": self.file,
            "scale_dtype": type_name(self.dtype),
            "zp": 0,
            "symmetric": true,
        });
        if let Some(pack) = pack {
            quant["pack"] = json!(pack);
        }
        quant
    }
}

impl ContainerWriter {
    /// Starts the file [`BIN`] of a folder of IEBIN that does not exist yet, and returns the text of its manifest. The folder
    /// must exist when the writer [finishes](ContainerWriter::finish), with the manifest and the files of scales.
    ///
    /// # Errors
    /// When IEBIN has no type for a tensor's format, or the file cannot be created.
    pub fn iebin_for_new_folder(folder: &Path, tensors: &[IebinTensor]) -> Result<(ContainerWriter, String)> {
        let path = folder.join(BIN);
        let (manifest, slots) = layout(tensors).map_err(|error| error.of(path.display()))?;
        Ok((ContainerWriter::start(&path, folder_of(folder), &[], slots)?, manifest))
    }
}

/// The manifest, and the places of the tensors.
fn layout(tensors: &[IebinTensor]) -> Result<(String, Vec<TensorSlot>)> {
    let (mut entries, mut slots, mut offset) = (Vec::new(), Vec::new(), 0u64);
    for tensor in tensors {
        let of = |error: Error| error.of(format!("tensor {}", quote(&tensor.name)));
        let bytes = tensor.bytes().map_err(of)?;
        entries.push(tensor.entry(offset, bytes).map_err(of)?);
        let next = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        let next = next.ok_or_else(|| Error::new("the total size of the tensors overflows 64 bits"))?;
        slots.push(TensorSlot { name: tensor.name.clone(), bytes, padding: next - offset - bytes });
        offset = next;
    }
    let is_single = |tensor: &IebinTensor| tensor.storage == IebinStorage::Plain(DType::F32);
    let manifest = json!({
        "format": FORMAT,
        "version": 1,
        "bin": BIN,
        "dtype": if tensors.iter().all(is_single) { "fp32" } else { "mixed" },
        "tensors": entries,
    });
    Ok((manifest.to_string() + "\n", slots))
}
