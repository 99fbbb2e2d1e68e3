//! A product of each head with an activated gate of its own.

use girih_tensor::Shape;

use crate::constant::Act;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(gate: &Value, x: &Value, y: &Value) -> bool {
    y.is_like(x) && x.rank() == 3 && gate.has_rows_of(x) && gate.inner() == [x.inner()[0]]
}

/// A gate has `size` numbers of `x`.
pub(crate) fn define(gate: &[f32], x: &[f32], size: usize, act: Act) -> Vec<f32> {
    let heads = gate.iter().zip(x.chunks_exact(size));
    let gated = |(gate, x): (&f32, &'_ [f32])| {
        let factor = act.of(f64::from(*gate));
        x.iter().map(|x| (factor * f64::from(*x)) as f32).collect::<Vec<f32>>()
    };
    heads.flat_map(gated).collect()
}

/// A product for each number, and an activation for each head.
pub(super) fn work(_act: Act, gate: Shape, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, step.elements(x) + 10 * step.elements(gate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: σ(0) is a half, σ(ln 3) three quarters.
    #[test]
    fn a_head_is_multiplied_by_its_gate() {
        let gated = define(&[0.0, 3f32.ln()], &[1.0, -2.0, 4.0, 8.0], 2, Act::Sigmoid);
        assert!(
            gated.iter().zip([0.5, -1.0, 3.0, 6.0]).all(|(y, want)| (y - want).abs() < 1e-6),
            "{gated:?}"
        );
        assert!(define(&[f32::NAN], &[1.0], 1, Act::Softplus)[0].is_nan());
    }
}
