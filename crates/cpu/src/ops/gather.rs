//! The output rows of a value.

use super::executor::StepRows;

/// Copies the output rows of `x` to `output`.
pub(crate) fn gather(x: &[f32], stride: usize, rows: StepRows<'_>, output: &mut [f32]) {
    for (&row, y) in rows.output_rows.iter().zip(output.chunks_exact_mut(stride)) {
        y.copy_from_slice(&x[row as usize * stride..][..stride]);
    }
}
