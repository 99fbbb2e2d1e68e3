//! How a picture becomes images, and these the patches that a tower reads.

use girih_graph::Result;
use girih_image::{PatchRows, Picture, PictureTiling, Preprocess, TargetSize};
use girih_model::arch::{ImageGrid, TowerFacts};

use crate::image::ImagePatches;

/// How a picture becomes images, and these become patches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PicturePreparation {
    /// How an image becomes patches.
    pub image: Preprocess,
    /// The size that the model's files state, which may be larger than that of `image`.
    pub stated: TargetSize,
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
                    let grid = ImageGrid { down: down as usize, across: across as usize };
                    ImagePatches::of_grid(values, grid).with_note(self.note(picture, facts)?)
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

    /// Says if a picture becomes smaller than the model's files state.
    fn note(&self, picture: &Picture, facts: &TowerFacts) -> Result<Option<String>> {
        let sides = [picture.width(), picture.height()];
        let ([width, height], stated) = (self.image.size.of(sides)?, self.stated.of(sides)?);
        let [stated_width, stated_height] = stated;
        Ok((stated != [width, height]).then(|| {
            format!(
                "the picture becomes {width} x {height} pixels, and {stated_width} x {stated_height} by the model's files: \
                 girih runs image towers with at most {} patches",
                facts.max_patches()
            )
        }))
    }
}
