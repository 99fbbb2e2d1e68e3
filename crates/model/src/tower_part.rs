//! The parts of an image tower.

use girih_graph::{Key, OutputKind};

use crate::arch::TowerFacts;
use crate::arch::schema::CellRule;

/// A part of a tower, which is a program of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerPart {
    /// From patches to a hidden state of each.
    Patches,
    /// From hidden states to rows of the text model, one for each cell.
    Cells,
}

impl TowerPart {
    /// The only step of the part: one image.
    pub fn key(self, tower: &TowerFacts) -> Key {
        let (patches, rows) = (tower.patches() as u32, tower.rows() as u32);
        match self {
            TowerPart::Patches => Key {
                rows: patches,
                sequences: 1,
                context: patches,
                output_rows: patches,
                output: OutputKind::Hidden,
            },
            TowerPart::Cells => match tower.projector.cells {
                CellRule::Mean => Key {
                    rows: patches,
                    sequences: rows,
                    context: patches / rows,
                    output_rows: rows,
                    output: OutputKind::Pooled,
                },
                CellRule::Concat => {
                    Key { rows, sequences: 1, context: rows, output_rows: rows, output: OutputKind::Hidden }
                }
            },
        }
    }
}
