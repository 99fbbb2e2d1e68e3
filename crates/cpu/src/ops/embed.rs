//! Rows of a table for ids.

use girih_graph::{Graph, ValueId};

use super::rows::by_rows;
use crate::bound::BoundOp;

pub(crate) fn bind(graph: &Graph, ids: ValueId, table: ValueId, y: ValueId) -> Result<BoundOp, String> {
    let (row, width) = (graph.value(y).shape.stride(), graph.value(table).shape.columns());
    if row != width {
        return Err(format!("its rows have {row} values, those of the table {width}"));
    }
    Ok(BoundOp::new(move |step| {
        let (ids, table) = (step.values.ids(ids), step.weights.table(table));
        let (y, []) = step.values.split(y, []);
        let executor = &mut step.executor;
        let kernels = executor.table;
        executor.pool.tiles(executor.locals, y, by_rows(table.columns()), |tile, _| {
            for row in tile.rows() {
                table.row(ids[row] as usize, kernels, tile.row(row));
            }
        });
    }))
}
