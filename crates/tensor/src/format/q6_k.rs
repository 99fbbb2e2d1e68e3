//! Q6_K: 16 groups of 16 six-bit integers, signed eight-bit scales.
//!
//! ```text
//! byte 0..128    lower four bits: in each 64 bytes (128 values), byte i
//!                holds q[i] low and q[64 + i] high
//! byte 128..192  upper two bits: in each 32 bytes (128 values), byte i
//!                holds q[i], q[32 + i], q[64 + i], q[96 + i] from bit 0 upward
//! byte 192..208  scales s[0..16], i8
//! byte 208..210  d, f16          value = (d · s) · (q − 32)
//! ```
//! Layout and packing as in ggml (`block_q6_K`, `quantize_row_q6_K_ref` with
//! `make_qx_quants` of error type 1), in the same order of operations, so that
//! the same values give the same bytes.

use super::block::{BlockFormat, Pack, extreme, f16_at, put_f16};
use super::k::nearest;
use super::levels::Levels;
use super::planes;

/// 16 groups of 16 six-bit integers: 6.5625 bits per value.
#[derive(Clone, Copy, Debug)]
pub struct Q6K;

/// The number of values that share a scale.
const Q6K_GROUP: usize = 16;

/// The magnitude, or scale, below which ggml treats a group as zero.
const GROUP_MAX_EPS: f32 = 1e-15;

impl BlockFormat for Q6K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 210;

    fn unpack(block: &[u8], values: &mut [f32]) {
        let d = f16_at(block, 208);
        let (mut q, mut uppers) = ([0; 256], [0; 256]);
        for (packed, q) in block[..128].chunks_exact(64).zip(q.chunks_exact_mut(128)) {
            planes::split::<4>(packed, q);
        }
        for (packed, uppers) in block[128..192].chunks_exact(32).zip(uppers.chunks_exact_mut(128)) {
            planes::split::<2>(packed, uppers);
        }
        for (q, upper) in q.iter_mut().zip(&uppers) {
            *q |= upper << 4;
        }
        let groups = q.chunks_exact(Q6K_GROUP).zip(values.chunks_exact_mut(Q6K_GROUP));
        for (&s, (q, values)) in block[192..208].iter().zip(groups) {
            let scale = d * f32::from(s as i8);
            for (value, &q) in values.iter_mut().zip(q) {
                *value = scale * (f32::from(q) - 32.0);
            }
        }
    }

    fn levels(block: &[u8], each: &mut dyn FnMut(Levels)) {
        let d = f16_at(block, 208);
        for &s in &block[192..208] {
            let scale = d * f32::from(s as i8);
            each(Levels::steps(Q6K_GROUP, -32.0 * scale, scale, 63).coarse(d, 32.0, 128.0, None));
        }
    }
}

impl Pack for Q6K {
    fn pack(values: &[f32], block: &mut [u8]) {
        let mut scales = [0.0; 16];
        for (scale, group) in scales.iter_mut().zip(values.chunks_exact(Q6K_GROUP)) {
            *scale = fit(group);
        }
        let largest = extreme(&scales);
        if largest.abs() < GROUP_MAX_EPS {
            block.fill(0);
            return;
        }
        let per_scale = -128.0 / largest;
        put_f16(block, 208, 1.0 / per_scale);
        let d = f16_at(block, 208);

        let mut q = [0; 256];
        let groups = values.chunks_exact(Q6K_GROUP).zip(q.chunks_exact_mut(Q6K_GROUP));
        for ((scale, stored), (group, q)) in scales.iter().zip(&mut block[192..208]).zip(groups) {
            let s = nearest(per_scale * scale).min(127.0) as i8;
            *stored = s as u8;
            let step = d * f32::from(s);
            // With a stored scale of 0, every q decodes to 0.
            if step != 0.0 {
                for (q, value) in q.iter_mut().zip(group) {
                    *q = (nearest(value / step).clamp(-32.0, 31.0) + 32.0) as u8;
                }
            }
        }
        for (packed, q) in block[..128].chunks_exact_mut(64).zip(q.chunks_exact(128)) {
            planes::join::<4>(q, packed);
        }
        for (packed, q) in block[128..192].chunks_exact_mut(32).zip(q.map(|q| q >> 4).chunks_exact(128)) {
            planes::join::<2>(q, packed);
        }
    }
}

/// Returns the scale with the smallest squared error, weighted by the squares of
/// the values, among grids on which the extreme value is −31.1, −31.2, … −32.9.
fn fit(values: &[f32]) -> f32 {
    let extreme = extreme(values);
    if extreme.abs() < GROUP_MAX_EPS {
        return 0.0;
    }
    let (qx, qq) = moments(values, -32.0 / extreme);
    let mut scale = if qq != 0.0 { qx / qq } else { 0.0 };
    let mut best = scale * qx;
    for trial in (-9i8..=9).filter(|&trial| trial != 0) {
        let (qx, qq) = moments(values, -(32.0 + 0.1 * f32::from(trial)) / extreme);
        if qq > 0.0 && qx * qx > best * qq {
            scale = qx / qq;
            best = scale * qx;
        }
    }
    scale
}

/// Returns the weighted sums of `q · x` and `q · q` on a grid; their quotient is the
/// best scale on that grid and lowers the error by `qx² / qq`.
fn moments(values: &[f32], steps: f32) -> (f32, f32) {
    let (mut qx, mut qq) = (0.0, 0.0);
    for &x in values {
        let q = nearest(steps * x).clamp(-32.0, 31.0);
        let weight = x * x;
        qx += weight * x * q;
        qq += weight * q * q;
    }
    (qx, qq)
}
