//! Tensors of a folder of IEBIN: their bytes, and the scales of those that become integers.

use std::path::Path;

use girih_file::{IebinStorage, IebinTensor, quote, read_small};
use girih_model::ModelWeights;
use girih_tensor::{DType, Error, Result};

use super::bands::{BAND_WEIGHTS, TensorSink, check_finite, write_rows};
use super::options::ConvertOptions;
use super::plan::Planned;
use super::prune::Sparsity;
use super::q4_map::Q4Item;

/// The largest integer of four bits that is written, as by the program that defines the container.
const INT4_MAX: f32 = 7.0;

/// The largest integer of eight bits that is written.
const INT8_MAX: f32 = 127.0;

/// The maximum size of a file of integers that was packed before: that of the largest matrix of known models, and some room.
const PACKED_BYTES: u64 = 4 << 30;

/// A tensor to write, and where its integers come from if it has some.
pub(super) struct PlannedTensor<'a> {
    pub tensor: Planned,
    pub storage: IebinStorage,
    pub item: Option<&'a Q4Item>,
}

/// The source of tensors, and how they are converted.
#[derive(Clone, Copy)]
pub(super) struct TensorSource<'a> {
    pub weights: &'a ModelWeights,
    pub options: &'a ConvertOptions,
}

impl PlannedTensor<'_> {
    /// Its name, shape and storage.
    pub fn new_tensor(&self) -> IebinTensor {
        let Planned { name, shape, .. } = &self.tensor;
        IebinTensor { name: name.clone(), shape: *shape, storage: self.storage.clone() }
    }

    /// Writes its bytes; returns those of its scales, and what pruning has left of it.
    pub fn write(
        &self,
        sink: &mut dyn TensorSink,
        source: TensorSource<'_>,
        step: &mut dyn FnMut(usize),
    ) -> Result<(Option<Vec<u8>>, Option<Sparsity>)> {
        let PlannedTensor { tensor, storage, item } = self;
        let TensorSource { weights, options } = source;
        let written = match (storage, item) {
            (IebinStorage::Plain(_), _) => {
                let name = (tensor.name.as_str(), tensor);
                let left = write_rows(sink, weights, name, None, options.threads, step);
                left.map(|left| (None, tensor.pruning.map(|_| left)))
            }
            (_, Some(item)) if item.files.is_some() => {
                copy_packed(sink, tensor, item, step).map(|scales| (Some(scales), None))
            }
            (storage, _) => {
                let integers = IebinIntegers::of(tensor, storage);
                integers.write(sink, weights, step).map(|scales| (Some(scales), None))
            }
        };
        written.map_err(|error| error.of(format!("tensor {}", quote(&tensor.name))))
    }
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
        sink: &mut dyn TensorSink,
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
            sink.append(&self.tensor.name, &bytes)?;
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
    sink: &mut dyn TensorSink,
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
    sink.append(&tensor.name, &bytes)?;
    step(rows * columns);
    let count = if item.is_by_row { rows } else { 1 };
    let bytes = read(scales, count * dtype.block_bytes())?;
    let mut values = vec![0.0; count];
    dtype.unpack(&bytes, &mut values);
    check_finite(&values)?;
    Ok(bytes)
}
