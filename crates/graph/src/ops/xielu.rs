//! The activation xIELU.

use girih_tensor::Shape;

use crate::constant::Xielu;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.is_like(x)
}

pub(crate) fn define(x: &[f32], xielu: Xielu) -> Vec<f32> {
    x.iter().map(|&x| xielu.of(f64::from(x)) as f32).collect()
}

pub(super) fn work(
    _positive: f32,
    _negative: f32,
    _beta: f32,
    _epsilon: f32,
    x: Shape,
    step: WorkStep<'_>,
) -> NodeWork {
    NodeWork::each(1, 10 * step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 2 · 3² + 0.5 · 3; (e⁻² − 1 + 2) · 4 − 0.5 · 2; and at 0 the epsilon remains.
    #[test]
    fn the_sides_of_zero_have_formulas_of_their_own() {
        let xielu = Xielu { positive: 2.0, negative: 4.0, beta: 0.5, epsilon: -1e-6 };
        let made = define(&[3.0, -2.0, 0.0], xielu);
        for (got, want) in made.iter().zip([19.5, 3.541_341, -4e-6]) {
            assert!((got - want).abs() < 1e-5, "{made:?}");
        }
        assert!(define(&[f32::NAN], xielu)[0].is_nan());
    }
}
