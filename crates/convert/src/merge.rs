//! Writes a copy of a model's folder with an adapter in its weights.
//!
//! Tensors that the adapter does not change, the configuration and the tokenizer are copied.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use girih_file::{Container, ContainerWriter, MetadataValue, NewTensor, TensorInfo, quote};
use girih_model::{AdapterFiles, ModelFiles, TensorChange};
use girih_tensor::{DType, Error, ErrorKind, Result, View};

use super::new_folder;
use super::report::{ConvertProgress, ConvertReport, WrittenTensor};

/// The bytes of a tensor that are copied at once.
const COPIED: usize = 16 << 20;

/// Writes the folder `out`: `model` with what `adapter` adds to its weights or has in their place, each in the format that it has.
///
/// # Errors
/// When `out` already exists; when the model or the adapter is a GGUF; when a changed weight is stored in blocks or is not finite afterwards;
/// or when a file cannot be read or written.
pub fn merge(
    model: &ModelFiles,
    adapter: &AdapterFiles,
    out: &Path,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    new_folder::check_is_free(out)?;
    let changes = adapter.changes(&model.weights)?;
    let container = model.weights.container();
    if let Some((name, tensor)) = container.unreadable().first_key_value() {
        return Err(Error::new(format!("tensor {}: {}", quote(name), tensor.why)));
    }
    let tensors = container.tensors();
    check_changed(model, adapter, &changes)?;
    let new = |(name, info): (&String, &TensorInfo)| NewTensor {
        name: name.clone(),
        dtype: info.dtype,
        shape: info.shape,
    };
    let strings = container.metadata().iter().filter_map(|(key, value)| match value {
        MetadataValue::String(text) => Some((key.to_owned(), text.clone())),
        _ => None,
    });
    let (strings, new): (BTreeMap<String, String>, Vec<NewTensor>) =
        (strings.collect(), tensors.iter().map(new).collect());
    // The folder is created when the weights are complete, so that an interruption leaves nothing.
    let path = out.join("model.safetensors");
    let mut writer = ContainerWriter::safetensors_for_new_folder(&path, &strings, &new)?;
    let ranks: HashMap<String, usize> = writer.order().map(str::to_owned).zip(0..).collect();
    let mut ordered: Vec<(&String, &TensorInfo)> = tensors.iter().collect();
    ordered.sort_by_key(|(name, _)| ranks[*name]);
    let total = ordered.iter().map(|(_, info)| info.shape.elements() as u64).sum();
    let (mut done, mut report) = (0, ConvertReport { weights: path.clone(), ..ConvertReport::default() });
    for (name, info) in ordered {
        let merged = match changes.get(name.as_str()) {
            Some(change) => merged(container, info, change).map(Some),
            None => adapter
                .replacement(name, &info.shape)
                .and_then(|values| values.map(|values| packed(info, values)).transpose()),
        };
        let note = match merged.map_err(|error| error.of(quote(name)))? {
            None => {
                copy(model, &mut writer, name, info)?;
                None
            }
            Some(merged) => {
                writer.append(name, &merged)?;
                Some("with the adapter".to_owned())
            }
        };
        done += info.shape.elements() as u64;
        progress(ConvertProgress { tensor: name, done, total });
        let (name, shape, dtype) = (name.clone(), info.shape, info.dtype);
        report.tensors.push(WrittenTensor {
            name,
            shape,
            source: dtype,
            stored: dtype,
            note,
            sparsity: None,
        });
    }
    container.check_unchanged()?;
    adapter.check_unchanged()?;
    new_folder::finish(model, out, writer)?;
    Ok(report)
}

/// Checks that what the adapter changes can be written.
fn check_changed(
    model: &ModelFiles,
    adapter: &AdapterFiles,
    changes: &BTreeMap<&str, TensorChange<'_>>,
) -> Result<()> {
    let tensors = model.weights.container().tensors();
    for name in adapter.replaced() {
        let is_table = model.facts.head.is_some_and(|head| head.tied)
            && model.weights.stored("embed.table").is_some_and(|(table, _)| table == name);
        let why = match tensors.get(name) {
            None => "which the model does not have",
            Some(_) if is_table => "which is also the model's head; PEFT would change one of the two",
            Some(_) => continue,
        };
        return Err(Error::with_kind(
            ErrorKind::Refused,
            format!("the adapter replaces {} ('modules_to_save'), {why}", quote(name)),
        ));
    }
    for name in changes.keys().copied().chain(adapter.replaced()) {
        let dtype = tensors[name].dtype;
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            let sentence =
                format!("tensor {} is stored as {dtype}; merge the model's float weights", quote(name));
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
    }
    Ok(())
}

/// The bytes of a tensor with what an adapter adds.
fn merged(container: &Container, info: &TensorInfo, change: &TensorChange<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; info.bytes as usize];
    container.read(info, 0, &mut bytes)?;
    let (rows, columns) = (info.shape.rows(), info.shape.columns());
    let mut values = vec![0.0; info.shape.elements()];
    View::new(info.dtype, rows, columns, &bytes)?.unpack_rows(0..rows, &mut values);
    change.add_to(&info.shape, &mut values)?;
    packed(info, values)
}

/// The bytes of a tensor with these values.
fn packed(info: &TensorInfo, mut values: Vec<f32>) -> Result<Vec<u8>> {
    let (rows, columns) = (info.shape.rows(), info.shape.columns());
    let packed = info.dtype.pack_matrix(rows, columns, &values)?;
    View::new(info.dtype, rows, columns, &packed)?.unpack_rows(0..rows, &mut values);
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(packed),
        false => Err(Error::new("would not be finite with the adapter")),
    }
}

/// Copies a tensor.
fn copy(model: &ModelFiles, writer: &mut ContainerWriter, name: &str, info: &TensorInfo) -> Result<()> {
    let mut offset = 0;
    while offset < info.bytes {
        let mut bytes = vec![0; (info.bytes - offset).min(COPIED as u64) as usize];
        model.weights.container().read(info, offset, &mut bytes)?;
        writer.append(name, &bytes)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}
