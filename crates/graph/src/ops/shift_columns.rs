//! Differences of each column and a number of its own.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, shift: &Value, y: &Value) -> bool {
    y.is_like(x) && shift.is_vector(x.columns())
}

pub(crate) fn define(x: &[f32], shift: &[f32]) -> Vec<f32> {
    let shifted = |(x, shift): (&f32, &f32)| (f64::from(*x) - f64::from(*shift)) as f32;
    x.iter().zip(shift.iter().cycle()).map(shifted).collect()
}

pub(super) fn work(x: Shape, _shift: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_its_shift() {
        assert_eq!(define(&[1.0, 0.0, -3.0, 4.0], &[2.0, 0.5]), [-1.0, -0.5, -5.0, 3.5]);
    }
}
