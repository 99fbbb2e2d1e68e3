//! Tensors of a GGUF that hold several weights, one after the other or by heads.

use std::ops::Range;

use girih_file::quote;
use girih_model::arch::schema::TensorPart;
use girih_model::{ModelFiles, rows_in_tensor};
use girih_tensor::{Error, Result, Shape};

use super::plan::Planned;

/// Adds a weight: as a tensor, or as a part of the tensor of its name.
///
/// # Errors
/// When its rows in the tensor are unknown.
pub(super) fn add(
    planned: &mut Vec<Planned>,
    weight: Planned,
    part: Option<TensorPart>,
    layer: Option<(&ModelFiles, usize)>,
) -> Result<()> {
    let Some(part) = part else {
        planned.push(weight);
        return Ok(());
    };
    let layer = layer.map(|(model, layer)| &model.facts.layers[layer]);
    let (rows, all) = rows_in_tensor(part, &weight.shape, layer)
        .map_err(|error| Error::new(format!("'{}' {error}", weight.weight)))?;
    match planned.iter_mut().find(|tensor| tensor.name == weight.name) {
        Some(tensor) => tensor.parts.push((weight, rows, all)),
        None => {
            let parts = vec![(weight.clone(), rows, all)];
            planned.push(Planned { parts, ..weight });
        }
    }
    Ok(())
}

/// Completes the shape of a tensor that consists of parts.
///
/// # Errors
/// When they do not fill it.
pub(super) fn join(tensor: &mut Planned) -> Result<()> {
    let Some((first, _, all)) = tensor.parts.first() else { return Ok(()) };
    let mut end = 0;
    for (range, ..) in rows(tensor) {
        if range.start != end {
            return Err(missing(tensor));
        }
        end = range.end;
    }
    if end != *all {
        return Err(missing(tensor));
    }
    let extents = first.shape.extents();
    let is_vector = extents.len() == 1;
    let columns = first.shape.columns();
    let is_alike = |(part, ..): &(Planned, Vec<Range<usize>>, usize)| match part.shape.extents().len() {
        1 => is_vector,
        _ => !is_vector && part.shape.columns() == columns,
    };
    if extents.len() > 2 || !tensor.parts.iter().all(is_alike) {
        return Err(missing(tensor));
    }
    tensor.shape = if is_vector { Shape::vector(end) } else { Shape::matrix(end, columns) };
    Ok(())
}

fn missing(tensor: &Planned) -> Error {
    Error::new(format!(
        "tensor {} of the file has other rows than those of the model's weights, which girih does not write",
        quote(&tensor.name)
    ))
}

/// The rows of a tensor in their order: a range of them, the index of the part that has it, and that part's first row.
pub(super) fn rows(tensor: &Planned) -> Vec<(Range<usize>, usize, usize)> {
    let mut rows = Vec::new();
    for (index, (_, ranges, _)) in tensor.parts.iter().enumerate() {
        let mut first = 0;
        for range in ranges {
            rows.push((range.clone(), index, first));
            first += range.len();
        }
    }
    rows.sort_by_key(|(range, ..)| range.start);
    rows
}
