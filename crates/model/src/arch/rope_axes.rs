//! Rotations by positions along several axes: which pairs of a head turn by which of them.

use serde::Serialize;

use super::rope::frequencies;
use super::rope_schema::AxisPairs;

/// The axes of positions by which the pairs of a head turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RopeAxes {
    /// How pairs are shared out.
    #[serde(rename = "axes")]
    pub pairs: AxisPairs,
    /// The numbers of pairs that turn by time, by line and by column; 0 for halves.
    pub sections: [usize; 3],
}

impl RopeAxes {
    /// The number of axes.
    pub fn count(&self) -> usize {
        match self.pairs {
            AxisPairs::InTurn | AxisPairs::InSections => 3,
            AxisPairs::Halves => 2,
        }
    }

    /// The axis of pair `pair` of `pairs`.
    fn of_pair(&self, pair: usize, pairs: usize) -> usize {
        let [time, line, column] = self.sections;
        match self.pairs {
            AxisPairs::InTurn => match pair % 3 {
                1 if pair < 3 * line => 1,
                2 if pair < 3 * column => 2,
                _ => 0,
            },
            AxisPairs::InSections => usize::from(pair >= time) + usize::from(pair >= time + line),
            AxisPairs::Halves => usize::from(pair >= pairs / 2),
        }
    }

    /// The frequencies of each pair along each axis, pair after pair, of heads of which `rotated` components turn.
    pub fn frequencies(&self, base: f32, factors: &[f32], rotated: usize) -> Vec<f32> {
        let pairs = rotated / 2;
        let of_pair = match self.pairs {
            AxisPairs::InTurn | AxisPairs::InSections => frequencies(base, factors, rotated),
            AxisPairs::Halves => frequencies(base, factors, pairs).repeat(2),
        };
        let mut of_axes = vec![0.0; pairs * self.count()];
        for (pair, (of_axes, frequency)) in of_axes.chunks_exact_mut(self.count()).zip(of_pair).enumerate() {
            of_axes[self.of_pair(pair, pairs)] = frequency;
        }
        of_axes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(pairs: AxisPairs, sections: [usize; 3], count: usize) -> Vec<usize> {
        let axes = RopeAxes { pairs, sections };
        (0..count).map(|pair| axes.of_pair(pair, count)).collect()
    }

    #[test]
    fn pairs_turn_by_the_axes_of_their_models() {
        assert_eq!(axes(AxisPairs::InTurn, [4, 2, 2], 8), [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!(axes(AxisPairs::InSections, [2, 3, 3], 8), [0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(axes(AxisPairs::Halves, [0; 3], 4), [0, 0, 1, 1]);
        let halves = RopeAxes { pairs: AxisPairs::Halves, sections: [0; 3] };
        assert_eq!(halves.frequencies(100.0, &[], 8), [1.0, 0.0, 0.1, 0.0, 0.0, 1.0, 0.0, 0.1]);
    }
}
