//! Rotary positions.

use girih_tensor::Shape;

use crate::constant::Pairing;
use crate::sequence::Sequence;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, frequencies: &Value, y: &Value) -> bool {
    let pairs = frequencies.columns();
    let is_rotated = pairs > 0 && pairs <= x.columns() / 2;
    y.is_like(x) && x.rank() == 3 && is_rotated && frequencies.is_vector(pairs)
}

/// How heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeRule<'a> {
    /// Radians per position of each pair.
    pub frequencies: &'a [f32],
    pub pairing: Pairing,
    /// Multiplies the rotated components.
    pub factor: Option<f32>,
}

/// Rotates every head of every row; a row has `stride` numbers, and a head `size`.
pub(crate) fn define(
    x: &[f32],
    rule: RopeRule<'_>,
    sequences: &[Sequence<'_>],
    [stride, size]: [usize; 2],
) -> Vec<f32> {
    let mut rotated = x.to_vec();
    for sequence in sequences {
        for (row, position) in sequence.rows.indexes().zip(sequence.position..) {
            for head in rotated[row * stride..(row + 1) * stride].chunks_exact_mut(size) {
                rotate(head, rule, position);
            }
        }
    }
    rotated
}

/// Rotates one head. The angle is rounded to `f32` before its sine and cosine
/// are computed, because models were trained with that number.
fn rotate(head: &mut [f32], rule: RopeRule<'_>, position: u32) {
    let RopeRule { frequencies, pairing, factor } = rule;
    let factor = f64::from(factor.unwrap_or(1.0));
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = match pairing {
            Pairing::Halves => (i, i + frequencies.len()),
            Pairing::Neighbours => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        head[a] = (factor * (x * cos - y * sin)) as f32;
        head[b] = (factor * (x * sin + y * cos)) as f32;
    }
}

/// Two products and a sum; as much for components that are kept.
pub(super) fn work(
    _pairing: Pairing,
    _factor: Option<f32>,
    x: Shape,
    _frequencies: Shape,
    step: WorkStep<'_>,
) -> NodeWork {
    NodeWork::each(2, 3 * step.elements(x))
}
