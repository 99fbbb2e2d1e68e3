//! Rotary positions.

use girih_tensor::Shape;

use crate::constant::Pairing;
use crate::sequence::Sequence;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, frequencies: &Value, y: &Value) -> bool {
    let size = x.columns();
    y.is_like(x) && x.rank() == 3 && size.is_multiple_of(2) && frequencies.is_vector(size / 2)
}

/// Rotates every head of every row; a row has `stride` numbers.
pub(crate) fn define(
    x: &[f32],
    frequencies: &[f32],
    pairing: Pairing,
    sequences: &[Sequence<'_>],
    stride: usize,
) -> Vec<f32> {
    let mut rotated = x.to_vec();
    for sequence in sequences {
        for (row, position) in sequence.rows.indexes().zip(sequence.position..) {
            for head in rotated[row * stride..(row + 1) * stride].chunks_exact_mut(2 * frequencies.len()) {
                rotate(head, frequencies, pairing, position);
            }
        }
    }
    rotated
}

/// Rotates one head. The angle is rounded to `f32` before its sine and cosine
/// are computed, because models were trained with that number.
fn rotate(head: &mut [f32], frequencies: &[f32], pairing: Pairing, position: u32) {
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = match pairing {
            Pairing::Halves => (i, i + frequencies.len()),
            Pairing::Neighbours => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        head[a] = (x * cos - y * sin) as f32;
        head[b] = (x * sin + y * cos) as f32;
    }
}

/// Two products and a sum.
pub(super) fn work(_pairing: Pairing, x: Shape, _frequencies: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, 3 * step.elements(x))
}
