//! Matrices that rotate heads by one position more, for rows that are rotated as at the position after theirs.
//!
//! Rotations by p and by one position make one by p + 1, so no op needs an offset.

use girih_graph::Pairing;
use girih_tensor::{Error, Result, Shape};

use crate::arch::{Rope, frequencies};

/// The largest number of values of these matrices.
const MAX_VALUES: usize = 1 << 26;

/// The name of the matrices for heads that are rotated in this way.
pub(crate) fn name(rope: &Rope) -> String {
    format!("{}.one_position", rope.weight)
}

/// The same matrix for each of several heads.
#[derive(Clone, Debug)]
pub(crate) struct OnePosition {
    /// Heads, and twice the size of one.
    pub shape: Shape,
    frequencies: Vec<f32>,
    pairing: Pairing,
}

impl OnePosition {
    /// The matrices of a number of heads of this size.
    ///
    /// # Errors
    /// When they have too many values.
    pub fn of(rope: &Rope, [heads, size]: [usize; 2]) -> Result<OnePosition> {
        let values = heads.checked_mul(size).and_then(|values| values.checked_mul(size));
        if values.is_none_or(|values| values > MAX_VALUES) {
            return Err(Error::new(format!(
                "{heads} heads of {size} values are too large to be rotated by a position; at most {MAX_VALUES} values of \
                 their matrices are supported"
            )));
        }
        let frequencies = frequencies(rope.base, &rope.factors, rope.rotated);
        Ok(OnePosition { shape: Shape::new(&[heads, size, size])?, frequencies, pairing: rope.pairing })
    }

    /// All values.
    pub fn numbers(&self) -> Vec<f32> {
        let &[heads, size, _] = self.shape.extents() else { return Vec::new() };
        let mut matrix = vec![0.0; size * size];
        (0..size).for_each(|at| matrix[at * size + at] = 1.0);
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (a, b) = match self.pairing {
                Pairing::Halves => (i, i + self.frequencies.len()),
                Pairing::Neighbours => (2 * i, 2 * i + 1),
            };
            let (sin, cos) = f64::from(*frequency).sin_cos();
            let (sin, cos) = (sin as f32, cos as f32);
            for (row, column, value) in [(a, a, cos), (a, b, -sin), (b, a, sin), (b, b, cos)] {
                matrix[row * size + column] = value;
            }
        }
        matrix.repeat(heads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: of four values, the pair of the first and the third is turned by 1 radian; the other one by 0.01.
    #[test]
    fn pairs_turn_by_their_frequency() {
        let turn = OnePosition {
            shape: Shape::new(&[2, 4, 4]).unwrap(),
            frequencies: vec![1.0, 0.01],
            pairing: Pairing::Halves,
        };
        let (cos, sin, near, small) = (0.540_302_3, 0.841_470_96, 0.999_95, 0.009_999_833);
        let rows =
            [[cos, 0.0, -sin, 0.0], [0.0, near, 0.0, -small], [sin, 0.0, cos, 0.0], [0.0, small, 0.0, near]];
        assert_eq!(turn.numbers(), rows.concat().repeat(2));
    }
}
