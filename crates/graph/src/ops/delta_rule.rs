//! The gated delta rule: a matrix for each head that decays, and that each row corrects.

use girih_tensor::{Shape, reference};

use crate::constant::HeadSharing;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

/// Operations of an exponential.
const EXPONENTIAL_OPERATIONS: u64 = 10;

/// Value heads share heads of queries and keys; a step has a number for each head, or for each key channel of it.
#[allow(clippy::too_many_arguments, reason = "the operands of the table")]
pub(super) fn fits(
    q: &Value,
    k: &Value,
    v: &Value,
    beta: &Value,
    dt: &Value,
    a: &Value,
    carried: &Value,
    y: &Value,
) -> bool {
    let (&[groups, size], &[heads, _]) = (q.inner(), v.inner()) else { return false };
    let [by_head, by_channel] = [&[heads][..], &[heads, size]].map(|inner| dt.inner() == inner);
    groups > 0
        && heads.is_multiple_of(groups)
        && k.is_like(q)
        && y.is_like(v)
        && *beta.inner() == [heads]
        && (by_head || by_channel)
        && a.is_vector(heads)
        && *carried.shape.extents() == [heads, size, v.columns()]
}

/// The operands of one row.
pub(crate) struct DeltaRow<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub beta: &'a [f32],
    pub dt: &'a [f32],
}

/// The results of a row. `carried` has the matrices of all heads, one after another, which become those after
/// the row.
pub(crate) fn define(row: &DeltaRow<'_>, sharing: HeadSharing, a: &[f32], carried: &mut [f32]) -> Vec<f32> {
    let heads = a.len();
    let width = row.v.len() / heads;
    let size = carried.len() / row.v.len().max(1);
    let groups = row.q.len() / size.max(1);
    let mut result = Vec::with_capacity(row.v.len());
    for (head, matrix) in carried.chunks_exact_mut(size * width).enumerate() {
        let group = sharing.group(head, heads, groups);
        let of_group = group * size..(group + 1) * size;
        let (q, k) = (&row.q[of_group.clone()], &row.k[of_group]);
        let dt = &row.dt[head * row.dt.len() / heads..(head + 1) * row.dt.len() / heads];
        let decay = |channel: usize| (f64::from(dt[channel % dt.len()]) * f64::from(a[head])).exp();
        let decays: Vec<f64> = (0..size).map(decay).collect();
        for (column, v) in row.v[head * width..(head + 1) * width].iter().enumerate() {
            let held = |channel: usize| decays[channel] * f64::from(matrix[channel * width + column]);
            let predicted: f64 = (0..size).map(|channel| held(channel) * f64::from(k[channel])).sum();
            let change = f64::from(row.beta[head]) * (f64::from(*v) - predicted);
            let new = |channel: usize| (held(channel) + f64::from(k[channel]) * change) as f32;
            let new: Vec<f32> = (0..size).map(new).collect();
            result.push(reference::dot(&new, q).sum as f32);
            for (channel, new) in new.into_iter().enumerate() {
                matrix[channel * width + column] = new;
            }
        }
    }
    result
}

/// A matrix is multiplied by the key, changed, and multiplied by the query.
#[allow(clippy::too_many_arguments, reason = "the constants and operands of the table")]
pub(super) fn work(
    _sharing: HeadSharing,
    _q: Shape,
    _k: Shape,
    _v: Shape,
    _beta: Shape,
    dt: Shape,
    _a: Shape,
    carried: Shape,
    step: WorkStep<'_>,
) -> NodeWork {
    NodeWork {
        multiply_adds: 3 * step.rows * carried.elements() as u64,
        other_operations: step.rows
            * (carried.elements() as u64 + EXPONENTIAL_OPERATIONS * dt.stride() as u64),
        ..NodeWork::reading_all(7)
    }
}
