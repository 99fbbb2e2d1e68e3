//! A product with an activated gate.

use girih_tensor::Shape;

use crate::constant::{Act, GateLimit, GateRule};
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(gate: &Value, up: &Value, y: &Value) -> bool {
    y.is_like(gate) && y.is_like(up)
}

pub(crate) fn define(gate: &[f32], up: &[f32], rule: GateRule) -> Vec<f32> {
    gate.iter().zip(up).map(|(&gate, &up)| rule.of(f64::from(gate), f64::from(up)) as f32).collect()
}

pub(super) fn work(
    act: Act,
    _limit: Option<GateLimit>,
    _offset: Option<f32>,
    gate: Shape,
    _up: Shape,
    step: WorkStep<'_>,
) -> NodeWork {
    let operations = if act == Act::Identity { 1 } else { 10 };
    NodeWork::each(2, operations * step.elements(gate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 2 · σ(2) is 1.761594…, above the limit, and 0.5 · σ(0.5) is 0.311229….
    #[test]
    fn a_limit_of_the_activated_gate_clamps_its_activation() {
        let rule = GateRule { act: Act::Silu, limit: Some(GateLimit::Activated(1.5)), offset: None };
        let y = define(&[2.0, 0.5], &[-3.0, 2.0], rule);
        assert_eq!(y[0], -2.25, "both are clamped");
        assert!((y[1] - 0.311_229_66 * 1.5).abs() < 1e-6, "{y:?}");
    }

    /// By hand: σ(1.702 · 2) is 0.967829…, and a gate above the limit counts as the limit.
    #[test]
    fn a_limit_clamps_both_operands_before_the_offset() {
        let rule = GateRule { act: Act::QuickGelu, limit: Some(GateLimit::Gate(2.0)), offset: Some(1.0) };
        let gated = define(&[2.0, 9.0, 2.0, 2.0, -9.0], &[0.5, 0.5, 7.0, -7.0, 0.0], rule);
        let by_hand = [1.935_659 * 1.5, 1.935_659 * 1.5, 1.935_659 * 3.0, -1.935_659, -2.0e-6];
        for (got, want) in gated.iter().zip(by_hand) {
            assert!((got - want).abs() < 1e-5, "{gated:?}");
        }
        assert!(define(&[f32::NAN, 1.0], &[1.0, f32::NAN], rule).iter().all(|y| y.is_nan()));
        assert_eq!(define(&[3.0], &[5.0], Act::Identity.into()), [15.0]);
    }
}
