//! An image tower: two graphs. The first one makes a row of each patch. The second one makes a row of the text model of each
//! cell of neighbouring patches: a sequence, whose mean it takes, or one row with the values of all.

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
        let values = projector.cell_rows().saturating_mul(width);
        let rows = self.graph.input(InputSpec::PATCHES, &[values], DType::F32);
        let mut joined = match projector.cells {
            CellRule::Mean => self.graph.pool("cells", Pooling::Mean, rows),
            CellRule::Concat => self.graph.gather("cells", rows),
        };
        if let Some(norm) = projector.norm {
            joined = self.norm("projector.normed", ["projector.norm.weight", ""], joined, norm)?;
        }
        let weight = self.weight("projector.weight", &[projector.width, values])?;
        Ok(self.graph.shaped(TOWER_ROWS, Op::Linear, &[joined, weight], &[projector.width]))
    }
}
