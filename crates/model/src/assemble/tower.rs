//! An image tower: graphs of two kinds. The first one makes a row of each patch. In the others, each cell of neighbouring
//! patches becomes a row of the text model: as a sequence whose mean is projected, or as one row of all its patches.

use girih_graph::{Act, InputSpec, Op, Pooling, ValueId};
use girih_tensor::{DType, Result};

use super::{Assembly, TOWER_HIDDEN, TOWER_ROWS};
use crate::arch::schema::{CellRule, PatchPositions};
use crate::arch::{PLACE_AXES, ProjectorFacts, TowerFacts};
use crate::tower_part::TowerPart;

impl Assembly<'_> {
    /// The rows that the first layer reads: projections of patches, and the rows of their positions.
    pub(super) fn patch_rows(&mut self, tower: &TowerFacts) -> Result<ValueId> {
        let (values, width) = (tower.patch_values(), self.facts.sizes.width);
        let patches = self.graph.input(InputSpec::PATCHES, &[values], DType::F32);
        let table = self.facts.embed.positions;
        let positions = match (table, tower.positions) {
            (None, _) => None,
            (Some(_), PatchPositions::Interpolated | PatchPositions::ByAxis | PatchPositions::ByPoint) => {
                Some(self.graph.input(InputSpec::POSITION_ROWS, &[width], DType::F32))
            }
            (Some(_), PatchPositions::Learned) => {
                Some(self.graph.input(InputSpec::POSITIONS, &[], DType::I32))
            }
        };
        let ropes = self.facts.layers.iter().filter_map(|layer| layer.mixer.attention()?.rope.as_ref());
        if ropes.into_iter().any(|rope| rope.axes.is_some()) {
            self.axes = Some(self.graph.input(InputSpec::AXES, &[PLACE_AXES], DType::F32));
        }
        let name = if positions.is_some() { "patches.rows" } else { "embed" };
        let weight = self.weight("patches.weight", &[width, values])?;
        let mut read = patches;
        if let Some(norm) = tower.patch_norms {
            let names = ["patches.norm.weight", "patches.norm.bias"];
            read = self.norm_of("patches.normed", names, patches, norm, values)?;
        }
        let mut operands = vec![read, weight];
        if tower.patch_bias {
            operands.push(self.weight("patches.bias", &[width])?);
        }
        let mut rows = self.graph.shaped(name, Op::Linear, &operands, &[width]);
        if let Some(norm) = tower.patch_norms {
            let names = ["patches.after.weight", "patches.after.bias"];
            rows = self.norm("patches.rows.normed", names, rows, norm)?;
        }
        let position = match (positions, table, tower.positions) {
            (Some(positions), Some(count), PatchPositions::Learned) => {
                self.table_rows("embed.positions.rows", positions, "embed.positions", count)?
            }
            (Some(positions), _, _) => positions,
            (None, _, _) => return Ok(rows),
        };
        Ok(self.graph.same("embed", Op::Add, &[rows, position]))
    }

    /// The output of the first graph, from the last layer's.
    pub(super) fn tower_hidden(&mut self, x: ValueId, tower: &TowerFacts) -> Result<ValueId> {
        match tower.norm {
            None => Ok(self.graph.gather(TOWER_HIDDEN, x)),
            Some(norm) => {
                let rows = self.graph.gather("tower.rows", x);
                self.norm(TOWER_HIDDEN, ["tower.norm.weight", "tower.norm.bias"], rows, norm)
            }
        }
    }

    /// The row of each cell.
    pub(super) fn cell_rows(&mut self, projector: &ProjectorFacts) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let rows = self.graph.input(InputSpec::PATCHES, &[width], DType::F32);
        let pooled = self.graph.pool("cells", Pooling::Mean, rows);
        let mut pooled = self.scaled("cells.scaled", projector.scale, pooled);
        if projector.standardized {
            for (name, op, weight) in [
                ("cells.shifted", Op::ShiftColumns, "projector.shift"),
                ("cells.standardized", Op::ScaleColumns, "projector.scale"),
            ] {
                let weight = self.weight(weight, &[width])?;
                pooled = self.graph.same(name, op, &[pooled, weight]);
            }
        }
        let normed = match projector.norm {
            Some(norm) => self.norm("projector.normed", ["projector.norm.weight", ""], pooled, norm)?,
            None => pooled,
        };
        let weight = self.weight("projector.weight", &[projector.width, width])?;
        Ok(self.graph.shaped(TOWER_ROWS, Op::Linear, &[normed, weight], &[projector.width]))
    }

    /// The row of each cell, of the values of all its patches one after the other.
    fn concatenated_rows(&mut self, projector: &ProjectorFacts) -> Result<ValueId> {
        let values = (projector.cell * projector.cell).saturating_mul(self.facts.sizes.width);
        let rows = self.graph.input(InputSpec::PATCHES, &[values], DType::F32);
        let rows = self.graph.gather("cells", rows);
        let weight = self.weight("projector.weight", &[projector.width, values])?;
        Ok(self.graph.shaped(TOWER_ROWS, Op::Linear, &[rows, weight], &[projector.width]))
    }

    /// The row of each cell, of the rows of all its patches one after the other. The norm is that of each patch, but that of
    /// the whole row after a tapped layer.
    pub(super) fn joined_rows(&mut self, tower: &TowerFacts, part: TowerPart) -> Result<ValueId> {
        let ProjectorFacts { cell, norm, width: of_text, .. } = tower.projector;
        let (patches, width) = (cell * cell, self.facts.sizes.width);
        let (at, joined) = match part {
            TowerPart::Tap(index) => (
                format!("layers.{}.tap", tower.taps.get(index).copied().unwrap_or_default()),
                patches * width,
            ),
            TowerPart::Patches | TowerPart::Cells => ("projector".to_owned(), patches * width),
        };
        let rows = self.graph.input(InputSpec::PATCHES, &[joined], DType::F32);
        let names = [format!("{at}.norm.weight"), format!("{at}.norm.bias")];
        let names = [names[0].as_str(), names[1].as_str()];
        let normed = match (part, norm) {
            (_, None) => rows,
            (TowerPart::Tap(_), Some(norm)) => self.norm_of("projector.normed", names, rows, norm, joined)?,
            (TowerPart::Patches | TowerPart::Cells, Some(norm)) => {
                let each = self.graph.shaped("projector.patches", Op::Reshape, &[rows], &[patches, width]);
                let normed = self.norm("projector.normed", names, each, norm)?;
                self.graph.shaped("projector.joined", Op::Reshape, &[normed], &[joined])
            }
        };
        let named = |part: &str| [format!("{at}.{part}.weight"), format!("{at}.{part}.bias")];
        let projected = |own: &mut Self, name: &str, part: &str, x, outputs: usize| -> Result<ValueId> {
            let [weight, bias] = named(part);
            let operands = [x, own.weight(&weight, &[outputs, joined])?, own.weight(&bias, &[outputs])?];
            Ok(own.graph.shaped(name, Op::Linear, &operands, &[outputs]))
        };
        let up = projected(self, "projector.up", "up", normed, joined)?;
        let act = Op::Activate { act: Act::Gelu };
        let activated = self.graph.same("projector.activated", act, &[up]);
        let activated = self.graph.gather("projector.rows", activated);
        projected(self, TOWER_ROWS, "down", activated, of_text)
    }

    /// How the rows of cells are made.
    pub(super) fn projected_cells(&mut self, tower: &TowerFacts, part: TowerPart) -> Result<ValueId> {
        match tower.projector.cells {
            CellRule::Mean => self.cell_rows(&tower.projector),
            CellRule::Joined => self.joined_rows(tower, part),
            CellRule::Concat => self.concatenated_rows(&tower.projector),
        }
    }
}
