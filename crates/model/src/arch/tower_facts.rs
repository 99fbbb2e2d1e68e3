//! Facts of image towers.

use serde::Serialize;

use super::norm_facts::NormFacts;
use super::tower_schema::{CellRule, ImageTexts, PictureFilter};

/// What an image tower reads and makes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TowerFacts {
    /// The pixels of a side of the image.
    #[serde(rename = "image_size")]
    pub image: usize,
    /// The pixels of a side of a patch. Pixels beyond the last whole patch are not read.
    #[serde(rename = "patch_size")]
    pub patch: usize,
    /// The values of a pixel.
    pub channels: usize,
    /// How pictures are resized, if the model's files do not say it.
    pub filter: PictureFilter,
    /// The pixels of the longer side of a picture before it is cut into tiles, each of which is an image; `None` if a
    /// picture is one image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiled_edge: Option<usize>,
    /// Whether the projection of patches has a bias.
    pub patch_bias: bool,
    /// The norm after the layers.
    #[serde(rename = "tower_norm")]
    pub norm: NormFacts,
    /// How cells become rows of the text model.
    pub projector: ProjectorFacts,
    /// The tokens that stand for an image in a prompt.
    pub image_tokens: ImageTokens,
}

/// How cells of neighbouring patches become rows of the text model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProjectorFacts {
    /// What becomes of the patches of a cell.
    pub cells: CellRule,
    /// The patches of a side of a cell; divides those of a side of the image.
    pub cell: usize,
    /// The norm of what a cell becomes, if there is one.
    #[serde(rename = "projector_norm", skip_serializing_if = "Option::is_none")]
    pub norm: Option<NormFacts>,
    /// The hidden size of the text model.
    #[serde(rename = "projector_width")]
    pub width: usize,
}

/// The tokens that stand for an image in a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageTokens {
    /// The id of the token for each row of an image, if the files state it; else it is that of its text.
    pub row: Option<u32>,
    /// The ids of the special tokens around the rows, if the files state them.
    pub marks: Option<[u32; 2]>,
    /// Whether the rows of an image attend to each other both ways.
    pub mutual: bool,
    /// Their texts.
    pub texts: ImageTexts,
}

impl ProjectorFacts {
    /// The hidden states that a row of the second program's input holds, one after another.
    pub fn cell_rows(&self) -> usize {
        match self.cells {
            CellRule::Mean => 1,
            CellRule::Concat => self.cell.pow(2),
        }
    }
}

impl TowerFacts {
    /// The patches of a side of the image.
    pub fn side(&self) -> usize {
        self.image / self.patch
    }

    /// The patches of an image.
    pub fn patches(&self) -> usize {
        self.side().pow(2)
    }

    /// The values of a patch: channel after channel, row of pixels after row.
    pub fn patch_values(&self) -> usize {
        self.channels * self.patch.pow(2)
    }

    /// The rows of the text model that an image becomes.
    pub fn rows(&self) -> usize {
        (self.side() / self.projector.cell).pow(2)
    }

    /// The positions of the patches in the order in which the tower reads them, cell after cell: cells row by row from the
    /// top left, and the patches of a cell in the same way. A position counts the patches row by row.
    pub fn positions(&self) -> Vec<u32> {
        let (side, cell) = (self.side(), self.projector.cell);
        let cells = (0..side / cell).flat_map(|y| (0..side / cell).map(move |x| (y * cell, x * cell)));
        let patches = cells.flat_map(|(top, left)| {
            (0..cell).flat_map(move |y| (0..cell).map(move |x| (top + y) * side + left + x))
        });
        patches.map(|position| position as u32).collect()
    }
}
