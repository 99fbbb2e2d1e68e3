//! Images as a model's tower reads them, and how they are prepared.

use std::fmt;
use std::sync::Arc;

use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::TowerFacts;
use sha2::{Digest as _, Sha256};

/// How images for a model are prepared: resized to a square, and cut into square patches. A picture may become several
/// images: tiles of it, and the whole of it.
///
/// ```no_run
/// let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
/// assert_eq!((format.side, format.patch, format.cell, format.rows()), (896, 14, 4, 256));
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFormat {
    /// The pixels of a side of the image.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.side, 896);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub side: usize,
    /// The pixels of a side of a patch.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.patch, 14);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub patch: usize,
    /// The values of a pixel.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.channels, 3);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub channels: usize,
    /// The patches of a side of a cell, which becomes a row of the text model.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.cell, 4);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub cell: usize,
}

impl ImageFormat {
    pub(crate) fn of(facts: &TowerFacts) -> ImageFormat {
        let TowerFacts { image, patch, channels, projector, .. } = facts;
        ImageFormat { side: *image, patch: *patch, channels: *channels, cell: projector.cell }
    }

    /// The number of patches of an image.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.patches(), 4096);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn patches(&self) -> usize {
        (self.side / self.patch).pow(2)
    }

    /// The number of values of a patch: channel after channel, row of pixels after row.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.patch_values(), 588);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn patch_values(&self) -> usize {
        self.channels * self.patch.pow(2)
    }

    /// The number of rows that an image becomes in the text model. Each takes a position of the context.
    ///
    /// ```no_run
    /// # let format = girih::Model::open("models/gemma-3-4b-it")?.image_format()?;
    /// assert_eq!(format.rows(), 256);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn rows(&self) -> usize {
        (self.side / self.patch / self.cell).pow(2)
    }
}

/// A picture as the patches that a tower reads, cell after cell: cells row by row from the top left, and the patches of a
/// cell in the same way. A patch has its values channel after channel, row of pixels after row. [`ImageFormat`] has the
/// sizes. Where a model cuts pictures into tiles, these come row by row, and then the whole picture.
///
/// ```
/// let image = girih::ImagePatches::new(vec![0.0; 4]);
/// assert_eq!(image.values().len(), 4);
/// ```
#[derive(Clone)]
pub struct ImagePatches {
    values: Arc<[f32]>,
    /// The rows and columns of tiles before the whole picture.
    grid: [u32; 2],
    /// That of each tile, and that of the whole picture.
    digests: Arc<[[u8; 32]]>,
}

impl fmt::Debug for ImagePatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImagePatches").field("values", &self.values.len()).finish_non_exhaustive()
    }
}

impl ImagePatches {
    /// An image with these values, patch after patch.
    ///
    /// ```
    /// let image = girih::ImagePatches::new(vec![0.0; 4]);
    /// ```
    pub fn new(values: impl Into<Arc<[f32]>>) -> ImagePatches {
        let values = values.into();
        ImagePatches { digests: [digest(&values)].into(), grid: [0, 0], values }
    }

    /// A picture with this grid of rows and columns of tiles, and the whole of it behind them. All have as many values.
    ///
    /// ```
    /// let picture = girih::ImagePatches::tiled(vec![0.0, 1.0, 2.0], [1, 2])?;
    /// assert_eq!((picture.grid(), picture.images()), ([1, 2], 3));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the values cannot be shared evenly.
    pub fn tiled(values: impl Into<Arc<[f32]>>, grid: [u32; 2]) -> Result<ImagePatches> {
        let values = values.into();
        let images = u64::from(grid[0]) * u64::from(grid[1]) + 1;
        let size = values.len() / usize::try_from(images).unwrap_or(usize::MAX);
        if size == 0 || size as u64 * images != values.len() as u64 {
            let sentence = format!(
                "a picture of {} values has no {images} images of equal size; give tiles of {} rows and {} columns, and the \
                 whole picture",
                values.len(),
                grid[0],
                grid[1]
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        Ok(ImagePatches { digests: values.chunks_exact(size).map(digest).collect(), grid, values })
    }

    /// The rows and columns of tiles before the whole picture; 0 and 0 if there are none.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).grid(), [0, 0]);
    /// ```
    pub fn grid(&self) -> [u32; 2] {
        self.grid
    }

    /// The number of images that the picture becomes: its tiles, and the whole.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).images(), 1);
    /// ```
    pub fn images(&self) -> usize {
        self.digests.len()
    }

    /// The values of each of these images, and what identifies them.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&[f32], [u8; 32])> {
        let size = (self.values.len() / self.digests.len()).max(1);
        // An empty image has no chunk.
        let values = self.values.chunks(size).chain(std::iter::repeat(&[][..]));
        values.zip(self.digests.iter().copied())
    }

    /// The values, patch after patch.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).values(), [0.5]);
    /// ```
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// What identifies the values of the whole picture: images with equal ones share rows and state.
    ///
    /// ```
    /// use girih::ImagePatches;
    ///
    /// assert_ne!(ImagePatches::new(vec![0.5]).digest(), ImagePatches::new(vec![0.25]).digest());
    /// ```
    pub fn digest(&self) -> [u8; 32] {
        self.digests[self.digests.len() - 1]
    }
}

fn digest(values: &[f32]) -> [u8; 32] {
    let mut digest = Sha256::new();
    values.iter().for_each(|value| digest.update(value.to_bits().to_le_bytes()));
    digest.finalize().into()
}
