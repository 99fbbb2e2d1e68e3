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

/// A picture as the patches that a tower reads, cell after cell: cells row by row from the top left, and the patches of a
/// cell in the same way. A patch has its values channel after channel, row of pixels after row; in Gemma 4, pixel after pixel,
/// with the channels of each. [`ImageFormat`] has the sizes. Where a model cuts pictures into tiles, these come row by row, and then the whole picture; where it has crops of
/// pictures, these come behind the whole picture.
///
/// ```
/// let image = girih::ImagePatches::new(vec![0.0; 4]);
/// assert_eq!(image.values().len(), 4);
/// ```
#[derive(Clone)]
pub struct ImagePatches {
    values: Arc<[f32]>,
    grid: Option<ImageGrid>,
    /// The images of the picture beside the whole of it.
    parts: ImageParts,
    /// That of each image, in their order.
    digests: Arc<[[u8; 32]]>,
    note: Option<Arc<str>>,
}

/// The images of a picture beside the whole of it.
#[derive(Clone, Debug)]
enum ImageParts {
    /// The rows and columns of tiles before it.
    Tiles([u32; 2]),
    /// The number of crops behind it.
    Crops(u32),
    /// A video.
    Video(VideoTimes),
}

/// The times of the groups of frames of a video, in seconds.
#[derive(Clone, Debug)]
struct VideoTimes {
    /// The mean of those of each group's first and last frame.
    seconds: Arc<[f64]>,
    /// The time from the first frame of a group to that of the next one.
    step: f64,
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
        ImagePatches {
            digests: [digest(&values, grid)].into(),
            values,
            grid,
            parts: ImageParts::Tiles([0, 0]),
            note: None,
        }
    }

    /// A picture with these rows and columns of tiles, and the whole of it behind them. All have as many values.
    ///
    /// ```
    /// let picture = girih::ImagePatches::tiled(vec![0.0, 1.0, 2.0], [1, 2])?;
    /// assert_eq!((picture.tiles(), picture.images()), ([1, 2], 3));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the values cannot be shared evenly.
    pub fn tiled(values: impl Into<Arc<[f32]>>, tiles: [u32; 2]) -> Result<ImagePatches> {
        ImagePatches::of_parts(values.into(), ImageParts::Tiles(tiles))
    }

    /// A picture, and this number of crops of it behind it. All have as many values.
    ///
    /// ```
    /// let picture = girih::ImagePatches::cropped(vec![0.0, 1.0, 2.0], 2)?;
    /// assert_eq!((picture.crops(), picture.images()), (2, 3));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the values cannot be shared evenly.
    pub fn cropped(values: impl Into<Arc<[f32]>>, crops: u32) -> Result<ImagePatches> {
        ImagePatches::of_parts(values.into(), ImageParts::Crops(crops))
    }

    /// A video. Its frames form groups, and the tower reads each group as one image with this grid. `values` has the patches
    /// of the first group, then those of the next; all groups have equally many values. `seconds` has the time of each group.
    /// The distance between the first two times is that of all groups.
    ///
    /// ```
    /// use girih::{ImageGrid, ImagePatches};
    ///
    /// let grid = ImageGrid { down: 1, across: 1 };
    /// let video = ImagePatches::video(vec![0.0, 1.0], grid, [0.25, 1.25])?;
    /// assert_eq!((video.images(), video.seconds()), (2, Some(&[0.25, 1.25][..])));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the values cannot be shared evenly, a time is no finite number from 0 on, or times decrease.
    pub fn video(
        values: impl Into<Arc<[f32]>>,
        grid: ImageGrid,
        seconds: impl Into<Arc<[f64]>>,
    ) -> Result<ImagePatches> {
        let seconds = seconds.into();
        if seconds.is_empty() {
            let sentence = "a video has no times of frames; give one for each group of frames";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        if let Some(wrong) = seconds.iter().find(|time| !time.is_finite() || **time < 0.0) {
            let sentence =
                format!("a frame of a video has the time {wrong}; a number of seconds from 0 on is needed");
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        if let Some(pair) = seconds.windows(2).find(|pair| pair[1] < pair[0]) {
            let sentence = format!(
                "a frame of a video has the time {} behind one of {}; give frames in their order",
                pair[1], pair[0]
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let step = seconds.get(1).map_or(1.0, |second| second - seconds[0]);
        let times = VideoTimes { seconds, step };
        let found = ImagePatches::of_parts(values.into(), ImageParts::Video(times))?;
        let size = found.values.len() / found.images();
        let digests = found.values.chunks_exact(size).map(|values| {
            let mut of_video = Sha256::new();
            of_video.update(b"video");
            of_video.update(digest(values, Some(grid)));
            of_video.finalize().into()
        });
        Ok(ImagePatches { digests: digests.collect(), grid: Some(grid), ..found })
    }

    fn of_parts(values: Arc<[f32]>, parts: ImageParts) -> Result<ImagePatches> {
        let beside = match &parts {
            ImageParts::Tiles([rows, columns]) => u64::from(*rows) * u64::from(*columns),
            ImageParts::Crops(crops) => u64::from(*crops),
            ImageParts::Video(times) => (times.seconds.len() as u64).saturating_sub(1),
        };
        let size = values.len() / usize::try_from(beside + 1).unwrap_or(usize::MAX);
        if size == 0 || size as u64 * (beside + 1) != values.len() as u64 {
            let sentence = format!(
                "a picture of {} values has no {beside} images of equal size beside the whole of it; give as many values for each",
                values.len()
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let digests = values.chunks_exact(size).map(|values| digest(values, None)).collect();
        Ok(ImagePatches { digests, values, grid: None, parts, note: None })
    }

    /// The same video, whose groups of frames begin this number of seconds after one another.
    #[cfg(feature = "image")]
    pub(crate) fn with_step(self, step: f64) -> ImagePatches {
        let parts = match self.parts {
            ImageParts::Video(times) => ImageParts::Video(VideoTimes { step, ..times }),
            other => other,
        };
        ImagePatches { parts, ..self }
    }

    /// The seconds from the beginning of a group of frames to that of the next one, if this is a video.
    pub(crate) fn step(&self) -> Option<f64> {
        match &self.parts {
            ImageParts::Tiles(_) | ImageParts::Crops(_) => None,
            ImageParts::Video(times) => Some(times.step),
        }
    }

    /// The same patches, with a note on how they were made.
    #[cfg(feature = "image")]
    pub(crate) fn with_note(self, note: Option<String>) -> ImagePatches {
        ImagePatches { note: note.map(Arc::from), ..self }
    }

    /// How the picture was prepared otherwise than the model's files say, for people: a picture of very many patches becomes
    /// smaller.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).note(), None);
    /// ```
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The rows and columns of tiles before the whole picture; 0 and 0 if there are none.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).tiles(), [0, 0]);
    /// ```
    pub fn tiles(&self) -> [u32; 2] {
        match self.parts {
            ImageParts::Tiles(tiles) => tiles,
            ImageParts::Crops(_) | ImageParts::Video(_) => [0, 0],
        }
    }

    /// The number of crops behind the whole picture.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).crops(), 0);
    /// ```
    pub fn crops(&self) -> u32 {
        match self.parts {
            ImageParts::Tiles(_) | ImageParts::Video(_) => 0,
            ImageParts::Crops(crops) => crops,
        }
    }

    /// The times of the groups of frames in seconds, if this is a video.
    ///
    /// ```
    /// assert_eq!(girih::ImagePatches::new(vec![0.5]).seconds(), None);
    /// ```
    pub fn seconds(&self) -> Option<&[f64]> {
        match &self.parts {
            ImageParts::Tiles(_) | ImageParts::Crops(_) => None,
            ImageParts::Video(times) => Some(&times.seconds),
        }
    }

    /// The number of images that the picture becomes: its tiles or crops, and the whole.
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
        let (have, need) = (self.values.len() / self.images(), grid.patches() * facts.patch_values());
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

    /// What identifies the picture, with its tiles: those with equal values and an equal grid have equal digests.
    ///
    /// ```
    /// use girih::ImagePatches;
    ///
    /// assert_ne!(ImagePatches::new(vec![0.5]).digest(), ImagePatches::new(vec![0.25]).digest());
    /// let [one, other] = [0.5, 0.25].map(|tile| ImagePatches::tiled(vec![tile, 0.5, 1.0], [1, 2]));
    /// assert_ne!(one?.digest(), other?.digest());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn digest(&self) -> [u8; 32] {
        if let [only] = *self.digests {
            return only;
        }
        let (kind, counts) = match &self.parts {
            ImageParts::Tiles(counts) => (0, *counts),
            ImageParts::Crops(count) => (1, [*count, 1]),
            ImageParts::Video(times) => (2, [times.seconds.len() as u32, 1]),
        };
        let mut digest = Sha256::new();
        self.digests.iter().for_each(|of_image| digest.update(of_image));
        [kind, counts[0], counts[1]].iter().for_each(|count: &u32| digest.update(count.to_le_bytes()));
        digest.finalize().into()
    }
}

fn digest(values: &[f32], grid: Option<ImageGrid>) -> [u8; 32] {
    let mut digest = Sha256::new();
    values.iter().for_each(|value| digest.update(value.to_bits().to_le_bytes()));
    if let Some(ImageGrid { down, across }) = grid {
        digest.update((down as u64).to_le_bytes());
        digest.update((across as u64).to_le_bytes());
    }
    digest.finalize().into()
}
