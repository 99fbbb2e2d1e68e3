//! Products of each row with a factor that follows from its position.

use girih_graph::{Temperature, ValueId};

use super::rows::each_row;
use super::scale::Scale;
use crate::bound::BoundOp;

/// Multiplies each row by the factor of its position.
pub(crate) fn bind(temperature: Temperature, x: ValueId, y: ValueId) -> BoundOp {
    BoundOp::new(move |step| {
        let (stride, origins) = (step.values.stride(y), step.rows.origins);
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, stride, y, |table, row, x, y| {
            let factor = temperature.at(origins[row].position) as f32;
            table.run(Scale { x, factor, y });
        });
    })
}
