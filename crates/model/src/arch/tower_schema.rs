//! The schema of image towers: what they read and make in place of tokens and logits.

use serde::Deserialize;

use super::field::Field;

/// An image tower: an encoder of the patches of an image, each a row of pixels, and a projector that makes rows of the text
/// model of cells of neighbouring patches.
///
/// Its weights beside those of its layers: `patches.weight` and `patches.bias`, `embed.positions`, `tower.norm.weight` and
/// its bias (after the layers), `projector.norm.weight` if the projector has a norm, and `projector.weight`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TowerSchema {
    /// The pixels of a side of the image.
    pub image: Field,
    /// The pixels of a side of a patch. Pixels beyond the last whole patch are not read.
    pub patch: Field,
    /// The numbers of patches of a side that are described; none for all.
    #[serde(default)]
    pub sides: Vec<usize>,
    /// The values of a pixel.
    pub channels: Field,
    /// How pictures are resized, if the model's files do not say it.
    #[serde(default)]
    pub filter: PictureFilter,
    /// How a picture becomes several images, if it does.
    pub tiles: Option<TilesSchema>,
    /// How cells become rows.
    pub projector: ProjectorSchema,
    /// The tokens that stand for an image in a prompt.
    pub prompt: ImagePromptSchema,
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

/// How a picture becomes several images: tiles, row by row, and then the whole picture.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TilesSchema {
    /// The pixels of the longer side of a picture before it is cut; without a value, 4 times those of an image.
    pub edge: Field,
}

/// How cells of neighbouring patches become rows of the text model: joined, perhaps normalized by a root-mean-square norm,
/// and projected.
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
    /// The epsilon of the norm, if there is one.
    pub epsilon: Option<Field>,
}

/// What becomes of the patches of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CellRule {
    /// Their mean.
    Mean,
    /// Their values one after another, row of patches after row (pixel shuffle: Shi et al. 2016, arXiv 1609.05158).
    Concat,
}

/// The tokens that stand for an image in a prompt. A GGUF does not state them: the tokenizer has them by their texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagePromptSchema {
    /// The token before the image.
    pub begin: Option<Field>,
    /// The token in place of each row.
    pub row: Field,
    /// The token behind the image.
    pub end: Option<Field>,
    /// Whether the rows of an image attend to each other both ways.
    #[serde(default)]
    pub mutual: bool,
    /// The texts of these tokens.
    pub texts: ImageTexts,
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
    /// The special tokens in these texts; without a list, the first two without the space around them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
    /// What stands around the rows of tiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TileTexts>,
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
