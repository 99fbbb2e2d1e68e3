//! Rows that are given in place of others.

use girih_graph::ValueId;
use girih_graph::backend::GivenRows;

use super::rows::elementwise;
use crate::bound::BoundOp;

/// Copies `x`, with the given rows in place of its own.
pub(crate) fn bind(x: ValueId, given: ValueId, y: ValueId) -> BoundOp {
    let copy = elementwise(y, [x], |_, [x], y| y.copy_from_slice(x));
    BoundOp::new(move |step| {
        (copy.run)(step);
        let (given, stride) = (step.values.given(given), step.values.stride(y));
        let (y, []) = step.values.split(y, []);
        for GivenRows { first_row, values } in given {
            y[*first_row as usize * stride..][..values.len()].copy_from_slice(values);
        }
    })
}
