//! Matmuls of heads: each head of a row with a matrix of its own.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, weight: &Value, y: &Value) -> bool {
    let &[heads, outputs, inputs] = weight.shape.extents() else { return false };
    x.inner() == [heads, inputs] && y.has_rows_of(x) && y.inner() == [heads, outputs]
}

/// A head has `inputs` numbers; a row has `heads` of them.
pub(crate) fn define(x: &[f32], weight: &[f32], [heads, inputs]: [usize; 2]) -> Vec<f32> {
    let each = weight.len() / heads.max(1);
    let matrices = weight.chunks_exact(each.max(1)).cycle();
    let of_heads = x.chunks_exact(inputs).zip(matrices);
    let sums = of_heads.flat_map(|(head, matrix)| {
        matrix.chunks_exact(inputs).map(move |weights| reference::dot(head, weights).sum as f32)
    });
    sums.collect()
}

pub(super) fn work(_x: Shape, weight: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork { multiply_adds: step.rows * weight.elements() as u64, ..NodeWork::reading_all(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: two rows of two heads of two numbers; the second matrix doubles and swaps.
    #[test]
    fn each_head_has_its_matrix() {
        let weight = [1.0, 0.0, 0.0, 1.0, 0.0, 2.0, 2.0, 0.0];
        let y = define(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &weight, [2, 2]);
        assert_eq!(y, [1.0, 2.0, 8.0, 6.0, 5.0, 6.0, 16.0, 14.0]);
    }
}
