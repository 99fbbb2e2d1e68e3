//! Weights of patches in the order that projector files do not have: values pixel after pixel, and tables of positions by point.

use std::sync::Arc;

use girih_file::{Container, TensorInfo, quote};
use girih_tensor::{Error, Result, Shape};

use crate::rows_part::RowsPart;
use crate::weight_bytes::past_end;
use crate::weight_entry::{COLOURS, WeightEntry};

/// The largest number of rows of a table that is read in another order: published ones have 20,480.
const MAX_ROWS: usize = 1 << 17;

/// Reads a weight whose rows have their values pixel after pixel, and are stored channel after channel. Reads each row that
/// `into` touches once.
///
/// # Errors
/// When the file cannot be read, or has no such bytes.
pub(crate) fn read_by_pixel(
    container: &Container,
    info: &TensorInfo,
    offset: u64,
    into: &mut [u8],
) -> Result<()> {
    let columns = info.shape.columns();
    let row = info.bytes as usize / info.shape.rows();
    let (mut at, mut rest) = (offset as usize, into);
    let mut stored = vec![0; row];
    while !rest.is_empty() {
        if at >= info.bytes as usize {
            return Err(past_end());
        }
        let within = at % row;
        container.read(info, (at - within) as u64, &mut stored)?;
        let length = (row - within).min(rest.len());
        let (now, later) = rest.split_at_mut(length);
        now.copy_from_slice(&by_pixel(&stored, row / columns)[within..within + length]);
        (at, rest) = (at + length, later);
    }
    Ok(())
}

/// The values of a row, of `value` bytes each, pixel after pixel.
fn by_pixel(stored: &[u8], value: usize) -> Vec<u8> {
    let channel = stored.len() / COLOURS;
    let mut row = Vec::with_capacity(stored.len());
    for pixel in (0..channel).step_by(value) {
        for colour in 0..COLOURS {
            let first = colour * channel + pixel;
            row.extend_from_slice(&stored[first..first + value]);
        }
    }
    row
}

/// The weight with the two outermost dimensions of a tensor exchanged.
///
/// # Errors
/// When it has not three dimensions, or is stored in blocks of several rows.
pub(crate) fn swapped(tensor: &str, info: &TensorInfo) -> Result<WeightEntry> {
    let refused = |why: &str| {
        let (dtype, shape) = (info.dtype, info.shape);
        Error::new(format!("tensor {}, {dtype} {shape}, {why}", quote(tensor)))
    };
    let &[outer, inner, columns] = info.shape.extents() else {
        return Err(refused("has not the three dimensions of a table of positions"));
    };
    let rows = outer.saturating_mul(inner);
    if rows == 0 || rows > MAX_ROWS || info.dtype.tile().0 != 1 {
        return Err(refused("is no table of positions that girih can read"));
    }
    let bytes = info.dtype.matrix_bytes(1, columns)?;
    let row = |at: usize| {
        let (shape, offset) = (Shape::vector(columns), info.offset + (at * bytes) as u64);
        let info = TensorInfo { shape, offset, bytes: bytes as u64, ..info.clone() };
        RowsPart { tensor: tensor.to_owned(), info, row: bytes, range: 0..bytes }
    };
    let parts = (0..inner).flat_map(|second| (0..outer).map(move |first| first * inner + second)).map(row);
    let shape = Shape::new(&[inner, outer, columns])?;
    Ok(WeightEntry::Assembled { parts: Arc::new(parts.collect()), dtype: info.dtype, shape })
}

#[cfg(test)]
mod tests {
    use girih_tensor::DType;

    use super::*;

    #[test]
    fn the_values_of_a_pixel_follow_one_another() {
        // Red 0 to 3, green 10 to 13, blue 20 to 23, of two bytes each.
        let stored: Vec<u8> =
            [0, 10, 20].into_iter().flat_map(|c| (c..c + 4).flat_map(|v| [v, 99])).collect();
        let read: Vec<u8> = by_pixel(&stored, 2).into_iter().step_by(2).collect();
        assert_eq!(read, [0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23]);
    }

    #[test]
    fn a_table_by_axis_becomes_one_by_point() {
        let of = |dtype: DType, extents: &[usize]| {
            let shape = Shape::new(extents).unwrap();
            TensorInfo { dtype, shape, shard: 0, offset: 100, bytes: dtype.bytes(&shape).unwrap() as u64 }
        };
        let entry = swapped("t", &of(DType::F32, &[2, 3, 4])).unwrap();
        let WeightEntry::Assembled { parts, shape, .. } = entry else { panic!("it has parts") };
        assert_eq!(shape.extents(), [3, 2, 4]);
        let offsets: Vec<u64> = parts.iter().map(|part| part.info.offset).collect();
        assert_eq!(offsets, [100, 148, 116, 164, 132, 180]);
        for (info, words) in [
            (of(DType::F32, &[2, 12]), "has not the three dimensions"),
            (of(DType::F32, &[2, 1 << 17, 1]), "no table of positions that girih can read"),
        ] {
            let error = swapped("t", &info).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
