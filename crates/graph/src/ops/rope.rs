//! Rotary positions.

use girih_tensor::Shape;

use crate::constant::Pairing;
use crate::sequence::Sequence;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, frequencies: &Value, positions: Option<&Value>, y: &Value) -> bool {
    let streams = positions.map_or(1, Value::columns);
    let is_place = positions.is_none_or(|positions| positions.rank() == 2);
    let pairs = frequencies.columns() / streams.max(1);
    let is_rotated = pairs > 0 && pairs <= x.columns() / 2;
    y.is_like(x) && x.rank() == 3 && is_place && is_rotated && frequencies.is_vector(pairs * streams)
}

/// How heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeRule<'a> {
    /// Radians per position of each pair; of each stream, if rows have several positions.
    pub frequencies: &'a [f32],
    pub pairing: Pairing,
    /// Multiplies the rotated components.
    pub factor: Option<f32>,
    /// The positions of each row, if they are not those of its sequence, and their number for a row.
    pub positions: Option<(&'a [f32], usize)>,
}

/// The angle of a pair with these frequencies in a row with these positions. Every product and every sum is rounded to
/// `f32`, because models were trained with that number.
pub fn rope_angle(positions: &[f32], frequencies: &[f32]) -> f32 {
    let mut products = positions.iter().zip(frequencies).map(|(position, frequency)| position * frequency);
    let first = products.next().unwrap_or(0.0);
    products.fold(first, |sum, product| sum + product)
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
            let own = [position as f32];
            let positions = match rule.positions {
                None => &own[..],
                Some((positions, streams)) => &positions[row * streams..(row + 1) * streams],
            };
            for head in rotated[row * stride..(row + 1) * stride].chunks_exact_mut(size) {
                rotate(head, rule, positions);
            }
        }
    }
    rotated
}

/// Rotates one head of a row with these positions.
fn rotate(head: &mut [f32], rule: RopeRule<'_>, positions: &[f32]) {
    let RopeRule { frequencies, pairing, factor, positions: _ } = rule;
    let factor = f64::from(factor.unwrap_or(1.0));
    let pairs = frequencies.len() / positions.len();
    for (i, frequencies) in frequencies.chunks_exact(positions.len()).enumerate() {
        let (a, b) = match pairing {
            Pairing::Halves => (i, i + pairs),
            Pairing::Neighbours => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = f64::from(rope_angle(positions, frequencies)).sin_cos();
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
    positions: Option<Shape>,
    step: WorkStep<'_>,
) -> NodeWork {
    NodeWork::each(2 + usize::from(positions.is_some()), 3 * step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Outputs;

    #[test]
    fn a_pair_turns_by_the_sum_of_its_rows_positions() {
        let quarter = std::f32::consts::FRAC_PI_2;
        // The first pair turns by the first position, the second by both; the sequence's position does not count.
        let frequencies = [quarter, 0.0, quarter, quarter];
        let positions = Some((&[1.0, 2.0, 0.0, 1.0][..], 2));
        let rule =
            RopeRule { frequencies: &frequencies, pairing: Pairing::Neighbours, factor: None, positions };
        let rows = crate::backend::Range32 { start: 0, end: 2 };
        let sequence = Sequence { blocks: &[], position: 7, rows, outputs: Outputs::All, spans: &[] };
        let found = define(&[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0], rule, &[sequence], [4, 4]);
        for (found, expected) in found.iter().zip([-2.0, 1.0, 4.0, -3.0, 1.0, 2.0, -4.0, 3.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }
}
