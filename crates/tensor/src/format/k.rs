//! What Q4_K and Q5_K share: the head of a block and the search for scales.
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
//! Layout as in ggml. The search is ggml's published one
//! (`make_qkx2_quants` with the weights of `quantize_row_q4_K_ref`), in the
//! same order of operations, so that the same values give the same bytes.

use super::block::{f16_at, put_f16, range};

/// Bytes of a block's head.
pub(super) const HEAD: usize = 16;

/// Values that share a scale and a minimum.
pub(super) const GROUP: usize = 32;

/// The line on which the values of a group lie: `scale · q − minimum`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    pub scale: f32,
    pub minimum: f32,
}

/// What the search tries for a format.
pub(super) struct Search {
    /// The largest integer.
    pub top: f32,
    /// The lowest number of steps tried across the range of the values,
    /// relative to `top`.
    pub first: f32,
    /// How many further numbers of steps are tried, 0.1 apart.
    pub trials: u8,
}

/// Decodes a block's head.
pub(super) fn unpack_head(head: &[u8]) -> [Line; 8] {
    let (d, dmin) = (f16_at(head, 0), f16_at(head, 2));
    let packed = &head[4..HEAD];
    let line = |s: u8, n: u8| Line { scale: d * f32::from(s), minimum: dmin * f32::from(n) };
    let mut lines = [Line::default(); 8];
    for i in 0..4 {
        let (a, b, c) = (packed[i], packed[4 + i], packed[8 + i]);
        lines[i] = line(a & 63, b & 63);
        lines[4 + i] = line(a >> 6 << 4 | c & 15, b >> 6 << 4 | c >> 4);
    }
    lines
}

/// Encodes values as a block's head and one integer for each value.
pub(super) fn pack_head(values: &[f32], search: &Search, head: &mut [u8]) -> [u8; 256] {
    let mut lines = [Line::default(); 8];
    for (line, group) in lines.iter_mut().zip(values.chunks_exact(GROUP)) {
        *line = search.fit(group);
    }
    put_lines(&lines, head);

    let mut q = [0; 256];
    let groups = values.chunks_exact(GROUP).zip(q.chunks_exact_mut(GROUP));
    for (line, (group, q)) in unpack_head(head).iter().zip(groups) {
        // Where the stored scale is 0, every q decodes to the same.
        if line.scale != 0.0 {
            for (q, value) in q.iter_mut().zip(group) {
                *q = nearest((value + line.minimum) / line.scale).clamp(0.0, search.top) as u8;
            }
        }
    }
    q
}

/// Stores scales and minimums in 6 bits each, relative to the largest.
fn put_lines(lines: &[Line; 8], head: &mut [u8]) {
    let largest_scale = lines.iter().fold(0.0, |m: f32, line| m.max(line.scale));
    let largest_minimum = lines.iter().fold(0.0, |m: f32, line| m.max(line.minimum));
    put_f16(head, 0, largest_scale / 63.0);
    put_f16(head, 2, largest_minimum / 63.0);
    let per = |largest: f32| if largest > 0.0 { 63.0 / largest } else { 0.0 };
    let (per_scale, per_minimum) = (per(largest_scale), per(largest_minimum));
    let s = lines.map(|line| (nearest(per_scale * line.scale) as u8).min(63));
    let n = lines.map(|line| (nearest(per_minimum * line.minimum) as u8).min(63));
    for i in 0..4 {
        head[4 + i] = s[i] | s[4 + i] >> 4 << 6;
        head[8 + i] = n[i] | n[4 + i] >> 4 << 6;
        head[12 + i] = s[4 + i] & 15 | n[4 + i] << 4;
    }
}

impl Search {
    /// The line with the least weighted square error among those tried.
    ///
    /// Each trial rounds the values to a grid, from the best minimum so far up
    /// to the greatest value in a few steps more or less than `top`, and fits
    /// a line by least squares.
    fn fit(&self, values: &[f32]) -> Line {
        let weights = weights(values);
        let (least, greatest) = range(values);
        let least = least.min(0.0);
        if greatest == least {
            return Line { scale: 0.0, minimum: -least };
        }
        let steps = self.top / (greatest - least);
        let mut best = Line { scale: 1.0 / steps, minimum: -least };
        let mut best_error = error(values, &weights, &self.grid(values, best.minimum, steps), best);
        for trial in 0..=self.trials {
            let steps = (self.first + 0.1 * f32::from(trial) + self.top) / (greatest + best.minimum);
            let q = self.grid(values, best.minimum, steps);
            let Some(line) = least_squares(values, &weights, &q) else { continue };
            let line_error = error(values, &weights, &q, line);
            if line_error < best_error {
                (best, best_error) = (line, line_error);
            }
        }
        best
    }

    /// The integers of a grid that starts at `-minimum`, as floats.
    fn grid(&self, values: &[f32], minimum: f32, steps: f32) -> [f32; GROUP] {
        let mut q = [0.0; GROUP];
        for (q, value) in q.iter_mut().zip(values) {
            *q = nearest(steps * (value + minimum)).clamp(0.0, self.top);
        }
        q
    }
}

/// Large values count more: the root mean square plus the magnitude.
fn weights(values: &[f32]) -> [f32; GROUP] {
    let squares: f32 = values.iter().fold(0.0, |sum, v| sum + v * v);
    let root_mean_square = (squares / GROUP as f32).sqrt();
    let mut weights = [0.0; GROUP];
    for (weight, value) in weights.iter_mut().zip(values) {
        *weight = root_mean_square + value.abs();
    }
    weights
}

/// The line through `(q, value)` with the least weighted square error and no
/// negative minimum; none when all `q` are equal.
fn least_squares(values: &[f32], weights: &[f32; GROUP], q: &[f32; GROUP]) -> Option<Line> {
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
        return Some(Line { scale: wqx / wqq, minimum: 0.0 });
    }
    Some(Line { scale: (w * wqx - wx * wq) / determinant, minimum: -offset })
}

/// The weighted square error of a line.
fn error(values: &[f32], weights: &[f32; GROUP], q: &[f32; GROUP], line: Line) -> f32 {
    let mut error = 0.0;
    for ((x, weight), q) in values.iter().zip(weights).zip(q) {
        let difference = line.scale * q - line.minimum - x;
        error += weight * (difference * difference);
    }
    error
}

/// The nearest whole number, ties to even, for magnitudes below 2^22; larger
/// ones stay large. Adding 1.5 · 2^23 leaves no bits for a fraction.
pub(super) fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}
