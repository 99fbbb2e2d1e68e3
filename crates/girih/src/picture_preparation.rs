//! How a picture becomes images, and these the patches that a tower reads.

use girih_graph::Result;
use girih_image::{PatchRows, Picture, PictureCrops, PictureTiling, Preprocess, TargetSize};
use girih_model::arch::{ImageGrid, TowerFacts};

use crate::image::ImagePatches;

/// How a picture becomes images, and these become patches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PicturePreparation {
    /// How an image becomes patches.
    pub image: Preprocess,
    /// The size that the model's files state, which may be larger than that of `image`.
    pub stated: TargetSize,
    /// Which images a picture becomes.
    pub parts: PictureParts,
}

/// Which images a picture becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PictureParts {
    /// One.
    Whole,
    /// Tiles, and the whole of it behind them.
    Tiles(PictureTiling),
    /// The whole of it, and crops behind it.
    Crops(PictureCrops),
}

impl PicturePreparation {
    /// The patches of a picture for a tower.
    pub fn patches(&self, picture: &Picture, facts: &TowerFacts) -> Result<ImagePatches> {
        match &self.parts {
            PictureParts::Whole => {
                let PatchRows { values, down, across } = self.rows(picture, facts)?;
                Ok(match facts.only_grid() {
                    Some(_) => ImagePatches::new(values),
                    None => {
                        let grid = ImageGrid { down: down as usize, across: across as usize };
                        ImagePatches::of_grid(values, grid).with_note(self.note(picture, facts)?)
                    }
                })
            }
            PictureParts::Tiles(rule) => {
                let tiles = rule.tiles(picture, self.image.filter)?;
                ImagePatches::tiled(self.values(&tiles.images, facts)?, tiles.grid)
            }
            PictureParts::Crops(rule) => {
                let crops = rule.crops(picture)?;
                let mut values = self.rows(picture, facts)?.values;
                values.extend(self.values(&crops, facts)?);
                ImagePatches::cropped(values, crops.len() as u32)
            }
        }
    }

    fn rows(&self, image: &Picture, facts: &TowerFacts) -> Result<PatchRows> {
        self.image.rows(image, facts.projector.cell as u32)
    }

    /// The values of these images, one after the other.
    fn values(&self, images: &[Picture], facts: &TowerFacts) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for image in images {
            values.extend(self.rows(image, facts)?.values);
        }
        Ok(values)
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
