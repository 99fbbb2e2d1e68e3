//! Weighted sums of the heads of a row.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(weights: &Value, x: &Value, y: &Value) -> bool {
    let &[heads, size] = x.inner() else { return false };
    weights.has_rows_of(x) && weights.inner() == [heads] && y.has_rows_of(x) && y.inner() == [size]
}

/// A head has `size` numbers of `x`, and a row `heads` of them.
pub(crate) fn define(weights: &[f32], x: &[f32], [heads, size]: [usize; 2]) -> Vec<f32> {
    let rows = weights.chunks_exact(heads).zip(x.chunks_exact(heads * size));
    let mixed = rows.flat_map(|(weights, x)| {
        (0..size).map(move |column| {
            let of_heads = weights.iter().zip(x.chunks_exact(size));
            let terms = of_heads.map(|(weight, head)| f64::from(*weight) * f64::from(head[column]));
            terms.sum::<f64>() as f32
        })
    });
    mixed.collect()
}

pub(super) fn work(_weights: Shape, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork { multiply_adds: step.elements(x), ..NodeWork::reading_all(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 2 · (1, −2) + 0.5 · (4, 8), and of the second row the first head only.
    #[test]
    fn heads_are_added_with_their_weights() {
        let x = [1.0, -2.0, 4.0, 8.0, 3.0, 5.0, 7.0, 9.0];
        assert_eq!(define(&[2.0, 0.5, 1.0, 0.0], &x, [2, 2]), [4.0, 0.0, 3.0, 5.0]);
    }
}
