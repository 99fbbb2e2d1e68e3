//! Products of each column with a number of its own.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, weight: &Value, y: &Value) -> bool {
    y.is_like(x) && weight.is_vector(x.columns())
}

/// Zeros stay zeros, whatever their weight.
pub(crate) fn define(x: &[f32], weight: &[f32]) -> Vec<f32> {
    let scaled = |(x, weight): (&f32, &f32)| match *x {
        0.0 => 0.0,
        x => (f64::from(x) * f64::from(*weight)) as f32,
    };
    x.iter().zip(weight.iter().cycle()).map(scaled).collect()
}

pub(super) fn work(x: Shape, _weight: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_multiplied_and_zeros_kept() {
        let scaled = define(&[1.0, 0.0, -3.0, 4.0], &[2.0, f32::INFINITY]);
        assert_eq!(scaled, [2.0, 0.0, -6.0, f32::INFINITY]);
        assert!(define(&[f32::NAN], &[0.0])[0].is_nan());
    }
}
