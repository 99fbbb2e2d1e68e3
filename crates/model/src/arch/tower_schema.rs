//! The schema of image towers: what they read and make in place of tokens and logits.

use serde::Deserialize;

use super::field::Field;
use super::norm_kind::NormKind;

/// An image tower: an encoder of the patches of an image, each a row of pixels, and a projector that makes rows of the text
/// model of cells of neighbouring patches.
///
/// Its weights beside those of its layers: `patches.weight` and `patches.bias`, `embed.positions`, `tower.norm.weight` and
/// its bias (after the layers), `projector.norm.weight` and `projector.weight`, or for joined patches
/// `projector.up.weight` and `projector.down.weight`. Layers of the kind `tapped` have a projector of their own, whose rows
/// are added to outputs of the text model's first layers: `layers.{i}.tap.…`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TowerSchema {
    /// The pixels of a side of the image; without it, images have any size.
    pub image: Option<Field>,
    /// The pixels of a side of a patch. Pixels beyond the last whole patch are not read.
    pub patch: Field,
    /// The numbers of patches of a side that are described; none for all.
    #[serde(default)]
    pub sides: Vec<usize>,
    /// The patches of a side that are read as one; 1 without it.
    pub merged: Option<Field>,
    /// The values of a pixel.
    pub channels: Field,
    /// The number of equal frames that an image is read as; 1 without it.
    pub frames: Option<Field>,
    /// The pixels of a side of a window, for towers with layers whose patches attend within windows.
    pub window: Option<Field>,
    /// How pictures are resized, if the model's files do not say it.
    #[serde(default)]
    pub filter: PictureFilter,
    /// The pixels of pictures, if images have any size and the files do not say it.
    pub pixels: Option<PixelsSchema>,
    /// How the size of an image follows from its picture, if images have any size.
    #[serde(default)]
    pub sized: AnySize,
    /// How a picture becomes several images, if it does.
    pub tiles: Option<TilesSchema>,
    /// Which crops a picture has beside the whole of it, if the model's files ask for crops and do not say which.
    pub crops: Option<CropsSchema>,
    /// The order of the values of a patch.
    #[serde(default)]
    pub values: PatchOrder,
    /// What becomes of the values of a pixel, if the model's files do not say it.
    #[serde(default)]
    pub pixel_norm: PixelNorm,
    /// What projector files say of it, if that is something else because the tower itself computes a part of it.
    pub gguf_pixel_norm: Option<PixelNorm>,
    /// What patches know of their positions.
    #[serde(default)]
    pub positions: PatchPositions,
    /// Whether there are norms before and behind the projection of patches: `patches.norm` and `patches.after`.
    #[serde(default)]
    pub patch_norms: bool,
    /// The bounds of linear parts, if there are some.
    pub bounds: Option<BoundsSchema>,
    /// Whether there is a norm after the layers.
    #[serde(default = "yes")]
    pub norm: bool,
    /// How the frames of a video become images, if it is not by the defaults.
    #[serde(default)]
    pub video: VideoSchema,
    /// How cells become rows.
    pub projector: ProjectorSchema,
    /// The tokens that stand for an image in a prompt.
    pub prompt: ImagePromptSchema,
}

fn yes() -> bool {
    true
}

/// How the frames of a video become images: successive ones form groups, and each group is read as an image.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VideoSchema {
    /// How the size of frames follows.
    #[serde(default)]
    pub sized: FrameSize,
    /// Whether all groups start at one position, and only that in time counts them; else each has the positions of an image.
    #[serde(default)]
    pub in_one: bool,
    /// The positions in time of a second, if they do not count groups.
    pub positions_per_second: Option<Field>,
}

/// How the size of the frames of a video follows from their pictures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameSize {
    /// The settings bound the pixels of all frames together.
    #[default]
    Together,
    /// They bound those of a frame, as those of an image.
    Alone,
}

/// What a row of the table of learned positions stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchPositions {
    /// A patch.
    #[default]
    Learned,
    /// A point of a square grid that covers the image. That of a patch lies between four of them, and its row is their sum
    /// with weights that are linear in both directions.
    Interpolated,
    /// A line or a column: the table has one slice for columns and one for lines, and the row of a patch is the sum of both.
    ByAxis,
    /// The same, where the table has one slice for each point, with a row for columns and one for lines.
    ByPoint,
}

/// The order of the values of a patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchOrder {
    /// Channel after channel, frame after frame, row of pixels after row.
    #[default]
    ByChannel,
    /// Row of pixels after row, of each pixel its channels.
    ByPixel,
}

/// What becomes of the values of a pixel, which are from 0 to 1, before the tower reads them: a mean is subtracted, and the
/// rest divided by a deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PixelNorm {
    /// Values from −1 to 1 (transformers' `IMAGENET_STANDARD_MEAN` and `IMAGENET_STANDARD_STD`).
    #[default]
    Signed,
    /// The same values.
    Unit,
    /// Those of CLIP (transformers' `OPENAI_CLIP_MEAN` and `OPENAI_CLIP_STD`).
    Clip,
}

impl PixelNorm {
    /// The mean and the deviation of each channel.
    pub fn mean_and_std(self) -> [[f32; 3]; 2] {
        match self {
            PixelNorm::Signed => [[0.5; 3]; 2],
            PixelNorm::Unit => [[0.0; 3], [1.0; 3]],
            PixelNorm::Clip => {
                [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]]
            }
        }
    }

    /// Whether it is the usual one.
    pub fn is_usual(&self) -> bool {
        *self == PixelNorm::default()
    }
}

/// The bounds of linear parts of layers: numbers below and above become the bounds, before and behind the matrix. The
/// weights of part `P` are `layers.{i}.P.input_min`, `input_max`, `output_min` and `output_max`, one number each.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundsSchema {
    /// Whether the model has them. A GGUF does not state it: it has the weights, or not.
    #[serde(rename = "if")]
    pub are_there: Field,
    /// The parts that do, such as `mixer.q`.
    pub parts: Vec<String>,
}

/// How the size of an image follows from its picture, which nearly keeps its proportions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnySize {
    /// It is the nearest size of whole cells within bounds (transformers' `Qwen2VLImageProcessor`).
    #[default]
    Nearest,
    /// It is the largest size of whole cells that a number of rows allows (transformers' `Gemma4ImageProcessor`).
    Largest,
}

/// A filter that makes pixels of a resized picture of those around them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureFilter {
    /// A triangle.
    #[default]
    Bilinear,
    /// A windowed sinc of three lobes.
    Lanczos,
}

/// The pixels of a picture after resizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct PixelsSchema {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

/// How a picture becomes several images: tiles, row by row, and then the whole picture.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TilesSchema {
    /// The pixels of the longer side of a picture before it is cut; without a value, 4 times those of an image.
    pub edge: Field,
}

/// Which crops a picture has beside the whole of it: parts of its longer side.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct CropsSchema {
    /// The least pixels of a side of a crop.
    pub min_side: u32,
    /// The largest number of crops.
    pub most: u32,
    /// The least ratio of the longer side to the shorter one of a picture that has crops.
    pub min_ratio: f64,
}

/// How cells of neighbouring patches become rows of the text model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectorSchema {
    /// What becomes of the patches of a cell.
    pub cells: CellRule,
    /// The number of rows of an image: one for each cell.
    pub tokens: Option<Field>,
    /// The patches of a side of a cell, for files that do not state the number of rows.
    pub cell: Field,
    /// The hidden size of the text model.
    pub width: Field,
    /// Whether the mean of a cell is multiplied by the square root of the tower's width, before its norm.
    #[serde(default)]
    pub scaled: bool,
    /// Whether the mean of a cell is standardized before its norm: less `projector.shift`, times `projector.scale`, column by
    /// column. A GGUF does not state it: it has the weights, or not.
    pub standardized_if: Option<Field>,
    /// What the norm computes.
    #[serde(default)]
    pub norm: NormKind,
    /// Whether the norm has weights.
    #[serde(default = "yes")]
    pub norm_weight: bool,
    /// The epsilon of the norm, if there is one.
    pub epsilon: Option<Field>,
}

/// What becomes of the patches of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CellRule {
    /// Their mean is normalized and projected.
    Mean,
    /// Their norms follow one another in a row, which is projected, activated by GELU, and projected again.
    Joined,
    /// Their values follow one another in a row, row of patches after row, which is projected (pixel shuffle: Shi et al.
    /// 2016, arXiv 1609.05158).
    Concat,
}

/// The number of first layers of a text model to whose outputs further rows of images are added: one for each tapped layer
/// of the tower.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageLayers {
    /// The path of the list of tapped layers in `config.json`.
    pub listed: String,
    /// The number in a GGUF.
    pub count: Field,
}

/// The tokens that stand for an image in a prompt. A GGUF does not state them: the tokenizer has them by their texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagePromptSchema {
    /// The token before the image, if the template does not write it.
    pub begin: Option<Field>,
    /// The token in place of each row.
    pub row: Field,
    /// The token behind the image, if the template does not write it.
    pub end: Option<Field>,
    /// The token whose embeddings of layers the rows of an image have; without it, that of `row`.
    pub layer_input: Option<Field>,
    /// The token in place of each row of a video.
    pub video: Option<Field>,
    /// Whether the rows of an image attend to each other both ways.
    #[serde(default)]
    pub mutual: MutualRule,
    /// The texts of these tokens.
    pub texts: ImageTexts,
}

/// Whether the rows of an image attend to each other both ways.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum MutualRule {
    /// They do, or not, in all models.
    Always(bool),
    /// They do if a parameter is this word. A GGUF does not state it: they do unless the text model has embeddings of layers, as
    /// in Gemma 4 E2B and E4B (llama.cpp's `mtmd_decode_use_non_causal` tells these by their sizes).
    If {
        /// The parameter.
        of: Field,
        /// The word.
        is: String,
    },
}

impl MutualRule {
    /// Whether it depends on the model.
    pub fn is_conditional(&self) -> bool {
        matches!(self, MutualRule::If { .. })
    }
}

impl Default for MutualRule {
    fn default() -> MutualRule {
        MutualRule::Always(false)
    }
}

/// The texts of the tokens that stand for an image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct ImageTexts {
    /// What a chat template writes for an image.
    #[serde(rename = "template")]
    pub of_template: String,
    /// What stands before the rows in its place.
    pub before: String,
    /// What stands for each row.
    pub row: String,
    /// What stands behind the rows.
    pub after: String,
    /// The special tokens in these texts; without a list, `before` and `after`, trimmed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
    /// What stands around the rows of tiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TileTexts>,
    /// What stands around a picture and its crops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crops: Option<CropTexts>,
    /// What stands for a video; without it, the model's videos are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoTexts>,
}

/// The texts of a video, each of whose groups of frames is read as an image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct VideoTexts {
    /// What a chat template writes for a video.
    #[serde(rename = "template")]
    pub of_template: String,
    /// What stands before the rows of a group of frames; `{seconds}` is the mean of the times of its first and its last frame,
    /// and `{clock}` are its whole minutes and seconds, such as `01:05`.
    pub before: String,
    /// What stands for each row.
    pub row: String,
    /// What stands behind the rows of a group.
    pub after: String,
    /// What stands between two groups.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub between: String,
}

/// The texts around a picture and its crops. Each of these images has the texts of an image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct CropTexts {
    /// What stands before the whole picture.
    pub before: String,
    /// What stands between the whole picture and the first crop.
    pub first: String,
    /// What stands between two crops.
    pub between: String,
}

/// The texts around the tiles of a picture.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct TileTexts {
    /// What stands before the rows of a tile; `{row}` and `{column}` count from 1.
    pub before: String,
    /// What stands behind each row of tiles.
    pub line: String,
    /// What stands behind all tiles, before the whole picture.
    pub end: String,
}
