//! The source of one weight: a tensor of the container, parts of several, or something that girih makes.

use std::ops::Range;
use std::sync::Arc;

use girih_file::{Container, ContainerKind, TensorInfo, quote};
use girih_tensor::{DType, Error, Result, Shape};

use crate::arch::schema::{EXPERT, OtherTensor, TensorPart, Weight};
use crate::expert_rows::ExpertRows;
use crate::made_weight::MadeWeight;
use crate::one_position::OnePosition;
use crate::quantized_weight::QuantizedWeight;
use crate::rows_part::RowsPart;
use crate::tensor_rows::rows_in;

/// The source of one weight.
#[derive(Debug)]
pub(crate) enum WeightEntry {
    /// A tensor of the container.
    Stored { tensor: String, info: TensorInfo, order: TensorOrder },
    /// A tensor of this format and shape that consists of parts, one after the other.
    Assembled { parts: Arc<Vec<RowsPart>>, dtype: DType, shape: Shape },
    /// The matrices of all heads of this tensor, one after the other, each with columns as rows.
    TransposedHeads { tensor: String, heads: Vec<TensorInfo>, shape: Shape },
    /// A part of the rows of each expert's matrix.
    OfExperts(ExpertRows),
    /// Values that girih computes from the facts.
    Computed(Vec<f32>),
    /// The matrices that rotate heads by one position.
    OnePosition(OnePosition),
    /// A matrix that is quantized while it is read.
    Quantized(Arc<QuantizedWeight>),
    /// Another one.
    Made(Box<dyn MadeWeight>),
}

/// The transform from a stored tensor to girih's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorOrder {
    /// None: the bytes are used as stored.
    AsStored,
    /// Adds one to every value, as `f32`.
    AddOne,
    /// `−eˣ` of every value, as `f32`.
    NegativeExp,
    /// The rows of `heads` heads, stored with interleaved halves.
    Interleaved { heads: usize },
    /// The columns of the tensor are the rows, as `f32`.
    Transposed,
    /// Of a matrix, these columns are the rows, in the tensor's format.
    Conv1d { first: usize, count: usize },
    /// Each row, or all of a vector, has its values pixel after pixel, which are stored channel after channel.
    ByPixel,
}

/// The values of a pixel.
pub(crate) const COLOURS: usize = 3;

/// The name of a weight's tensor in the container, and the weight's part of it.
pub(crate) fn stored_as(weight: &Weight, kind: ContainerKind) -> (Option<&str>, Option<TensorPart>) {
    match kind {
        ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
            (weight.hf.as_deref(), weight.hf_part)
        }
        ContainerKind::Gguf => (weight.gguf.as_deref(), weight.gguf_part),
    }
}

/// The tensors that a name stands for: those of all experts if it has `{e}`, of which the container has the
/// first ones without a gap.
pub(crate) fn stack(container: &Container, name: &str) -> Vec<String> {
    if !name.contains(EXPERT) {
        return vec![name.to_owned()];
    }
    let of = |expert: usize| name.replace(EXPERT, &expert.to_string());
    (0..).map(of).take_while(|name| has(container, name)).collect()
}

/// Whether a container has a tensor, readable or not.
pub(crate) fn has(container: &Container, name: &str) -> bool {
    container.tensors().contains_key(name) || container.unreadable().contains_key(name)
}

/// Those of these tensors that the container has.
///
/// # Errors
/// When girih cannot read one of them.
pub(crate) fn readable<'a>(
    container: &'a Container,
    tensors: &'a [String],
) -> Result<Vec<(&'a String, &'a TensorInfo)>> {
    let unreadable = tensors.iter().find_map(|tensor| Some((tensor, container.unreadable().get(tensor)?)));
    if let Some((tensor, unreadable)) = unreadable {
        return Err(Error::new(format!("tensor {}: {}", quote(tensor), unreadable.why)));
    }
    let found = tensors.iter().filter_map(|tensor| Some((tensor, container.tensors().get(tensor)?)));
    Ok(found.collect())
}

/// The tensor of the second frame, if the container has a tensor of its own for each.
pub(crate) fn next_frame(weight: &Weight, kind: ContainerKind) -> Option<&str> {
    weight.gguf_next.as_deref().filter(|_| kind == ContainerKind::Gguf)
}

/// The source of a weight from tensors that the container has, one or those of a stack.
pub(crate) fn entry(
    tensors: &[(&String, &TensorInfo)],
    part: Option<TensorPart>,
    is_stack: bool,
) -> Result<WeightEntry> {
    let mut parts = Vec::with_capacity(tensors.len());
    for (tensor, info) in tensors {
        check_numbers(tensor, info)?;
        let failed = |error: Error| {
            Error::new(format!("tensor {} has the shape {}, {error}", quote(tensor), info.shape))
        };
        let (info, columns) = part_of(info, part).map_err(failed)?;
        parts.push(((*tensor).clone(), info, columns));
    }
    let [(tensor, first, columns), ..] = &parts[..] else { return Err(Error::new("a stack has no tensor")) };
    if !is_stack && columns.is_none() {
        let (tensor, info) = (tensor.clone(), first.clone());
        return Ok(WeightEntry::Stored { tensor, info, order: TensorOrder::AsStored });
    }
    if let Some((other, info, _)) =
        parts.iter().find(|(_, info, _)| (info.dtype, info.shape) != (first.dtype, first.shape))
    {
        return Err(Error::new(format!(
            "tensor {} is {} {} and tensor {} is {} {}; a stack needs equal ones",
            quote(tensor),
            first.dtype,
            first.shape,
            quote(other),
            info.dtype,
            info.shape
        )));
    }
    let dtype = first.dtype;
    if dtype.tile().0 != 1 {
        return Err(Error::new(format!(
            "tensor {} is stored as {dtype}, of which no weight is assembled",
            quote(tensor)
        )));
    }
    let width = columns.as_ref().map_or(first.shape.columns(), |columns| columns.len());
    let mut extents: Vec<usize> = first.shape.extents().to_vec();
    if let Some(last) = extents.last_mut() {
        *last = width;
    }
    if is_stack {
        extents.insert(0, parts.len());
    }
    let shape = Shape::new(&extents)?;
    dtype.bytes(&shape)?;
    let row = dtype.matrix_bytes(1, first.shape.columns())?;
    let range = match columns {
        None => 0..row,
        Some(columns) => dtype.matrix_bytes(1, columns.start)?..dtype.matrix_bytes(1, columns.end)?,
    };
    let parts = parts.into_iter();
    let parts = parts.map(|(tensor, info, _)| RowsPart { tensor, info, row, range: range.clone() }).collect();
    Ok(WeightEntry::Assembled { parts: Arc::new(parts), dtype, shape })
}

/// Refuses a weight that is stored as integers: their scales, if there are any, are elsewhere.
fn check_numbers(tensor: &str, info: &TensorInfo) -> Result<()> {
    if !matches!(info.dtype, DType::I8 | DType::U8 | DType::I32 | DType::I64) {
        return Ok(());
    }
    Err(Error::new(format!(
        "tensor {} is stored as {} without scales, but girih needs the scales; convert the original model",
        quote(tensor),
        info.dtype
    )))
}

/// A part of a tensor: that of its rows is a tensor of its own; of its columns, their range. All of it
/// without `part`.
fn part_of(info: &TensorInfo, part: Option<TensorPart>) -> Result<(TensorInfo, Option<Range<usize>>)> {
    if info.shape.elements() == 0 {
        return Err(Error::new("which is empty"));
    }
    let ([index, count], extent, tile) = match part {
        // Parts by heads depend on facts, and are split when these are known.
        None
        | Some(
            TensorPart::Flat { .. }
            | TensorPart::Grouped { .. }
            | TensorPart::InHeads { .. }
            | TensorPart::Delta { .. }
            | TensorPart::DeltaGrouped { .. }
            | TensorPart::Planes { .. }
            | TensorPart::Latent { .. }
            | TensorPart::Projected { .. }
            | TensorPart::Convolved { .. },
        ) => return Ok((info.clone(), None)),
        Some(TensorPart::From { from_row }) => {
            let rows = info.shape.extents()[0];
            let left = rows.checked_sub(from_row).filter(|left| *left > 0);
            let left = left.ok_or_else(|| Error::new(format!("of which {from_row} rows are left out")))?;
            return Ok((rows_in(info, rows - left..rows)?, None));
        }
        Some(TensorPart::Rows(part)) => (part, info.shape.extents()[0], info.dtype.tile().0),
        Some(TensorPart::Columns { columns }) => (columns, info.shape.columns(), info.dtype.tile().1),
        Some(TensorPart::OfLayers { .. } | TensorPart::Experts(_)) => {
            return Err(Error::new("of which no single part can be read"));
        }
    };
    if index >= count || !extent.is_multiple_of(tile.saturating_mul(count)) {
        return Err(Error::new(format!("of which part {index} of {count} equal parts cannot be read")));
    }
    let size = extent / count;
    if matches!(part, Some(TensorPart::Columns { .. })) {
        return Ok((info.clone(), Some(index * size..(index + 1) * size)));
    }
    let shape = info.shape.with_outermost(size);
    let bytes = info.dtype.bytes(&shape)? as u64;
    // All parts together have the tensor's bytes, which lie within its file.
    Ok((TensorInfo { shape, offset: info.offset + index as u64 * bytes, bytes, ..info.clone() }, None))
}

/// Checks that a tensor can be rearranged in this way.
pub(crate) fn check_order(tensor: &str, info: &TensorInfo, new: TensorOrder) -> Result<()> {
    let rows = info.shape.extents()[0];
    let fits = match new {
        TensorOrder::AsStored => true,
        TensorOrder::AddOne | TensorOrder::NegativeExp | TensorOrder::Transposed => {
            info.dtype.tile() == (1, 1)
        }
        TensorOrder::Conv1d { .. } => info.dtype.tile() == (1, 1) && info.shape.extents().len() == 2,
        TensorOrder::Interleaved { heads } => {
            let row_fits = info.dtype.tile().0 == 1 && (info.bytes as usize).is_multiple_of(rows.max(1));
            row_fits && rows.is_multiple_of(2 * heads)
        }
        TensorOrder::ByPixel => {
            let is_flat = info.shape.extents().len() <= 2 && info.shape.elements() > 0;
            info.dtype.tile() == (1, 1) && is_flat && info.shape.columns().is_multiple_of(COLOURS)
        }
    };
    if !fits {
        let (dtype, shape) = (info.dtype, info.shape);
        return Err(Error::new(format!(
            "tensor {}, {dtype} {shape}, cannot be rearranged to girih's layout",
            quote(tensor)
        )));
    }
    Ok(())
}

/// The other tensors that may hold a weight, where the first one is missing.
pub(crate) fn others_of(weight: &Weight, kind: ContainerKind, part: Option<TensorPart>) -> Vec<OtherTensor> {
    match kind {
        ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => weight.hf_or.clone(),
        ContainerKind::Gguf => weight.gguf_or.iter().map(|other| OtherTensor::gguf(other, part)).collect(),
    }
}
