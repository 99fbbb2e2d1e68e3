//! The schema of image towers: what they read and make in place of tokens and logits.

use serde::Deserialize;

use super::field::Field;

/// An image tower: an encoder of the patches of an image, each a row of pixels, and a projector that makes rows of the text
/// model of cells of neighbouring patches.
///
/// Its weights beside those of its layers: `patches.weight` and `patches.bias`, `embed.positions`, `tower.norm.weight` and
/// its bias (after the layers), `projector.norm.weight` and `projector.weight`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TowerSchema {
    /// The pixels of a side of the image.
    pub image: Field,
    /// The pixels of a side of a patch.
    pub patch: Field,
    /// The values of a pixel.
    pub channels: Field,
    /// How cells become rows.
    pub projector: ProjectorSchema,
    /// The tokens that stand for an image in a prompt.
    pub prompt: ImagePromptSchema,
}

/// How cells of neighbouring patches become rows of the text model: pooled, normalized by a root-mean-square norm, and
/// projected.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectorSchema {
    /// What becomes of the patches of a cell.
    pub cells: CellRule,
    /// The number of rows of an image: one for each cell.
    pub tokens: Field,
    /// The patches of a side of a cell, for files that do not state the number of rows.
    pub cell: Field,
    /// The hidden size of the text model.
    pub width: Field,
    /// The epsilon of the norm.
    pub epsilon: Field,
}

/// What becomes of the patches of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CellRule {
    /// Their mean.
    Mean,
}

/// The tokens that stand for an image in a prompt. A GGUF does not state them: the tokenizer has them by their texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagePromptSchema {
    /// The token before the image.
    pub begin: Field,
    /// The token in place of each row.
    pub row: Field,
    /// The token behind the image.
    pub end: Field,
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
}
