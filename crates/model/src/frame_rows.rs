//! Weights of patches of several frames, from files that have a tensor for each frame.

use std::sync::Arc;

use girih_file::{TensorInfo, quote};
use girih_tensor::{DType, Error, Result, Shape};

use crate::rows_part::RowsPart;
use crate::weight_entry::WeightEntry;

/// The largest number of parts that a weight is assembled of: known towers have 6,912.
const MAX_PARTS: usize = 1 << 17;

/// A matrix whose rows have the values of these tensors, channel after channel, and in a channel frame after frame. Each tensor
/// has the shape `[rows, channels, down, across]`.
///
/// # Errors
/// When the tensors are not floats of one such shape.
pub(crate) fn frame_rows(tensors: &[(&String, &TensorInfo)]) -> Result<WeightEntry> {
    let Some(((name, first), others)) = tensors.split_first() else {
        return Err(Error::new("a weight of frames has no tensor"));
    };
    let refused =
        |why: String| Error::new(format!("tensor {}, {} {}, {why}", quote(name), first.dtype, first.shape));
    let &[rows, channels, down, across] = first.shape.extents() else {
        return Err(refused("has not the four dimensions of a weight of patches".to_owned()));
    };
    if let Some((other, info)) =
        others.iter().find(|(_, info)| (info.dtype, info.shape) != (first.dtype, first.shape))
    {
        let (dtype, shape) = (info.dtype, info.shape);
        return Err(refused(format!("and tensor {}, {dtype} {shape}, need to be equal", quote(other))));
    }
    let dtype = first.dtype;
    if first.shape.elements() == 0 || !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(refused("is no weight of floats".to_owned()));
    }
    let (planes, values) = (rows * channels, down * across);
    if planes.saturating_mul(tensors.len()) > MAX_PARTS {
        return Err(refused(format!("is more than {MAX_PARTS} parts of a weight")));
    }
    let plane = dtype.matrix_bytes(1, values)?;
    let shape = Shape::new(&[rows, channels.saturating_mul(values).saturating_mul(tensors.len())])?;
    dtype.bytes(&shape)?;
    let part = |index: usize, (tensor, info): &(&String, &TensorInfo)| {
        let (offset, bytes) = (info.offset + (index * plane) as u64, plane as u64);
        let info = TensorInfo { shape: Shape::vector(values), offset, bytes, ..(*info).clone() };
        RowsPart { tensor: (*tensor).clone(), info, row: plane, range: 0..plane }
    };
    let parts = (0..planes).flat_map(|index| tensors.iter().map(move |tensor| part(index, tensor)));
    Ok(WeightEntry::Assembled { parts: Arc::new(parts.collect()), dtype, shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: DType, extents: &[usize], offset: u64) -> TensorInfo {
        let shape = Shape::new(extents).unwrap();
        TensorInfo { dtype, shape, shard: 0, offset, bytes: dtype.bytes(&shape).unwrap() as u64 }
    }

    #[test]
    fn a_row_has_the_frames_of_each_channel_in_turn() {
        let names = ["first".to_owned(), "next".to_owned()];
        let [first, next] = [100, 500].map(|offset| tensor(DType::F16, &[2, 3, 2, 2], offset));
        let entry = frame_rows(&[(&names[0], &first), (&names[1], &next)]).unwrap();
        let WeightEntry::Assembled { parts, dtype, shape } = entry else { panic!("it has parts") };
        assert_eq!((dtype, shape.extents()), (DType::F16, &[2, 24][..]));
        let places: Vec<(&str, u64, u64)> =
            parts.iter().map(|part| (part.tensor.as_str(), part.info.offset, part.info.bytes)).collect();
        let expected = [100, 108, 116, 124, 132, 140];
        let expected = expected.into_iter().flat_map(|at| [("first", at, 8), ("next", at + 400, 8)]);
        assert_eq!(places, expected.collect::<Vec<_>>());
    }

    #[test]
    fn other_tensors_are_refused() {
        let names = ["first".to_owned(), "next".to_owned()];
        let first = tensor(DType::F32, &[2, 3, 2, 2], 0);
        for (first, next, words) in [
            (first.clone(), tensor(DType::F32, &[2, 3, 2, 3], 0), "need to be equal"),
            (first.clone(), tensor(DType::F16, &[2, 3, 2, 2], 0), "need to be equal"),
            (tensor(DType::F32, &[2, 12], 0), first.clone(), "four dimensions"),
            (tensor(DType::I8, &[2, 3, 2, 2], 0), tensor(DType::I8, &[2, 3, 2, 2], 0), "floats"),
            (
                tensor(DType::F32, &[1 << 17, 1, 1, 1], 0),
                tensor(DType::F32, &[1 << 17, 1, 1, 1], 0),
                "more than 131072 parts",
            ),
        ] {
            let error = frame_rows(&[(&names[0], &first), (&names[1], &next)]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(frame_rows(&[]).is_err());
    }
}
