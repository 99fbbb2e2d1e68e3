//! Streams tensors that hold several weights.

use std::num::NonZeroUsize;

use girih_file::ContainerWriter;
use girih_model::{ModelWeights, TensorPlace};
use girih_tensor::Result;

use super::bands::{BAND_WEIGHTS, MatrixView, check_finite, check_memory, write_rows};
use super::parts;
use super::plan::Planned;

/// Appends all parts of a tensor.
pub(super) fn write(
    writer: &mut ContainerWriter,
    weights: &ModelWeights,
    tensor: &Planned,
    threads: NonZeroUsize,
    step: &mut dyn FnMut(usize),
) -> Result<()> {
    if let Some((_, TensorPlace::Columns { .. })) = tensor.parts.first() {
        return write_columns(writer, weights, tensor, threads, step);
    }
    for (range, index, first) in parts::rows(tensor) {
        let some = first..first + range.len();
        let part = (tensor.name.as_str(), &tensor.parts[index].0);
        write_rows(writer, weights, part, Some(some), threads, step)?;
    }
    Ok(())
}

/// Appends rows that consist of a row of each part.
fn write_columns(
    writer: &mut ContainerWriter,
    weights: &ModelWeights,
    tensor: &Planned,
    threads: NonZeroUsize,
    step: &mut dyn FnMut(usize),
) -> Result<()> {
    let whole = MatrixView::of(tensor);
    let parts: Vec<MatrixView<'_>> = tensor.parts.iter().map(|(part, _)| MatrixView::of(part)).collect();
    let band = (BAND_WEIGHTS / whole.columns.max(1)).max(1);
    for start in (0..whole.rows).step_by(band) {
        let rows = band.min(whole.rows - start);
        check_memory(rows * whole.columns, threads)?;
        let mut values = vec![0.0; rows * whole.columns];
        let mut column = 0;
        for part in &parts {
            let own = part.decode(&part.read(weights, start, rows)?, rows)?;
            let rows = values.chunks_exact_mut(whole.columns).zip(own.chunks_exact(part.columns));
            rows.for_each(|(row, own)| row[column..column + part.columns].copy_from_slice(own));
            column += part.columns;
        }
        check_finite(&values)?;
        writer.append(&tensor.name, &whole.pack(&values, threads)?)?;
        step(values.len());
    }
    Ok(())
}
