//! Heads of two parts.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(a: &Value, b: &Value, y: &Value) -> bool {
    let (&[heads, first], &[others, second]) = (a.inner(), b.inner()) else { return false };
    b.has_rows_of(a) && heads == others && y.has_rows_of(a) && y.inner() == [heads, first + second]
}

/// A head has `first` numbers of `a` and `second` numbers of `b`.
pub(crate) fn define(a: &[f32], b: &[f32], [first, second]: [usize; 2]) -> Vec<f32> {
    a.chunks_exact(first).zip(b.chunks_exact(second)).flat_map(|(a, b)| [a, b].concat()).collect()
}

pub(super) fn work(_a: Shape, _b: Shape, _step: WorkStep<'_>) -> NodeWork {
    NodeWork::reading_all(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_follow_each_other_with_both_parts() {
        assert_eq!(define(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0], [2, 1]), [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
    }
}
