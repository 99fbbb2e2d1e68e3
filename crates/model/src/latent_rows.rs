//! The parts of the projections of latent attention: rows of heads, and rows of both latents.

use std::ops::Range;

use girih_file::{TensorInfo, quote};
use girih_tensor::{Error, Result, Shape};

use crate::arch::LatentFacts;
use crate::arch::schema::LatentPart;
use crate::tensor_rows::rows_of;

/// Where the values of a part lie.
#[derive(Debug)]
pub(crate) enum LatentRows {
    /// In rows that follow each other.
    One(TensorInfo),
    /// In some rows of each head, which make a weight of this shape.
    Heads(Vec<TensorInfo>, Shape),
    /// In the same way, with the columns of each head's rows as rows.
    Transposed(Vec<TensorInfo>, Shape),
}

/// The rows of a part: in each of equal groups of rows those of a range.
#[derive(Debug)]
pub(crate) struct LatentCut {
    /// The number of groups.
    pub groups: usize,
    /// The rows of a group.
    pub size: usize,
    /// The part's rows in a group.
    pub range: Range<usize>,
}

impl LatentCut {
    pub fn of(part: LatentPart, heads: usize, latent: &LatentFacts) -> LatentCut {
        let LatentFacts { rank, nope, rope, value_size, .. } = *latent;
        let (groups, size, range) = match part {
            LatentPart::QNope => (heads, nope + rope, 0..nope),
            LatentPart::QRope => (heads, nope + rope, nope..nope + rope),
            LatentPart::Rows => (1, rank + rope, 0..rank),
            LatentPart::KRope => (1, rank + rope, rank..rank + rope),
            LatentPart::KUp => (heads, nope + value_size, 0..nope),
            LatentPart::VUp => (heads, nope + value_size, nope..nope + value_size),
        };
        LatentCut { groups, size, range }
    }

    pub fn ranges(&self) -> Vec<Range<usize>> {
        let LatentCut { groups, size, range } = self;
        (0..*groups).map(|group| group * size + range.start..group * size + range.end).collect()
    }
}

/// The rows of a part of a `tensor`, which has these many `heads`.
///
/// # Errors
/// When the tensor has another number of rows, or its format does not allow to take these.
pub(crate) fn part(
    tensor: &str,
    info: &TensorInfo,
    part: LatentPart,
    heads: usize,
    latent: &LatentFacts,
) -> Result<LatentRows> {
    let rows = info.shape.extents()[0];
    let cut = LatentCut::of(part, heads, latent);
    let LatentCut { groups, size, .. } = cut;
    // Before a list as long as the number of heads is made.
    if groups.checked_mul(size) != Some(rows) {
        return Err(Error::new(format!(
            "tensor {} has {rows} rows; {groups} times {size} are needed for latent attention",
            quote(tensor)
        )));
    }
    let ranges = cut.ranges();
    if let ([one], LatentPart::Rows | LatentPart::KRope) = (&ranges[..], part) {
        return Ok(LatentRows::One(rows_of(tensor, info, one.clone())?));
    }
    let infos = ranges.into_iter().map(|range| rows_of(tensor, info, range));
    let infos: Vec<TensorInfo> = infos.collect::<Result<_>>()?;
    let (columns, count) = (info.shape.columns(), cut.range.len());
    match part {
        LatentPart::KUp if info.dtype.tile() != (1, 1) => Err(Error::new(format!(
            "tensor {} is stored as {}, whose blocks cannot be transposed; convert the original model",
            quote(tensor),
            info.dtype
        ))),
        LatentPart::KUp => Ok(LatentRows::Transposed(infos, Shape::new(&[groups, columns, count])?)),
        LatentPart::VUp => Ok(LatentRows::Heads(infos, Shape::new(&[groups, count, columns])?)),
        LatentPart::QNope | LatentPart::QRope | LatentPart::Rows | LatentPart::KRope => {
            Ok(LatentRows::Heads(infos, Shape::new(&[groups * count, columns])?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_tensor::DType;

    const LATENT: LatentFacts = LatentFacts {
        query_rank: None,
        rank: 4,
        nope: 2,
        rope: 2,
        value_size: 3,
        epsilon: 1e-6,
        biases: false,
        indexer: None,
    };

    fn offsets(which: LatentPart, rows: usize, columns: usize) -> Result<(Vec<u64>, Option<Shape>)> {
        let shape = Shape::matrix(rows, columns);
        let bytes = (4 * rows * columns) as u64;
        let info = TensorInfo { dtype: DType::F32, shape, shard: 0, offset: 0, bytes };
        Ok(match part("w", &info, which, 2, &LATENT)? {
            LatentRows::One(info) => (vec![info.offset], None),
            LatentRows::Heads(infos, shape) | LatentRows::Transposed(infos, shape) => {
                (infos.iter().map(|info| info.offset).collect(), Some(shape))
            }
        })
    }

    #[test]
    fn parts_are_rows_of_heads() {
        let row = 4 * 4;
        assert_eq!(
            offsets(LatentPart::QRope, 8, 4).unwrap(),
            (vec![2 * row, 6 * row], Some(Shape::matrix(4, 4)))
        );
        assert_eq!(offsets(LatentPart::KRope, 6, 4).unwrap(), (vec![4 * row], None));
        let k = offsets(LatentPart::KUp, 10, 4).unwrap();
        assert_eq!(k, (vec![0, 5 * row], Some(Shape::new(&[2, 4, 2]).unwrap())));
        let v = offsets(LatentPart::VUp, 10, 4).unwrap();
        assert_eq!(v, (vec![2 * row, 7 * row], Some(Shape::new(&[2, 3, 4]).unwrap())));
        assert!(offsets(LatentPart::VUp, 11, 4).unwrap_err().to_string().contains("11 rows"));
    }
}
