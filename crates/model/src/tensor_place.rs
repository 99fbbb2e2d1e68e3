//! Where the rows of a weight lie in a tensor of a GGUF that holds several weights: what a writer needs, as the inverse of
//! what reading does.

use std::ops::Range;

use girih_tensor::{Error, Result, Shape};

use crate::arch::LayerFacts;
use crate::arch::schema::TensorPart;
use crate::latent_rows::LatentCut;
use crate::row_cut::RowCut;

/// The rows of a tensor that are those of a weight, in its order, and the number of all rows of the tensor. The weight is this part of the tensor; `shape` is its
/// own, as the tensor has its rows and columns, and `layer` the layer that it belongs to, if it belongs to one.
///
/// # Errors
/// When the part does not say which rows these are.
pub fn rows_in_tensor(
    part: TensorPart,
    shape: &Shape,
    layer: Option<&LayerFacts>,
) -> Result<(Vec<Range<usize>>, usize)> {
    let rows = shape.extents()[0];
    let unknown = || Error::new("is a part of a tensor that can be read but not written");
    Ok(match part {
        TensorPart::Rows([index, count]) => {
            let own = index * rows..(index + 1) * rows;
            (vec![own], count * rows)
        }
        TensorPart::Latent { latent } => {
            let attend = layer.and_then(|layer| layer.mixer.attention()).ok_or_else(unknown)?;
            let facts = attend.latent.as_ref().ok_or_else(unknown)?;
            let cut = LatentCut::of(latent, attend.heads, facts);
            (cut.ranges(), cut.groups * cut.size)
        }
        TensorPart::Flat { .. }
        | TensorPart::Grouped { .. }
        | TensorPart::Projected { .. }
        | TensorPart::Convolved { .. }
        | TensorPart::InHeads { .. }
        | TensorPart::Delta { .. }
        | TensorPart::DeltaGrouped { .. }
        | TensorPart::Planes { .. } => {
            let mixer = &layer.ok_or_else(unknown)?.mixer;
            let cut = RowCut::of(part, mixer).ok_or_else(unknown)?;
            (cut.ranges(), cut.need().0)
        }
        TensorPart::Columns { .. }
        | TensorPart::Experts(_)
        | TensorPart::OfLayers { .. }
        | TensorPart::From { .. } => return Err(unknown()),
    })
}
