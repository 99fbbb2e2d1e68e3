//! How a picture becomes images, and these the patches that a tower reads.

use girih_graph::Result;
use girih_image::{Picture, PictureTiling, Preprocess};

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
    /// The patches of a picture, each image's at these positions.
    pub fn patches(&self, picture: &Picture, positions: &[u32]) -> Result<ImagePatches> {
        let Some(rule) = &self.tiles else {
            return Ok(ImagePatches::new(self.image.rows(picture, positions)?));
        };
        let tiles = rule.tiles(picture, self.image.filter)?;
        let mut values = Vec::new();
        for image in &tiles.images {
            values.extend(self.image.rows(image, positions)?);
        }
        ImagePatches::tiled(values, tiles.grid)
    }
}
