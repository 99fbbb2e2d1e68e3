//! Facts of image towers.

use girih_tensor::{Error, Result};

use super::facts::NormFacts;
use super::field::Field;
use super::fill::Fill;
use super::schema::NormKind;
use super::tower_facts::{ImageTokens, ProjectorFacts, TowerFacts};
use super::tower_schema::{ImagePromptSchema, ProjectorSchema, TilesSchema};

/// The largest number of patches of an image: known towers with a fixed size have 4,096.
const MAX_PATCHES: usize = 1 << 16;

/// The largest number of values of a patch: known towers have 588.
const MAX_PATCH_VALUES: usize = 1 << 16;

impl Fill<'_> {
    /// What the model reads and makes, if it is an image tower.
    pub(super) fn tower(&self) -> Result<Option<TowerFacts>> {
        let Some(schema) = &self.arch.tower else { return Ok(None) };
        let image = self.size("tower.image", &schema.image)?;
        let patch = self.size("tower.patch", &schema.patch)?;
        let channels = self.size("tower.channels", &schema.channels)?;
        let side = image / patch;
        if side == 0 || side.saturating_mul(side) > MAX_PATCHES {
            return Err(Error::new(format!(
                "an image of {image} pixels a side has patches of {patch}; from 1 to {MAX_PATCHES} patches are needed"
            )));
        }
        if !schema.sides.is_empty() && !schema.sides.contains(&side) {
            return Err(Error::new(format!(
                "an image of {image} pixels a side has {side} patches of {patch} a side, whose positions architecture {} does \
                 not describe",
                self.arch.name
            )));
        }
        let values = patch.saturating_mul(patch).saturating_mul(channels);
        if values > MAX_PATCH_VALUES {
            return Err(Error::new(format!("a patch has {values} values; the cap is {MAX_PATCH_VALUES}")));
        }
        Ok(Some(TowerFacts {
            image,
            patch,
            channels,
            filter: schema.filter,
            tiled_edge: schema.tiles.as_ref().map(|tiles| self.tiled_edge(tiles, image)).transpose()?,
            patch_bias: self.stored.has("patches.bias"),
            norm: self.norm(&self.arch.norms, "tower.norm.weight", "tower.norm.bias")?,
            projector: self.projector(&schema.projector, side)?,
            image_tokens: self.image_tokens(&schema.prompt)?,
        }))
    }

    /// How the cells of an image of `side` patches a side become rows.
    fn projector(&self, schema: &ProjectorSchema, side: usize) -> Result<ProjectorFacts> {
        let tokens = schema.tokens.as_ref();
        let cell = match tokens.map(|field| Ok((field, self.config.size(field)?))).transpose()? {
            None | Some((_, None)) => self.size("tower.projector.cell", &schema.cell)?,
            Some((field, Some(tokens))) => {
                let rows = tokens.isqrt();
                if rows * rows != tokens || !side.is_multiple_of(rows) {
                    let key = self.config.key(field);
                    return Err(Error::new(format!(
                        "{key} is {tokens}; the {side} patches a side of an image need a square of one of their divisors"
                    )));
                }
                side / rows
            }
        };
        if !side.is_multiple_of(cell) {
            return Err(Error::new(format!(
                "cells have {cell} patches a side, but the image has {side}; a multiple is needed"
            )));
        }
        let norm = schema.epsilon.as_ref().map(|epsilon| {
            let epsilon = self.epsilon(epsilon)?;
            Ok(NormFacts { kind: NormKind::Rms, epsilon, weight: true, bias: false })
        });
        let norm = norm.transpose()?;
        let width = self.size("tower.projector.width", &schema.width)?;
        Ok(ProjectorFacts { cells: schema.cells, cell, norm, width })
    }

    /// The tokens that stand for an image. Without ids in the files, the tokenizer has them.
    fn image_tokens(&self, schema: &ImagePromptSchema) -> Result<ImageTokens> {
        let id = |field: Option<&Field>| {
            let id = field.map(|field| self.config.count(field)).transpose()?.flatten();
            Ok::<_, Error>(id.and_then(|id| u32::try_from(id).ok()))
        };
        let marks = [id(schema.begin.as_ref())?, id(schema.end.as_ref())?];
        let marks = match marks {
            [Some(begin), Some(end)] => Some([begin, end]),
            _ => None,
        };
        let row = id(Some(&schema.row))?;
        Ok(ImageTokens { row, marks, mutual: schema.mutual, texts: schema.texts.clone() })
    }

    /// The pixels of the longer side of a picture that is cut into tiles of `image` pixels a side.
    fn tiled_edge(&self, schema: &TilesSchema, image: usize) -> Result<usize> {
        let edge = self.config.size(&schema.edge)?;
        Ok(edge.unwrap_or(image.saturating_mul(4)))
    }
}
