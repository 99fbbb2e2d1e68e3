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
    /// The same from the hidden states after a tapped layer, of which this is the index among them: rows that are added to
    /// the output of the layer of the text model with that index.
    Tap(usize),
}

impl TowerPart {
    /// All parts of a tower.
    pub fn all(tower: &TowerFacts) -> Vec<TowerPart> {
        let taps = (0..tower.taps.len()).map(TowerPart::Tap);
        [TowerPart::Patches, TowerPart::Cells].into_iter().chain(taps).collect()
    }

    /// The largest step of the part: one image.
    pub fn key(self, tower: &TowerFacts) -> Key {
        let (patches, rows) = (tower.max_patches() as u32, tower.max_rows() as u32);
        let hidden =
            |rows| Key { rows, sequences: 1, context: rows, output_rows: rows, output: OutputKind::Hidden };
        match (self, tower.projector.cells) {
            (TowerPart::Patches, _) => hidden(patches),
            (TowerPart::Cells | TowerPart::Tap(_), CellRule::Joined | CellRule::Concat) => hidden(rows),
            (TowerPart::Cells | TowerPart::Tap(_), CellRule::Mean) => Key {
                rows: patches,
                sequences: rows,
                context: patches / rows,
                output_rows: rows,
                output: OutputKind::Pooled,
            },
        }
    }
}
