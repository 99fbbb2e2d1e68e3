//! An image tower: two graphs. The first one makes a row of each patch. In the second one, each cell of neighbouring
//! patches is a sequence, which becomes a row of the text model.

use girih_graph::{InputSpec, Op, Pooling, ValueId};
use girih_tensor::{DType, Result};

use super::{Assembly, TOWER_HIDDEN, TOWER_ROWS};
use crate::arch::schema::CellRule;
use crate::arch::{ProjectorFacts, TowerFacts};

impl Assembly<'_> {
    /// The rows that the first layer reads: projections of patches, and the rows of their positions.
    pub(super) fn patch_rows(&mut self, tower: &TowerFacts) -> Result<ValueId> {
        let (values, width) = (tower.patch_values(), self.facts.sizes.width);
        let patches = self.graph.input(InputSpec::PATCHES, &[values], DType::F32);
        let table = self.facts.embed.positions;
        let positions = table.map(|rows| (self.graph.input(InputSpec::POSITIONS, &[], DType::I32), rows));
        let name = if positions.is_some() { "patches.rows" } else { "embed" };
        let weight = self.weight("patches.weight", &[width, values])?;
        let mut operands = vec![patches, weight];
        if tower.patch_bias {
            operands.push(self.weight("patches.bias", &[width])?);
        }
        let rows = self.graph.shaped(name, Op::Linear, &operands, &[width]);
        let Some((positions, count)) = positions else { return Ok(rows) };
        let position = self.table_rows("embed.positions.rows", positions, "embed.positions", count)?;
        Ok(self.graph.same("embed", Op::Add, &[rows, position]))
    }

    /// The output of the first graph, from the last layer's.
    pub(super) fn tower_hidden(&mut self, x: ValueId, tower: &TowerFacts) -> Result<ValueId> {
        let rows = self.graph.gather("tower.rows", x);
        self.norm(TOWER_HIDDEN, ["tower.norm.weight", "tower.norm.bias"], rows, tower.norm)
    }

    /// The row of each cell.
    pub(super) fn cell_rows(&mut self, projector: &ProjectorFacts) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let rows = self.graph.input(InputSpec::PATCHES, &[width], DType::F32);
        let pooled = match projector.cells {
            CellRule::Mean => self.graph.pool("cells", Pooling::Mean, rows),
        };
        let normed = self.norm("projector.normed", ["projector.norm.weight", ""], pooled, projector.norm)?;
        let weight = self.weight("projector.weight", &[projector.width, width])?;
        Ok(self.graph.shaped(TOWER_ROWS, Op::Linear, &[normed, weight], &[projector.width]))
    }
}
