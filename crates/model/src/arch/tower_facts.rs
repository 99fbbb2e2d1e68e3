//! Facts of image towers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::norm_facts::NormFacts;
use super::tower_schema::{
    AnySize, CellRule, CropsSchema, FrameSize, ImageTexts, PatchOrder, PatchPositions, PictureFilter,
    PixelNorm, PixelsSchema,
};

/// The axes of a patch's place: its column and its line.
pub(crate) const PLACE_AXES: usize = 2;

/// The largest number of patches of an image of any size: 1,048,576 pixels in patches of 16 x 16. Larger pictures are
/// scaled down, so that a tower's memory and time have a bound.
pub const MAX_PATCHES: usize = 4096;

/// The largest number of pixels of such an image.
const MAX_PIXELS: usize = 1 << 20;

/// What an image tower reads and makes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TowerFacts {
    /// The pixels of a side of the image; `None` if images have any size.
    #[serde(rename = "image_size")]
    pub image: Option<usize>,
    /// The pixels of a side of a patch. Pixels beyond the last whole patch are not read.
    #[serde(rename = "patch_size")]
    pub patch: usize,
    /// The patches of a side that files count where one is read.
    #[serde(rename = "merged_patches", skip_serializing_if = "is_one")]
    pub merged: usize,
    /// The values of a pixel.
    pub channels: usize,
    /// The number of equal frames that an image is read as.
    pub frames: usize,
    /// The cells of a side of a window, for towers with layers whose patches attend within windows. Those at the right and
    /// lower edge of an image may be smaller.
    #[serde(rename = "window_cells", skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// How pictures are resized, if the model's files do not say it.
    pub filter: PictureFilter,
    /// The pixels of pictures, if images have any size and the files do not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixels: Option<PixelsSchema>,
    /// How the size of an image follows from its picture, if images have any size.
    #[serde(skip)]
    pub sized: AnySize,
    /// The pixels of the longer side of a picture before it is cut into tiles, each of which is an image; `None` if a
    /// picture is one image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiled_edge: Option<usize>,
    /// Which crops a picture has beside the whole of it, if the model's files ask for crops and do not say which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crops: Option<CropsSchema>,
    /// Whether the projection of patches has a bias.
    pub patch_bias: bool,
    /// The norms before and behind the projection of patches, if there are some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_norms: Option<NormFacts>,
    /// The largest number of rows of an image, if the text model bounds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_rows: Option<usize>,
    /// The order of the values of a patch.
    #[serde(rename = "patch_order")]
    pub order: PatchOrder,
    /// What becomes of the values of a pixel, if the model's files do not say it.
    #[serde(skip_serializing_if = "PixelNorm::is_usual")]
    pub pixel_norm: PixelNorm,
    /// What patches know of their positions.
    pub positions: PatchPositions,
    /// How the size of the frames of a video follows.
    #[serde(skip)]
    pub frame_size: FrameSize,
    /// The positions in time of the groups of frames of a video.
    #[serde(rename = "video_times", skip_serializing_if = "GroupTimes::are_apart")]
    pub group_times: GroupTimes,
    /// The bounds of linear parts, by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub bounds: BTreeMap<String, LinearBounds>,
    /// The norm after the layers, if there is one.
    #[serde(rename = "tower_norm")]
    pub norm: Option<NormFacts>,
    /// How cells become rows of the text model.
    pub projector: ProjectorFacts,
    /// The layers after which a further projector makes rows, which are added to outputs of the text model's first layers.
    pub taps: Vec<usize>,
    /// The tokens that stand for an image in a prompt.
    pub image_tokens: ImageTokens,
}

/// The positions in time of the groups of frames of a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupTimes {
    /// Each group has the positions of an image by itself.
    Apart,
    /// All groups start at one position, and that in time counts them.
    Counted,
    /// The same with this number of positions in a second.
    PerSecond(usize),
}

impl GroupTimes {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn are_apart(&self) -> bool {
        *self == GroupTimes::Apart
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// The bounds of the numbers that a linear part reads and makes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinearBounds {
    /// The least and the largest number that it reads, if there are bounds.
    pub input: Option<[f32; 2]>,
    /// Those that it makes.
    pub output: Option<[f32; 2]>,
}

/// How cells of neighbouring patches become rows of the text model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProjectorFacts {
    /// What becomes of the patches of a cell.
    pub cells: CellRule,
    /// The patches of a side of a cell; divides those of a side of the image.
    pub cell: usize,
    /// The factor of the mean of a cell, before its norm.
    #[serde(rename = "cell_scale", skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// Whether the mean of a cell is standardized, before its norm.
    #[serde(rename = "cell_standardized", skip_serializing_if = "std::ops::Not::not")]
    pub standardized: bool,
    /// The norm of what a cell becomes, or of each of its patches, if there is one.
    #[serde(rename = "projector_norm", skip_serializing_if = "Option::is_none")]
    pub norm: Option<NormFacts>,
    /// The hidden size of the text model.
    #[serde(rename = "projector_width")]
    pub width: usize,
}

/// The tokens that stand for an image in a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageTokens {
    /// The id of the token before an image, if the files state it; else it is that of the text.
    pub begin: Option<u32>,
    /// That of the token for each row.
    pub row: Option<u32>,
    /// That of the token behind an image.
    pub end: Option<u32>,
    /// The token whose embeddings of layers the rows of an image have, if it is not that for each row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_input: Option<u32>,
    /// The id of the token for each row of a video, if the files state it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub video: Option<u32>,
    /// Whether the rows of an image attend to each other both ways.
    pub mutual: bool,
    /// Their texts.
    pub texts: ImageTexts,
}

/// The patches of an image: whole cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageGrid {
    /// The patches of a column.
    pub down: usize,
    /// The patches of a row.
    pub across: usize,
}

impl ImageGrid {
    /// The number of patches.
    pub fn patches(self) -> usize {
        self.down.saturating_mul(self.across)
    }

    /// The positions of the patches, cell after cell: cells row by row from the
    /// top left, and the patches of a cell in the same way. A position counts the patches row by row.
    pub fn positions(self, cell: usize) -> Vec<u32> {
        let ImageGrid { down, across } = self;
        let cells = (0..down / cell).flat_map(|y| (0..across / cell).map(move |x| (y * cell, x * cell)));
        let patches = cells.flat_map(|(top, left)| {
            (0..cell).flat_map(move |y| (0..cell).map(move |x| (top + y) * across + left + x))
        });
        patches.map(|position| position as u32).collect()
    }
}

impl TowerFacts {
    /// The patches of the only size of images; `None` if they have any size.
    pub fn only_grid(&self) -> Option<ImageGrid> {
        let side = self.image? / self.patch;
        Some(ImageGrid { down: side, across: side })
    }

    /// The patches of the only size of images, or of the largest square.
    pub fn largest_square(&self) -> ImageGrid {
        let side = self.max_patches().isqrt() / self.projector.cell * self.projector.cell;
        self.only_grid().unwrap_or(ImageGrid { down: side, across: side })
    }

    /// The largest number of patches of an image, which are whole cells.
    pub fn max_patches(&self) -> usize {
        let cell = self.projector.cell.pow(2);
        let most = (MAX_PATCHES.min(MAX_PIXELS / self.patch.pow(2)) / cell).max(1);
        let most = self.most_rows.map_or(most, |rows| rows.min(most));
        self.only_grid().map_or(most * cell, ImageGrid::patches)
    }

    /// Whether an image may have these patches.
    pub fn allows(&self, grid: ImageGrid) -> bool {
        let is_whole = |side: usize| side > 0 && side.is_multiple_of(self.projector.cell);
        match self.only_grid() {
            Some(only) => grid == only,
            None => is_whole(grid.down) && is_whole(grid.across) && grid.patches() <= self.max_patches(),
        }
    }

    /// The number of values of a patch.
    pub fn patch_values(&self) -> usize {
        self.channels * self.frames * self.patch.pow(2)
    }

    /// The rows of the text model that an image with these patches becomes.
    pub fn rows(&self, grid: ImageGrid) -> usize {
        grid.patches() / self.projector.cell.pow(2)
    }

    /// The largest number of rows of an image.
    pub fn max_rows(&self) -> usize {
        self.max_patches() / self.projector.cell.pow(2)
    }

    /// The rows of the text model side by side in the image, if the positions of its rows follow from their places there.
    pub fn rows_across(&self, grid: ImageGrid) -> usize {
        grid.across / self.projector.cell
    }

    /// Of each patch of an image, cell after cell: its row of patches and its column.
    pub fn places(&self, grid: ImageGrid) -> Vec<f32> {
        let positions = grid.positions(self.projector.cell).into_iter();
        positions
            .flat_map(|position| [position as usize / grid.across, position as usize % grid.across])
            .map(|at| at as f32)
            .collect()
    }
}
