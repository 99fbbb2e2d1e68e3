//! Writes folders of IEBIN; `iebin.rs` describes the layout, `iebin_overlay.rs` that of an overlay.

use std::collections::BTreeSet;
use std::path::Path;

use girih_tensor::{DType, Error, Result, Shape};
use serde_json::{Value, json};

use crate::iebin::{BIN, FORMAT, INT4, INT8, PACK, type_name};
use crate::iebin_matrix::CodeBits;
use crate::iebin_overlay;
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
    fn entry(&self, offset: Option<u64>, bytes: u64) -> Result<Value> {
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
            "name": self.name, "shape": self.shape.extents(), "dtype": kind, "nbytes": bytes,
        });
        if let Some(offset) = offset {
            entry["offset"] = json!(offset);
        }
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

/// Tensors of a new folder that are stored as their differences to another one of the same size.
#[derive(Clone, Debug)]
pub struct IebinGroup {
    /// The index of that one among all tensors.
    pub default: usize,
    /// The index of each of these, and the number of bytes in which it differs.
    pub targets: Vec<(usize, u64)>,
}

impl IebinGroup {
    /// The indexes of all its tensors.
    pub fn indexes(&self) -> impl Iterator<Item = usize> {
        [self.default].into_iter().chain(self.targets.iter().map(|target| target.0))
    }
}

/// The writers of an overlay's files, whose tensors are appended group by group.
#[derive(Debug)]
pub struct OverlayWriters {
    /// The bytes of each group's default.
    pub defaults: ContainerWriter,
    /// A bit for each byte of each target.
    pub masks: ContainerWriter,
    /// The bytes in which each target differs.
    pub exceptions: ContainerWriter,
}

impl OverlayWriters {
    /// Starts the three files of an overlay in a folder of IEBIN that does not exist yet, and returns the text of its list.
    ///
    /// # Errors
    /// When a file cannot be created.
    pub fn for_new_folder(
        folder: &Path,
        tensors: &[IebinTensor],
        groups: &[IebinGroup],
    ) -> Result<(OverlayWriters, String)> {
        let mut files: [NewOverlayFile; 3] = Default::default();
        let [defaults, masks, exceptions] = &mut files;
        let mut listed = Vec::new();
        for group in groups {
            let bytes = tensors[group.default].bytes()?;
            let default_off = defaults.add(&tensors[group.default], bytes)?;
            let mut targets = Vec::new();
            for (target, differing) in &group.targets {
                let (tensor, mask) = (&tensors[*target], bytes.div_ceil(8));
                targets.push(json!({
                    "tensor_index": target,
                    "nbytes": bytes,
                    "mask_off": masks.add(tensor, mask)?,
                    "mask_nbytes": mask,
                    "exc_off": exceptions.add(tensor, *differing)?,
                    "exc_nbytes": differing,
                    "exc_popcount": differing,
                }));
            }
            let default = json!({"tensor_index": group.default, "nbytes": bytes, "default_off": default_off});
            listed.push(json!({"default": default, "targets": targets}));
        }
        let list = json!({
            "magic": iebin_overlay::MAGIC,
            "version": iebin_overlay::VERSION,
            "files": {
                "defaults": iebin_overlay::FILES[0],
                "masks": iebin_overlay::FILES[1],
                "exceptions": iebin_overlay::FILES[2],
            },
            "totals": {
                "defaults_size": defaults.bytes,
                "masks_size": masks.bytes,
                "exceptions_size": exceptions.bytes,
            },
            "groups": listed,
        });
        let [defaults, masks, exceptions] = files;
        let start = |name: &str, file: NewOverlayFile| {
            ContainerWriter::start(&folder.join(name), folder_of(folder), &[], file.slots)
        };
        let writers = OverlayWriters {
            defaults: start(iebin_overlay::FILES[0], defaults)?,
            masks: start(iebin_overlay::FILES[1], masks)?,
            exceptions: start(iebin_overlay::FILES[2], exceptions)?,
        };
        Ok((writers, list.to_string() + "\n"))
    }
}

/// A file of an overlay, whose parts follow each other without gaps.
#[derive(Default)]
struct NewOverlayFile {
    bytes: u64,
    slots: Vec<TensorSlot>,
}

impl NewOverlayFile {
    /// Adds a part; returns its offset.
    fn add(&mut self, tensor: &IebinTensor, bytes: u64) -> Result<u64> {
        let offset = self.bytes;
        self.bytes = offset.checked_add(bytes).ok_or_else(too_many)?;
        self.slots.push(TensorSlot { name: tensor.name.clone(), bytes, padding: 0 });
        Ok(offset)
    }
}

fn too_many() -> Error {
    Error::new("the total size of the tensors overflows 64 bits")
}

impl ContainerWriter {
    /// Starts the file [`BIN`] of a folder of IEBIN that does not exist yet, and returns the text of its manifest. The folder
    /// must exist when the writer [finishes](ContainerWriter::finish), with the manifest, the files of scales, and those of the overlay if it has
    /// groups, whose tensors have no bytes here.
    ///
    /// # Errors
    /// When IEBIN has no type for a tensor's format, or the file cannot be created.
    pub fn iebin_for_new_folder(
        folder: &Path,
        tensors: &[IebinTensor],
        groups: &[IebinGroup],
    ) -> Result<(ContainerWriter, String)> {
        let path = folder.join(BIN);
        let (manifest, slots) = layout(tensors, groups).map_err(|error| error.of(path.display()))?;
        Ok((ContainerWriter::start(&path, folder_of(folder), &[], slots)?, manifest))
    }
}

/// The manifest, and the places of the tensors.
fn layout(tensors: &[IebinTensor], groups: &[IebinGroup]) -> Result<(String, Vec<TensorSlot>)> {
    let overlaid: BTreeSet<usize> = groups.iter().flat_map(IebinGroup::indexes).collect();
    let (mut entries, mut slots, mut offset) = (Vec::new(), Vec::new(), 0u64);
    for (index, tensor) in tensors.iter().enumerate() {
        let of = |error: Error| error.of(format!("tensor {}", quote(&tensor.name)));
        let bytes = tensor.bytes().map_err(of)?;
        let is_overlaid = overlaid.contains(&index);
        entries.push(tensor.entry((!is_overlaid).then_some(offset), bytes).map_err(of)?);
        if is_overlaid {
            continue;
        }
        let next = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        let next = next.ok_or_else(too_many)?;
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
