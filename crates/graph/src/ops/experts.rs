//! Feed-forward parts of experts, of which each row uses some.

use std::borrow::Cow;

use girih_tensor::{Result, Shape};

use crate::constant::{Act, GateLimit, GateRule, Weighed};
use crate::value::Value;
use crate::work::{NodeWork, Reads, WorkStep};

#[allow(clippy::too_many_arguments, reason = "the operands of the table")]
pub(super) fn fits(
    x: &Value,
    weights: &Value,
    up: &Value,
    down: &Value,
    gate: Option<&Value>,
    gate_bias: Option<&Value>,
    up_bias: Option<&Value>,
    down_bias: Option<&Value>,
    y: &Value,
) -> bool {
    let &[experts, inner, inputs] = up.shape.extents() else { return false };
    let &[outputs] = y.inner() else { return false };
    let is_matrix = |bias: Option<&Value>, columns: usize| {
        bias.is_none_or(|bias| *bias.shape.extents() == [experts, columns])
    };
    x.inner() == [inputs]
        && weights.inner() == [experts]
        && weights.has_rows_of(x)
        && y.has_rows_of(x)
        && *down.shape.extents() == [experts, outputs, inner]
        && gate.is_none_or(|gate| gate.shape == up.shape)
        && is_matrix(gate_bias, inner)
        && is_matrix(up_bias, inner)
        && is_matrix(down_bias, outputs)
}

/// The weights of one expert.
pub(crate) struct Expert<'a> {
    pub up: Cow<'a, [f32]>,
    pub down: Cow<'a, [f32]>,
    pub gate: Option<Cow<'a, [f32]>>,
    /// Of gate, up and down.
    pub biases: [Option<Cow<'a, [f32]>>; 3],
}

impl Expert<'_> {
    /// The expert's result for a row.
    fn of(&self, x: &[f64], rule: GateRule) -> Vec<f64> {
        let [gate_bias, up_bias, down_bias] = &self.biases;
        let up = product(x, &self.up, up_bias.as_deref());
        let inner: Vec<f64> = match &self.gate {
            None => up.into_iter().map(|up| rule.act.of(up)).collect(),
            Some(gate) => {
                let gate = product(x, gate, gate_bias.as_deref());
                gate.into_iter().zip(up).map(|(gate, up)| rule.of(gate, up)).collect()
            }
        };
        product(&inner, &self.down, down_bias.as_deref())
    }
}

/// `matrix · x + bias`.
fn product(x: &[f64], matrix: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
    let rows = matrix.chunks_exact(x.len()).enumerate();
    let sum = |(index, row): (usize, &[f32])| {
        let sum: f64 = row.iter().zip(x).map(|(weight, x)| f64::from(*weight) * x).sum();
        sum + bias.map_or(0.0, |bias| f64::from(bias[index]))
    };
    rows.map(sum).collect()
}

/// The sums of experts, for rows of `x` whose weights are `weights`. An expert with the weight 0 does not count.
/// Weights multiply the rows or the results.
pub(crate) fn define<'a>(
    x: &[f32],
    weights: &[f32],
    [experts, inputs, outputs]: [usize; 3],
    (rule, weighed): (GateRule, Weighed),
    expert: impl Fn(usize) -> Result<Expert<'a>>,
) -> Result<Vec<f32>> {
    let mut sums = vec![0.0; weights.len() / experts * outputs];
    for index in 0..experts {
        let chosen =
            weights.iter().skip(index).step_by(experts).enumerate().filter(|(_, weight)| **weight != 0.0);
        let chosen: Vec<(usize, f64)> = chosen.map(|(row, weight)| (row, f64::from(*weight))).collect();
        if chosen.is_empty() {
            continue;
        }
        let expert = expert(index)?;
        for (row, weight) in chosen {
            let (of_x, weight) = match weighed {
                Weighed::Results => (1.0, weight),
                Weighed::Inputs => (weight, 1.0),
            };
            let x: Vec<f64> = x[row * inputs..][..inputs].iter().map(|x| of_x * f64::from(*x)).collect();
            let result = expert.of(&x, rule);
            sums[row * outputs..].iter_mut().zip(result).for_each(|(sum, y)| *sum += weight * y);
        }
    }
    Ok(sums.into_iter().map(|sum| sum as f32).collect())
}

/// The number of different experts that rows choose on average, if each chooses `used` of `count` at random:
/// `count · (1 − (1 − used / count)^rows)`.
fn expected(count: u64, used: u32, rows: u64) -> u64 {
    let unused = 1.0 - f64::from(used) / count as f64;
    let rows = rows.min(1 << 20) as i32;
    (count as f64 * (1.0 - unused.powi(rows))).round() as u64
}

#[allow(clippy::too_many_arguments, reason = "the constants and operands of the table")]
pub(super) fn work(
    used: u32,
    _act: Act,
    _limit: Option<GateLimit>,
    _offset: Option<f32>,
    _weighed: Weighed,
    _x: Shape,
    _weights: Shape,
    up: Shape,
    down: Shape,
    gate: Option<Shape>,
    gate_bias: Option<Shape>,
    up_bias: Option<Shape>,
    down_bias: Option<Shape>,
    step: WorkStep<'_>,
) -> NodeWork {
    let count = up.extents()[0] as u64;
    let chosen = step.rows.saturating_mul(u64::from(used));
    let experts = step.experts.unwrap_or_else(|| expected(count, used, step.rows));
    let rows = |shape: Option<Shape>| {
        shape.map_or(Reads::Nothing, |shape| Reads::Rows(experts * (shape.rows() as u64 / count)))
    };
    let stacks = [Some(up), Some(down), gate].map(|shape| shape.map_or(0, |shape| shape.stride() as u64));
    let weights = [Some(up), Some(down), gate, gate_bias, up_bias, down_bias].map(rows);
    let [up_rows, down_rows, gate_rows, gate_biases, up_biases, down_biases] = weights;
    NodeWork {
        multiply_adds: chosen * stacks.iter().sum::<u64>(),
        other_operations: 10 * chosen * up.extents()[1] as u64,
        reads: [Reads::All, Reads::All, up_rows, down_rows, gate_rows, gate_biases, up_biases, down_biases],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: (GateRule, Weighed) =
        (GateRule { act: Act::Identity, limit: None, offset: None }, Weighed::Results);

    /// Expert `e` multiplies by `e + 1` twice; its gate passes the row on, its last bias is 10.
    fn expert(index: usize) -> Result<Expert<'static>> {
        let factor = |factor: usize| Cow::Owned(vec![factor as f32]);
        Ok(Expert {
            up: factor(index + 1),
            down: factor(index + 1),
            gate: Some(factor(1)),
            biases: [None, None, Some(factor(10))],
        })
    }

    #[test]
    fn a_row_is_the_weighted_sum_of_its_experts() {
        let weights = [0.5, 0.0, 2.0, 0.0, 0.0, 0.0];
        let rows = define(&[2.0, 3.0], &weights, [3, 1, 1], PLAIN, expert).unwrap();
        // 0.5 · (1 · 2² + 10) + 2 · (9 · 2² + 10)
        assert_eq!(rows, [7.0 + 92.0, 0.0]);
    }

    /// 0.5 · 2 is 1, so expert 0 makes 1 · 1 + 10 of it.
    #[test]
    fn weights_of_inputs_multiply_the_row_before_the_gate() {
        let rule = (Act::Identity.into(), Weighed::Inputs);
        assert_eq!(define(&[2.0], &[0.5, 0.0], [2, 1, 1], rule, expert).unwrap(), [11.0]);
    }

    #[test]
    fn experts_without_a_gate_are_activated() {
        let plain = |index| Ok(Expert { gate: None, ..expert(index)? });
        let rows = define(&[2.0], &[0.0, 1.0], [2, 1, 1], PLAIN, plain).unwrap();
        assert_eq!(rows, [2.0 * 2.0 * 2.0 + 10.0]);
    }

    /// Expert 1 doubles, its gate passes 3 on, which counts as 2: 2 · (2 + 1) times 2, plus 10.
    #[test]
    fn gate_and_up_become_one_by_the_rule() {
        let rule = GateRule { act: Act::Identity, limit: Some(GateLimit::Gate(2.0)), offset: Some(1.0) };
        assert_eq!(define(&[3.0], &[0.0, 1.0], [2, 1, 1], (rule, Weighed::Results), expert).unwrap(), [22.0]);
    }

    #[test]
    fn rows_share_experts() {
        assert_eq!([0, 1, 8, 512].map(|rows| expected(128, 8, rows)), [0, 8, 52, 128]);
        assert_eq!(expected(1, 1, 3), 1);
    }

    #[test]
    fn no_rows_have_no_sums() {
        let never = |index| panic!("expert {index} is not chosen");
        assert_eq!(define(&[], &[], [3, 1, 1], PLAIN, never).unwrap(), []);
    }

    #[test]
    fn only_chosen_experts_are_read() {
        let second = |index| if index == 1 { expert(index) } else { panic!("expert {index} is not chosen") };
        assert!(
            define(&[1.0; 2], &[0.0, 1.0, 0.0, 0.0, f32::NAN, 0.0], [3, 1, 1], PLAIN, second).unwrap()[1]
                .is_nan()
        );
    }
}
