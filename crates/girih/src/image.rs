//! Images as a model's tower reads them, and how they are prepared.

use std::fmt;
use std::sync::Arc;

use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::{ImageGrid, TowerFacts};
use sha2::{Digest as _, Sha256};

/// How images for a model are prepared: resized, and cut into square patches.
///
/// ```no_run
/// let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
/// assert_eq!((format.side, format.patch, format.cell, format.rows()), (Some(896), 14, 4, 256));
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFormat {
    /// The pixels of a side of the image, which is a square; `None` if images keep their proportions.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.side, Some(896));
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub side: Option<usize>,
    /// The pixels of a side of a patch.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.patch, 14);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub patch: usize,
    /// The values of a patch: channel after channel, frame after frame, row of pixels after row.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.patch_values, 588);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub patch_values: usize,
    /// The patches of a side of a cell, which becomes a row of the text model.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.cell, 4);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub cell: usize,
    /// The largest number of patches of an image.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.max_patches, 4096);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub max_patches: usize,
    /// Whether one step runs all rows of an image, because they attend to each other both ways.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert!(format.mutual);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub mutual: bool,
}

impl ImageFormat {
    pub(crate) fn of(facts: &TowerFacts) -> ImageFormat {
        ImageFormat {
            side: facts.image,
            patch: facts.patch,
            patch_values: facts.patch_values(),
            cell: facts.projector.cell,
            max_patches: facts.max_patches(),
            mutual: facts.image_tokens.mutual,
        }
    }

    /// The largest number of rows that an image becomes in the text model. Each takes a position of the context.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.rows(), 256);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn rows(&self) -> usize {
        self.max_patches / self.cell.pow(2)
    }
}

/// An image as the patches that a tower reads, cell after cell: cells row by row from the top left, and the patches of a
/// cell in the same way. A patch has its values channel after channel, row of pixels after row. [`ImageFormat`] has the
/// sizes.
///
/// ```
/// let image = girih::ImagePatches::new(vec![0.0; 4]);
/// assert_eq!(image.values().len(), 4);
/// ```
#[derive(Clone)]
pub struct ImagePatches {
    values: Arc<[f32]>,
    grid: Option<ImageGrid>,
    digest: [u8; 32],
}

impl fmt::Debug for ImagePatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImagePatches").field("values", &self.values.len()).finish_non_exhaustive()
    }
}

impl ImagePatches {
    /// An image with these values, patch after patch, for a model whose images have one size.
    ///
    /// ```
    /// let image = girih::ImagePatches::new(vec![0.0; 4]);
    /// assert!(image.grid().is_none());
    /// ```
    pub fn new(values: impl Into<Arc<[f32]>>) -> ImagePatches {
        ImagePatches::made(values.into(), None)
    }

    /// An image with these values and this number of patches, for a model whose images have any size.
    ///
    /// ```
    /// let grid = girih::ImageGrid { down: 2, across: 4 };
    /// assert_eq!(girih::ImagePatches::of_grid(vec![0.0; 8], grid).grid(), Some(grid));
    /// ```
    pub fn of_grid(values: impl Into<Arc<[f32]>>, grid: ImageGrid) -> ImagePatches {
        ImagePatches::made(values.into(), Some(grid))
    }

    fn made(values: Arc<[f32]>, grid: Option<ImageGrid>) -> ImagePatches {
        let mut digest = Sha256::new();
        values.iter().for_each(|value| digest.update(value.to_bits().to_le_bytes()));
        if let Some(ImageGrid { down, across }) = grid {
            digest.update((down as u64).to_le_bytes());
            digest.update((across as u64).to_le_bytes());
        }
        ImagePatches { digest: digest.finalize().into(), values, grid }
    }

    /// The patches down and across, if they were given.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).grid(), None);
    /// ```
    pub fn grid(&self) -> Option<ImageGrid> {
        self.grid
    }

    /// The patches down and across as an image of this tower.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when they are not those of an image of this model, or are not stated.
    pub(crate) fn grid_for(&self, facts: &TowerFacts) -> Result<ImageGrid> {
        let refused = |sentence: String| Error::with_kind(ErrorKind::Refused, sentence);
        let Some(grid) = self.grid.or(facts.only_grid()) else {
            return Err(refused(
                "images of this model have any size: give the patches with their grid".to_owned(),
            ));
        };
        let ImageGrid { down, across } = grid;
        if !facts.allows(grid) {
            let (cell, most) = (facts.projector.cell, facts.max_patches());
            return Err(refused(format!(
                "an image has {down} x {across} patches; this model takes at most {most}, in cells of {cell} x {cell}"
            )));
        }
        let (have, need) = (self.values.len(), grid.patches() * facts.patch_values());
        if have != need {
            return Err(refused(format!(
                "an image of {down} x {across} patches has {have} values; this model needs {need}"
            )));
        }
        Ok(grid)
    }

    /// The values, patch after patch.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).values(), [0.5]);
    /// ```
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// What identifies the values: images with equal ones share rows and state.
    ///
    /// ```
    /// use girih::ImagePatches;
    ///
    /// assert_ne!(ImagePatches::new(vec![0.5]).digest(), ImagePatches::new(vec![0.25]).digest());
    /// ```
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }
}
