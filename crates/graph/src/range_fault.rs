//! Keys and values that the type of their state cannot hold.

use girih_tensor::{DType, Error, ErrorKind};

/// A key or value of a step that is finite, and would be infinite in the type of its state.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeFault {
    /// Its row among the rows of the step.
    pub row: u32,
    /// The name of the state value.
    pub name: String,
    /// The type of the state.
    pub dtype: DType,
    /// The key or value.
    pub value: f32,
}

impl RangeFault {
    /// The error of the sequence that the row belongs to, at this position.
    pub fn error(&self, position: u32) -> Error {
        let RangeFault { name, dtype, value, .. } = self;
        let sentence = format!(
            "'{name}' at position {position} is {value}, beyond the range of a KV cache in {dtype}: use f32 (--kv f32)"
        );
        Error::with_kind(ErrorKind::OutOfRange, sentence)
    }
}

/// Returns the value of largest magnitude among those that `dtype` cannot hold: they are finite, and
/// infinite or NaN once they are packed. Values that share a block with an infinite one or NaN do not count.
///
/// ```
/// use girih_graph::out_of_range;
/// use girih_tensor::DType;
///
/// // 65520 lies halfway between the largest number and the next power of two, which f16 lacks.
/// assert_eq!(out_of_range(DType::F16, &[65519.9, f32::INFINITY, f32::NAN]), None);
/// assert_eq!(out_of_range(DType::F16, &[1.0, -7e4, 65520.0]), Some(-7e4));
/// ```
///
/// # Panics
/// When the values are not whole blocks.
pub fn out_of_range(dtype: DType, values: &[f32]) -> Option<f32> {
    if dtype == DType::F32 {
        return None;
    }
    let columns = dtype.tile().1;
    let mut bytes = vec![0; values.len() / columns * dtype.block_bytes()];
    dtype.pack(values, &mut bytes);
    let mut held = vec![0.0; values.len()];
    dtype.unpack(&bytes, &mut held);
    let is_finite = |block: &[f32]| block.iter().all(|value| value.is_finite());
    let blocks = values.chunks(columns).zip(held.chunks(columns));
    let lost = blocks.filter(|(block, held)| is_finite(block) && !is_finite(held));
    lost.flat_map(|(block, _)| block).copied().max_by(|a, b| a.abs().total_cmp(&b.abs()))
}
