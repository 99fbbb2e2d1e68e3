//! Numbers of weights as bytes.

use girih_tensor::{DType, Error, Result, Shape, View};

/// The numbers of a weight of this format and shape.
pub(crate) fn decode(dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<Vec<f32>> {
    let view = View::new(dtype, shape.rows(), shape.columns(), bytes)?;
    let mut numbers = vec![0.0; shape.elements()];
    view.unpack_rows(0..view.rows(), &mut numbers);
    Ok(numbers)
}

/// Copies the bytes of `numbers` from `offset` on to `into`.
pub(crate) fn copy(numbers: &[f32], offset: u64, into: &mut [u8]) -> Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let start = usize::try_from(offset).ok();
    let range = start.and_then(|start| Some(start..start.checked_add(into.len())?));
    let part = range.and_then(|range| bytes.get(range));
    into.copy_from_slice(part.ok_or_else(past_end)?);
    Ok(())
}

/// The error for a read past a weight's end.
pub(crate) fn past_end() -> Error {
    Error::new("a weight was read past its end")
}
