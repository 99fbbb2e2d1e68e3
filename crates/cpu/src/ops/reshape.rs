//! The same numbers under another shape.

use girih_graph::ValueId;

use super::rows::elementwise;
use crate::bound::BoundOp;

/// Copies the numbers, unless the result is the operand's memory.
pub(crate) fn bind(x: ValueId, y: ValueId) -> BoundOp {
    let copy = elementwise(y, [x], |_, [x], y| y.copy_from_slice(x));
    BoundOp::new(move |step| {
        if step.values.is_alias(x, y) {
            step.executor.variant[0] = "alias";
        } else {
            (copy.run)(step);
        }
    })
}
