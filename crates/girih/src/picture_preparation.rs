//! How a picture becomes images, and these the patches that a tower reads.

use girih_graph::Result;
use girih_image::{PatchRows, Picture, PictureTiling, Preprocess};
use girih_model::arch::{ImageGrid, TowerFacts};

use crate::image::ImagePatches;

/// How a picture becomes images, and these become patches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PicturePreparation {
    /// How an image becomes patches.
    pub image: Preprocess,
    /// How a picture becomes several images, if it may.
    pub tiles: Option<PictureTiling>,
}

impl PicturePreparation {
    /// The patches of a picture for a tower.
    pub fn patches(&self, picture: &Picture, facts: &TowerFacts) -> Result<ImagePatches> {
        let cell = facts.projector.cell as u32;
        let Some(rule) = &self.tiles else {
            let PatchRows { values, down, across } = self.image.rows(picture, cell)?;
            return Ok(match facts.only_grid() {
                Some(_) => ImagePatches::new(values),
                None => {
                    ImagePatches::of_grid(values, ImageGrid { down: down as usize, across: across as usize })
                }
            });
        };
        let tiles = rule.tiles(picture, self.image.filter)?;
        let mut values = Vec::new();
        for image in &tiles.images {
            values.extend(self.image.rows(image, cell)?.values);
        }
        ImagePatches::tiled(values, tiles.grid)
    }
}
