//! Writes a copy of a model's folder as IEBIN.
//!
//! Tensors keep their names of the hub. A matrix that a recipe makes `q4_0` or `q8_0`, or that a manifest names, is stored as
//! integers with one scale for each row or for all; all others keep their type. Configuration and tokenizer are copied.

use std::path::Path;

use girih_file::{
    ContainerKind, ContainerWriter, IebinScales, IebinStorage, IebinTensor, iebin, quote, read_small,
};
use girih_graph::WeightSource as _;
use girih_model::{ModelFiles, ModelWeights};
use girih_tensor::{DType, Error, ErrorKind, Result};

use super::bands::{BAND_WEIGHTS, check_finite, write_rows};
use super::new_folder::{self, NewFile};
use super::options::ConvertOptions;
use super::plan::{Chooser, FileLayout, Planned, check_whole, weights};
use super::q4_map::Q4Item;
use super::report::{ConvertProgress, ConvertReport};

/// The formats of matrices in a folder of IEBIN; the last two stand for integers with scales.
const IEBIN_DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];

/// The largest integer of four bits that is written, as by the program that defines the container.
const INT4_MAX: f32 = 7.0;

/// The largest integer of eight bits that is written.
const INT8_MAX: f32 = 127.0;

/// The maximum size of a file of integers that was packed before: that of the largest matrix of known models, and some room.
const PACKED_BYTES: u64 = 4 << 30;

/// A tensor to write, and where its integers come from if it has some.
struct PlannedTensor<'a> {
    tensor: Planned,
    storage: IebinStorage,
    item: Option<&'a Q4Item>,
}

pub(super) fn write(
    model: &ModelFiles,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    if model.weights.container().kind() == ContainerKind::Gguf {
        let sentence = "IEBIN has the hub's names of tensors; convert the original of this GGUF";
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let planned = plan(model, options)?;
    let new = |planned: &PlannedTensor<'_>| IebinTensor {
        name: planned.tensor.name.clone(),
        shape: planned.tensor.shape,
        storage: planned.storage.clone(),
    };
    let tensors: Vec<IebinTensor> = planned.iter().map(new).collect();
    // The folder is created when the weights are complete, so that an interruption leaves nothing.
    let (mut writer, manifest) = ContainerWriter::iebin_for_new_folder(out, &tensors)?;
    let mut files = vec![NewFile { name: iebin::MANIFEST.to_owned(), bytes: manifest.into_bytes() }];
    let total = planned.iter().map(|planned| planned.tensor.shape.elements() as u64).sum();
    let (mut done, mut report) = (0, ConvertReport::default());
    for PlannedTensor { tensor, storage, item } in &planned {
        let mut step = |written: usize| {
            done += written as u64;
            progress(ConvertProgress { tensor: &tensor.name, done, total });
        };
        let of = |error: Error| error.of(format!("tensor {}", quote(&tensor.name)));
        let mut sparsity = None;
        let scales = match (storage, item) {
            (IebinStorage::Plain(_), _) => {
                let name = (tensor.name.as_str(), tensor);
                let left = write_rows(&mut writer, &model.weights, name, None, options.threads, &mut step)
                    .map_err(of)?;
                sparsity = tensor.pruning.map(|_| left);
                None
            }
            (_, Some(item)) if item.files.is_some() => {
                Some(copy_packed(&mut writer, tensor, item, &mut step).map_err(of)?)
            }
            (storage, _) => {
                let integers = IebinIntegers::of(tensor, storage);
                Some(integers.write(&mut writer, &model.weights, &mut step).map_err(of)?)
            }
        };
        if let (Some(bytes), IebinStorage::Int4(file) | IebinStorage::Int8(file)) = (scales, storage) {
            files.push(NewFile { name: file.file.clone(), bytes });
        }
        report.tensors.push(tensor.written(sparsity));
    }
    model.weights.check_unchanged()?;
    new_folder::finish_with(model, out, writer, &files)?;
    Ok(ConvertReport { weights: out.join(iebin::BIN), ..report })
}

/// Plans every tensor of the model.
fn plan<'a>(model: &ModelFiles, options: &'a ConvertOptions) -> Result<Vec<PlannedTensor<'a>>> {
    let mut chooser = Chooser::new(options.recipe.as_ref(), &IEBIN_DTYPES).of_any_rows();
    let mut all = Vec::new();
    let mut matrices = Vec::new();
    for (weight, entry, _) in weights(model.arch(), &model.weights, model.facts.layers.len()) {
        check_whole(&weight, entry.hf.as_deref().unwrap_or_default(), entry.hf_part)?;
        let Some((name, info)) = model.weights.stored(&weight) else { continue };
        let (name, shape, source) = (name.to_owned(), info.shape, info.dtype);
        let is_matrix = shape.extents().len() >= 2;
        let item = match &options.iebin.q4_map {
            Some(map) if is_matrix => map.item(&name, &shape)?,
            _ => None,
        };
        let kept = if options.iebin.single_precision { DType::F32 } else { source };
        let (stored, note, pruning) = match (item, is_matrix) {
            (Some(_), _) => (DType::Q4_0, Some("named by the manifest".to_owned()), None),
            (None, true) => chooser.choose([&weight, &name], &shape, || (kept, None))?,
            (None, false) => (kept, None, None),
        };
        let scales = |is_by_row| IebinScales {
            is_by_row,
            file: format!("scales.{:05}.bin", all.len()),
            dtype: item.and_then(|item| item.files.as_ref()).map_or(DType::F16, |(.., dtype)| *dtype),
        };
        let storage = match stored {
            DType::Q4_0 if note.is_some() => {
                IebinStorage::Int4(scales(item.is_none_or(|item| item.is_by_row)))
            }
            DType::Q8_0 if note.is_some() => IebinStorage::Int8(scales(true)),
            dtype => IebinStorage::Plain(dtype),
        };
        if pruning.is_some() && !matches!(storage, IebinStorage::Plain(_)) {
            return Err(Error::new(format!(
                "tensor {} becomes integers with scales, which girih does not prune; prune it in a conversion before",
                quote(&name)
            )));
        }
        matrices.extend(is_matrix.then(|| name.clone()));
        let (layout, parts) = (FileLayout::AsStored, Vec::new());
        let tensor = Planned { weight, name, shape, source, stored, layout, note, pruning, parts };
        all.push(PlannedTensor { tensor, storage, item });
    }
    chooser.finish()?;
    if let Some(map) = &options.iebin.q4_map {
        map.check_used(&matrices.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(all)
}

/// A matrix that is written as integers.
struct IebinIntegers<'a> {
    tensor: &'a Planned,
    max: f32,
    is_by_row: bool,
}

impl IebinIntegers<'_> {
    fn of<'a>(tensor: &'a Planned, storage: &IebinStorage) -> IebinIntegers<'a> {
        let (max, is_by_row) = match storage {
            IebinStorage::Int4(scales) => (INT4_MAX, scales.is_by_row),
            IebinStorage::Int8(scales) => (INT8_MAX, scales.is_by_row),
            IebinStorage::Plain(_) => unreachable!("single values are written as rows"),
        };
        IebinIntegers { tensor, max, is_by_row }
    }

    /// Writes the integers; returns the bytes of the scales, in half precision.
    fn write(
        &self,
        writer: &mut ContainerWriter,
        weights: &ModelWeights,
        step: &mut dyn FnMut(usize),
    ) -> Result<Vec<u8>> {
        let columns = self.tensor.shape.columns().max(1);
        let mut scales = Vec::new();
        if !self.is_by_row {
            let mut largest = 0.0f32;
            self.each_band(weights, &mut |values| {
                largest = extent(values).max(largest);
                Ok(())
            })?;
            scales.push(self.scale(largest)?);
        }
        self.each_band(weights, &mut |values| {
            let mut bytes = Vec::new();
            for row in values.chunks_exact(columns) {
                if self.is_by_row {
                    scales.push(self.scale(extent(row))?);
                }
                let scale = scales.last().copied().unwrap_or(1.0);
                let codes = row.iter().map(|value| (value / scale).round().clamp(-self.max, self.max));
                put(codes, self.max, &mut bytes);
            }
            writer.append(&self.tensor.name, &bytes)?;
            step(values.len());
            Ok(())
        })?;
        DType::F16.pack_matrix(1, scales.len(), &scales)
    }

    /// Calls `each` with the values of some rows after another.
    fn each_band(&self, weights: &ModelWeights, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let Planned { weight, shape, source, .. } = self.tensor;
        let (rows, columns) = (shape.rows(), shape.columns());
        let tile = source.tile().0;
        let band = (BAND_WEIGHTS / columns.max(1)).next_multiple_of(tile).max(tile);
        for start in (0..rows).step_by(band) {
            let count = band.min(rows - start);
            let mut bytes = vec![0; source.matrix_bytes(count, columns)?];
            weights.fill_stored(weight, source.matrix_bytes(start, columns)? as u64, &mut bytes)?;
            let mut values = vec![0.0; count * columns];
            girih_tensor::View::new(*source, count, columns, &bytes)?.unpack_rows(0..count, &mut values);
            check_finite(&values)?;
            each(&values)?;
        }
        Ok(())
    }

    /// The scale of values of this largest magnitude, as half precision holds it. It is 1 where half precision has only 0 for
    /// it, and all integers are 0.
    fn scale(&self, largest: f32) -> Result<f32> {
        let mut scale = [0.0];
        DType::F16.unpack(&DType::F16.pack_matrix(1, 1, &[largest / self.max])?, &mut scale);
        match scale[0] {
            0.0 => Ok(1.0),
            scale if scale.is_finite() => Ok(scale),
            _ => Err(Error::new(format!(
                "contains the weight {largest}, whose scale overflows half precision; keep its type"
            ))),
        }
    }
}

/// The largest magnitude of some values.
fn extent(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Appends the integers of a row: two in a byte if the largest has four bits.
fn put(codes: impl Iterator<Item = f32>, max: f32, bytes: &mut Vec<u8>) {
    if max == INT8_MAX {
        bytes.extend(codes.map(|code| (code as i8).cast_unsigned()));
        return;
    }
    let codes: Vec<u8> = codes.map(|code| (code + 8.0) as u8).collect();
    // An odd row ends with 0, which is 8.
    bytes.extend(codes.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&8) << 4));
}

/// Copies integers that were packed before; returns the bytes of their scales.
fn copy_packed(
    writer: &mut ContainerWriter,
    tensor: &Planned,
    item: &Q4Item,
    step: &mut dyn FnMut(usize),
) -> Result<Vec<u8>> {
    let Some((codes, scales, dtype)) = &item.files else {
        unreachable!("the manifest names the files of a matrix that is copied")
    };
    let (rows, columns) = (tensor.shape.rows(), tensor.shape.columns());
    let read =
        |path: &Path, need: usize| {
            let bytes = read_small(path, PACKED_BYTES)?;
            match bytes.len() == need {
                true => Ok(bytes),
                false => Err(Error::new(format!("has {} bytes, but {need} are needed", bytes.len()))
                    .of(path.display())),
            }
        };
    let bytes = read(codes, rows * columns.div_ceil(2))?;
    writer.append(&tensor.name, &bytes)?;
    step(rows * columns);
    let count = if item.is_by_row { rows } else { 1 };
    let bytes = read(scales, count * dtype.block_bytes())?;
    let mut values = vec![0.0; count];
    dtype.unpack(&bytes, &mut values);
    check_finite(&values)?;
    Ok(bytes)
}
