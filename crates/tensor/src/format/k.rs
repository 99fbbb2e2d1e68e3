//! The block header and the scale search that Q4_K and Q5_K share.
//!
//! ```text
//! byte 0..2   d, f16
//! byte 2..4   dmin, f16
//! byte 4..16  scales s[0..8] and minimums n[0..8], 6 bits each:
//!             byte 4 + i   s[i]     | upper two bits of s[4 + i] << 6
//!             byte 8 + i   n[i]     | upper two bits of n[4 + i] << 6
//!             byte 12 + i  s[4 + i] | lower four bits of n[4 + i] << 4
//! group g:    value = (d · s[g]) · q − (dmin · n[g])
//! ```
//! Layout as in ggml. The search is ggml's (`make_qkx2_quants` with the weights of
//! `quantize_row_q4_K_ref`), in the same order of operations, so that the same
//! values give the same bytes.

use super::block::{f16_at, put_f16, range};
use super::levels::Levels;

/// The size of a block's header in bytes.
pub(super) const K_HEAD_BYTES: usize = 16;

/// The number of values that share a scale and a minimum.
pub(super) const K_GROUP: usize = 32;

/// The levels of a group: `scale · q − minimum` for integers `q`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupLevels {
    pub scale: f32,
    pub minimum: f32,
}

/// The parameters of a format's scale search.
pub(super) struct ScaleSearch {
    /// The largest integer.
    pub top: f32,
    /// The first trial divides the range of the values into `top + first` steps
    /// (ggml: `rmin`).
    pub first: f32,
    /// The number of further trials, each with 0.1 steps more (ggml: `nstep`,
    /// `rdelta`).
    pub trials: u8,
}

/// Decodes a block's header.
pub(super) fn unpack_head(head: &[u8]) -> [GroupLevels; 8] {
    let (d, dmin) = (f16_at(head, 0), f16_at(head, 2));
    let packed = &head[4..K_HEAD_BYTES];
    let levels = |s: u8, n: u8| GroupLevels { scale: d * f32::from(s), minimum: dmin * f32::from(n) };
    let mut all_levels = [GroupLevels::default(); 8];
    for i in 0..4 {
        let (a, b, c) = (packed[i], packed[4 + i], packed[8 + i]);
        all_levels[i] = levels(a & 63, b & 63);
        all_levels[4 + i] = levels(a >> 6 << 4 | c & 15, b >> 6 << 4 | c >> 4);
    }
    all_levels
}

/// Calls `each` with the levels of each group of a block whose largest integer is `top`.
pub(super) fn levels(head: &[u8], top: u8, each: &mut dyn FnMut(Levels)) {
    let (d, dmin) = (f16_at(head, 0), f16_at(head, 2));
    for GroupLevels { scale, minimum } in unpack_head(head) {
        each(Levels::steps(K_GROUP, -minimum, scale, top).coarse(d, f64::from(top), 63.0, Some(dmin)));
    }
}

/// Encodes values as a block's header and one integer per value.
pub(super) fn pack_head(values: &[f32], search: &ScaleSearch, head: &mut [u8]) -> [u8; 256] {
    let mut all_levels = [GroupLevels::default(); 8];
    for (levels, group) in all_levels.iter_mut().zip(values.chunks_exact(K_GROUP)) {
        *levels = search.fit(group);
    }
    put_levels(&all_levels, head);

    let mut q = [0; 256];
    let groups = values.chunks_exact(K_GROUP).zip(q.chunks_exact_mut(K_GROUP));
    for (levels, (group, q)) in unpack_head(head).iter().zip(groups) {
        // With a stored scale of 0, every q decodes to the same value.
        if levels.scale != 0.0 {
            for (q, value) in q.iter_mut().zip(group) {
                *q = nearest((value + levels.minimum) / levels.scale).clamp(0.0, search.top) as u8;
            }
        }
    }
    q
}

/// Stores scales and minimums in 6 bits each, relative to the largest one.
fn put_levels(all_levels: &[GroupLevels; 8], head: &mut [u8]) {
    let largest_scale = all_levels.iter().fold(0.0, |m: f32, levels| m.max(levels.scale));
    let largest_minimum = all_levels.iter().fold(0.0, |m: f32, levels| m.max(levels.minimum));
    put_f16(head, 0, largest_scale / 63.0);
    put_f16(head, 2, largest_minimum / 63.0);
    let per = |largest: f32| if largest > 0.0 { 63.0 / largest } else { 0.0 };
    let (per_scale, per_minimum) = (per(largest_scale), per(largest_minimum));
    let s = all_levels.map(|levels| (nearest(per_scale * levels.scale) as u8).min(63));
    let n = all_levels.map(|levels| (nearest(per_minimum * levels.minimum) as u8).min(63));
    for i in 0..4 {
        head[4 + i] = s[i] | s[4 + i] >> 4 << 6;
        head[8 + i] = n[i] | n[4 + i] >> 4 << 6;
        head[12 + i] = s[4 + i] & 15 | n[4 + i] << 4;
    }
}

impl ScaleSearch {
    /// Returns the levels with the smallest weighted squared error among all
    /// trials.
    ///
    /// Each trial rounds the values to a grid that reaches from the best minimum
    /// so far to the largest value and has slightly more or fewer than `top`
    /// steps. It then fits levels by least squares.
    fn fit(&self, values: &[f32]) -> GroupLevels {
        let weights = weights(values);
        let (least, greatest) = range(values);
        let least = least.min(0.0);
        if greatest == least {
            return GroupLevels { scale: 0.0, minimum: -least };
        }
        let steps = self.top / (greatest - least);
        let mut best = GroupLevels { scale: 1.0 / steps, minimum: -least };
        let mut best_error = error(values, &weights, &self.grid(values, best.minimum, steps), best);
        for trial in 0..=self.trials {
            let steps = (self.first + 0.1 * f32::from(trial) + self.top) / (greatest + best.minimum);
            let q = self.grid(values, best.minimum, steps);
            let Some(levels) = least_squares(values, &weights, &q) else { continue };
            let levels_error = error(values, &weights, &q, levels);
            if levels_error < best_error {
                (best, best_error) = (levels, levels_error);
            }
        }
        best
    }

    /// Rounds values to integers of a grid that starts at `-minimum`, as floats.
    fn grid(&self, values: &[f32], minimum: f32, steps: f32) -> [f32; K_GROUP] {
        let mut q = [0.0; K_GROUP];
        for (q, value) in q.iter_mut().zip(values) {
            *q = nearest(steps * (value + minimum)).clamp(0.0, self.top);
        }
        q
    }
}

/// Returns the weight of each value: the root mean square plus its magnitude.
fn weights(values: &[f32]) -> [f32; K_GROUP] {
    let squares: f32 = values.iter().fold(0.0, |sum, v| sum + v * v);
    let root_mean_square = (squares / K_GROUP as f32).sqrt();
    let mut weights = [0.0; K_GROUP];
    for (weight, value) in weights.iter_mut().zip(values) {
        *weight = root_mean_square + value.abs();
    }
    weights
}

/// Fits levels to `(q, value)` by weighted least squares, without a negative
/// minimum; `None` when all `q` are equal.
fn least_squares(values: &[f32], weights: &[f32; K_GROUP], q: &[f32; K_GROUP]) -> Option<GroupLevels> {
    let (mut w, mut wx, mut wq, mut wqq, mut wqx) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for ((&x, &weight), &q) in values.iter().zip(weights).zip(q) {
        w += weight;
        wx += weight * x;
        wq += weight * q;
        wqq += weight * q * q;
        wqx += weight * q * x;
    }
    let determinant = w * wqq - wq * wq;
    if determinant <= 0.0 || determinant.is_nan() {
        return None;
    }
    let offset = (wqq * wx - wq * wqx) / determinant;
    if offset > 0.0 {
        return Some(GroupLevels { scale: wqx / wqq, minimum: 0.0 });
    }
    Some(GroupLevels { scale: (w * wqx - wx * wq) / determinant, minimum: -offset })
}

/// Returns the weighted squared error of levels.
fn error(values: &[f32], weights: &[f32; K_GROUP], q: &[f32; K_GROUP], levels: GroupLevels) -> f32 {
    let mut error = 0.0;
    for ((x, weight), q) in values.iter().zip(weights).zip(q) {
        let difference = levels.scale * q - levels.minimum - x;
        error += weight * (difference * difference);
    }
    error
}

/// Rounds to the nearest whole number, ties to even, for magnitudes below 2^22;
/// larger ones stay large. Adding 1.5 · 2^23 leaves no bits for a fraction.
pub(super) fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}
