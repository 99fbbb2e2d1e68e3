//! Matrices that rotate heads by one position more, for rows that are rotated as at the position after theirs.
//!
//! Rotations by p and by one position make one by p + 1, so no op needs an offset.

use girih_graph::Pairing;
use girih_tensor::{Error, Result, Shape};

use crate::arch::{Rope, frequencies};
use crate::weight_bytes::past_end;

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

    /// Fills `into` with the bytes of all values from `offset` on; the work is that of these bytes.
    ///
    /// # Errors
    /// When they end before that.
    pub fn fill(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let &[heads, size, _] = self.shape.extents() else { return Err(past_end()) };
        let (row_bytes, all) = (4 * size, 4 * size * size * heads);
        let fits = |start: &usize| all.checked_sub(*start).is_some_and(|left| left >= into.len());
        let start = usize::try_from(offset).ok().filter(fits);
        let (mut at, mut rest) = (start.ok_or_else(past_end)?, into);
        while !rest.is_empty() {
            let within = at % row_bytes;
            let (now, later) = rest.split_at_mut(rest.len().min(row_bytes - within));
            let values = self.row(at / row_bytes % size, size);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            now.copy_from_slice(&bytes[within..within + now.len()]);
            (at, rest) = (at + now.len(), later);
        }
        Ok(())
    }

    /// A row of one head's matrix.
    fn row(&self, row: usize, size: usize) -> Vec<f32> {
        let mut values = vec![0.0; size];
        let pairs = self.frequencies.len();
        if row >= 2 * pairs {
            values[row] = 1.0;
            return values;
        }
        let (pair, is_first, other) = match self.pairing {
            Pairing::Halves if row < pairs => (row, true, row + pairs),
            Pairing::Halves => (row - pairs, false, row - pairs),
            Pairing::Neighbours => (row / 2, row.is_multiple_of(2), row ^ 1),
        };
        let (sin, cos) = f64::from(self.frequencies[pair]).sin_cos();
        values[row] = cos as f32;
        values[other] = if is_first { -(sin as f32) } else { sin as f32 };
        values
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
        let bytes: Vec<u8> =
            rows.concat().repeat(2).iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        let filled = |offset: usize, length: usize| {
            let mut into = vec![7; length];
            turn.fill(offset as u64, &mut into).map(|()| into)
        };
        for (offset, length) in [(0, 128), (0, 0), (3, 60), (63, 2), (100, 28), (128, 0)] {
            assert_eq!(filled(offset, length).unwrap(), bytes[offset..offset + length], "{offset} {length}");
        }
        assert!(filled(1, 128).is_err() && filled(129, 0).is_err());
        // The same pairs as neighbours.
        let turn = OnePosition { pairing: Pairing::Neighbours, ..turn };
        let near = [cos, -sin, 0.0, 0.0, sin, cos, 0.0, 0.0];
        let near: Vec<u8> = near.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        let mut into = [0; 32];
        turn.fill(64, &mut into).unwrap();
        assert_eq!(into[..], near);
    }
}
