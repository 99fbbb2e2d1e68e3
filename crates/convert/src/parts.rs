//! Tensors of a GGUF that hold several weights.

use std::ops::Range;

use girih_file::quote;
use girih_model::arch::schema::TensorPart;
use girih_model::{ModelFiles, TensorPlace};
use girih_tensor::{Error, Result, Shape};

use super::plan::Planned;

/// Adds a weight: as a tensor, or as a part of the tensor of its name.
///
/// # Errors
/// When its place in the tensor is unknown.
pub(super) fn add(
    planned: &mut Vec<Planned>,
    weight: Planned,
    part: Option<TensorPart>,
    layer: Option<(&ModelFiles, usize)>,
) -> Result<()> {
    if part.is_none() {
        planned.push(weight);
        return Ok(());
    }
    let of = layer.map(|(model, layer)| {
        let layers = &model.facts.layers;
        (&layers[layer], [layer, layers.len()])
    });
    let place = TensorPlace::of(part, &weight.shape, of)
        .map_err(|error| Error::new(format!("'{}' {error}", weight.weight)))?;
    match planned.iter_mut().find(|tensor| tensor.name == weight.name) {
        Some(tensor) => tensor.parts.push((weight, place)),
        None => {
            let parts = vec![(weight.clone(), place)];
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
    let Some((first, place)) = tensor.parts.first() else { return Ok(()) };
    let missing = |tensor: &Planned| {
        Error::new(format!(
            "tensor {} of the file has other rows than those of the model's weights, which girih does not write",
            quote(&tensor.name)
        ))
    };
    let extents = first.shape.extents();
    if let TensorPlace::Columns { count, .. } = *place {
        let is_next = |(at, (part, place)): (usize, &(Planned, TensorPlace))| {
            *place == TensorPlace::Columns { index: at, count } && part.shape == first.shape
        };
        if tensor.parts.len() != count || !tensor.parts.iter().enumerate().all(is_next) {
            return Err(missing(tensor));
        }
        let columns = first.shape.columns().checked_mul(count).ok_or_else(|| missing(tensor))?;
        tensor.shape = Shape::new(&[&extents[..extents.len() - 1], &[columns]].concat())?;
        return Ok(());
    }
    let rows = rows(tensor);
    let mut end = 0;
    for (range, ..) in &rows {
        if range.start != end {
            return Err(missing(tensor));
        }
        end = range.end;
    }
    let columns = if extents.len() == 1 { None } else { Some(first.shape.columns()) };
    let is_alike = |(part, _): &(Planned, TensorPlace)| {
        let extents = part.shape.extents();
        columns.map_or(extents.len() == 1, |columns| extents.len() > 1 && part.shape.columns() == columns)
    };
    if !tensor.parts.iter().all(is_alike) {
        return Err(missing(tensor));
    }
    tensor.shape = match *extents {
        [_] => Shape::vector(end),
        [experts, _, columns] => Shape::new(&[experts, end / experts, columns])?,
        _ => Shape::matrix(end, first.shape.columns()),
    };
    Ok(())
}

/// The rows of a tensor in their order: a range of them, the index of the part that has it, and that part's first row.
pub(super) fn rows(tensor: &Planned) -> Vec<(Range<usize>, usize, usize)> {
    let mut rows = Vec::new();
    for (index, (_, place)) in tensor.parts.iter().enumerate() {
        let TensorPlace::Rows(ranges) = place else { continue };
        let mut first = 0;
        for range in ranges {
            rows.push((range.clone(), index, first));
            first += range.len();
        }
    }
    rows.sort_by_key(|(range, ..)| range.start);
    rows
}
