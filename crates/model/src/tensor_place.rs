//! Where the values of a weight lie in a tensor of a GGUF that holds several weights: what a writer needs, as the inverse
//! of what reading does.

use std::ops::Range;

use girih_tensor::{Error, Result, Shape};

use crate::arch::LayerFacts;
use crate::arch::schema::{ExpertsPart, LayersPart, TensorPart};
use crate::latent_rows::LatentCut;
use crate::row_cut::RowCut;

/// The place of a weight in a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorPlace {
    /// Its rows, in their order, are these rows of the tensor.
    Rows(Vec<Range<usize>>),
    /// Its columns are one of several equal parts of the tensor's columns.
    Columns {
        /// The index of the part.
        index: usize,
        /// The number of parts.
        count: usize,
    },
}

impl TensorPlace {
    /// The place of a weight that is this part of its tensor. `shape` is the weight's, as the tensor has its rows and
    /// columns, and `layer` the layer that it belongs to, with its index and the number of layers.
    ///
    /// # Errors
    /// When the part does not say where the weight lies.
    pub fn of(
        part: Option<TensorPart>,
        shape: &Shape,
        layer: Option<(&LayerFacts, [usize; 2])>,
    ) -> Result<TensorPlace> {
        let rows = shape.extents()[0];
        let unknown = || Error::new("is a part of a tensor that can be read but not written");
        let equal = |index: usize| TensorPlace::Rows(vec![index * rows..(index + 1) * rows]);
        Ok(match (part, layer) {
            (None, _) => equal(0),
            (Some(TensorPart::Rows([index, _])), _) => equal(index),
            (Some(TensorPart::Columns { columns: [index, count] }), _) => {
                TensorPlace::Columns { index, count }
            }
            (Some(TensorPart::OfLayers { of_layers: LayersPart::Rows }), Some((_, [index, _]))) => {
                equal(index)
            }
            (Some(TensorPart::OfLayers { of_layers: LayersPart::Columns }), Some((_, [index, count]))) => {
                TensorPlace::Columns { index, count }
            }
            (Some(TensorPart::Experts(part)), _) => match (part, shape.extents()) {
                (
                    ExpertsPart {
                        experts: [index, count],
                        interleaved: false,
                        transposed: false,
                        mxfp4: false,
                    },
                    &[experts, size, _],
                ) => {
                    let first = |expert: usize| (expert * count + index) * size;
                    TensorPlace::Rows((0..experts).map(|one| first(one)..first(one) + size).collect())
                }
                _ => return Err(unknown()),
            },
            (Some(TensorPart::Latent { latent }), Some((layer, _))) => {
                let attend = layer.mixer.attention().ok_or_else(unknown)?;
                let facts = attend.latent.as_ref().ok_or_else(unknown)?;
                TensorPlace::Rows(LatentCut::of(latent, attend.heads, facts).ranges())
            }
            (Some(part), Some((layer, _))) => {
                TensorPlace::Rows(RowCut::of(part, &layer.mixer).ok_or_else(unknown)?.ranges())
            }
            (Some(_), None) => return Err(unknown()),
        })
    }
}
