//! Rows that are given in place of others.

use girih_graph::backend::GivenRows;

use super::executor::Executor;
use super::rows::elementwise;

/// Copies `x` to `output`, with the given rows in place of its own.
pub(crate) fn splice(
    executor: &mut Executor<'_>,
    x: &[f32],
    given: &[GivenRows<'_>],
    stride: usize,
    output: &mut [f32],
) {
    elementwise(executor, [x], output, |[x], y| y.copy_from_slice(x));
    for GivenRows { first_row, values } in given {
        output[*first_row as usize * stride..][..values.len()].copy_from_slice(values);
    }
}
