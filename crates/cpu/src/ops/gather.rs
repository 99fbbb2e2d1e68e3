//! The output rows of a value.

use girih_graph::ValueId;

use crate::bound::BoundOp;

pub(crate) fn bind(x: ValueId, y: ValueId) -> BoundOp {
    BoundOp::new(move |step| {
        let stride = step.values.stride(y);
        let (y, [x]) = step.values.split(y, [x]);
        for (&row, y) in step.rows.output_rows.iter().zip(y.chunks_exact_mut(stride)) {
            y.copy_from_slice(&x[row as usize * stride..][..stride]);
        }
    })
}
