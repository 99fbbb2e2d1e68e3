//! The short convolution: each column of a sequence with taps of its own.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

/// The carried value has one row less than there are taps.
pub(super) fn fits(x: &Value, taps: &Value, carried: &Value, bias: Option<&Value>, y: &Value) -> bool {
    let &[width] = x.inner() else { return false };
    let &[count, columns] = taps.shape.extents() else { return false };
    y.is_like(x)
        && columns == width
        && count > 1
        && *carried.shape.extents() == [count - 1, width]
        && bias.is_none_or(|bias| bias.is_vector(width))
}

/// The results of consecutive rows of a sequence. `held` has the rows that were carried, then these rows.
pub(crate) fn define(held: &[f32], taps: &[f32], bias: Option<&[f32]>, width: usize) -> Vec<f32> {
    let column =
        |rows: &[f32], column: usize| -> Vec<f32> { rows[column..].iter().step_by(width).copied().collect() };
    let row = |seen: &[f32]| -> Vec<f32> {
        let sum = |index: usize| {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[index]));
            (reference::dot(&column(seen, index), &column(taps, index)).sum + bias) as f32
        };
        (0..width).map(sum).collect()
    };
    held.windows(taps.len()).step_by(width).flat_map(row).collect()
}

pub(super) fn work(
    _x: Shape,
    taps: Shape,
    _carried: Shape,
    _bias: Option<Shape>,
    step: WorkStep<'_>,
) -> NodeWork {
    NodeWork { multiply_adds: step.rows * taps.elements() as u64, ..NodeWork::reading_all(4) }
}
