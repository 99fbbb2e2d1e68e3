//! The selective scan of a state space model: a state of fixed size for each head, which each row lets decay
//! and adds to.

use girih_tensor::Shape;

use crate::constant::Act;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

/// The constants and the vectors of a scan, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanRule<'a> {
    pub least: f32,
    pub most: Option<f32>,
    /// One number for each head.
    pub a: &'a [f32],
    pub d: &'a [f32],
    pub bias: &'a [f32],
    /// Heads that share `b` and `c`.
    pub groups: usize,
    /// Columns of the state.
    pub columns: usize,
}

/// One row of each operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanRow<'a> {
    pub x: &'a [f32],
    pub dt: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
}

#[allow(clippy::too_many_arguments, reason = "the operands of the op")]
pub(super) fn fits(
    x: &Value,
    dt: &Value,
    b: &Value,
    c: &Value,
    a: &Value,
    d: &Value,
    bias: &Value,
    carried: &Value,
    y: &Value,
) -> bool {
    let (&[heads, size], &[groups, columns]) = (x.inner(), b.inner()) else { return false };
    let are_by_head = [a, d, bias].iter().all(|vector| vector.is_vector(heads));
    y.is_like(x)
        && c.is_like(b)
        && b.has_rows_of(x)
        && dt.has_rows_of(x)
        && *dt.inner() == [heads]
        && heads.is_multiple_of(groups)
        && are_by_head
        && *carried.shape.extents() == [heads, size, columns]
}

impl ScanRule<'_> {
    /// The step of a head, from what a row says of it. NaN stays NaN.
    pub fn step(&self, head: usize, dt: f32) -> f64 {
        let dt = Act::Softplus.of(f64::from(dt) + f64::from(self.bias[head]));
        let dt = if dt < f64::from(self.least) { f64::from(self.least) } else { dt };
        match self.most.map(f64::from) {
            Some(most) if dt > most => most,
            _ => dt,
        }
    }
}

/// The result of a row, which replaces the state `[H, P, N]` of its sequence.
pub(crate) fn define(rule: ScanRule<'_>, row: ScanRow<'_>, state: &mut [f32]) -> Vec<f32> {
    let heads = rule.a.len();
    let (size, shared) = (row.x.len() / heads, heads / rule.groups);
    let of_row = |index: usize, state: &mut [f32]| {
        let (head, x) = (index / size, f64::from(row.x[index]));
        let group = head / shared * rule.columns..(head / shared + 1) * rule.columns;
        let (b, c) = (&row.b[group.clone()], &row.c[group]);
        let dt = rule.step(head, row.dt[head]);
        let decay = (dt * f64::from(rule.a[head])).exp();
        let mut sum = f64::from(rule.d[head]) * x;
        for ((state, b), c) in state.iter_mut().zip(b).zip(c) {
            *state = (decay * f64::from(*state) + dt * x * f64::from(*b)) as f32;
            sum += f64::from(*state) * f64::from(*c);
        }
        sum as f32
    };
    state.chunks_exact_mut(rule.columns).enumerate().map(|(index, state)| of_row(index, state)).collect()
}

/// Two products that are added to a sum and one that is not for each number of the state; the exponentials
/// and the softplus of each head.
#[allow(clippy::too_many_arguments, reason = "the operands of the op")]
pub(super) fn work(
    _least: f32,
    _most: Option<f32>,
    _x: Shape,
    dt: Shape,
    _b: Shape,
    _c: Shape,
    _a: Shape,
    _d: Shape,
    _bias: Shape,
    carried: Shape,
    step: WorkStep<'_>,
) -> NodeWork {
    let numbers = step.rows * carried.elements() as u64;
    let other_operations = numbers + 20 * step.elements(dt);
    NodeWork { multiply_adds: 2 * numbers, other_operations, ..NodeWork::reading_all(8) }
}
