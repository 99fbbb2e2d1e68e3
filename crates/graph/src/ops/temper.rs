//! A factor of rows that grows with their position.

use girih_tensor::Shape;

use crate::sequence::Sequence;
use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.is_like(x)
}

/// How a row's factor follows from its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// The factor of the logarithm.
    pub beta: f32,
    /// The number of positions with the same factor.
    pub every: u32,
    /// What is added to the position.
    pub offset: u32,
}

impl Temperature {
    /// The factor of a row at this position.
    pub fn at(self, position: u32) -> f64 {
        let count = (u64::from(position) + u64::from(self.offset)) / u64::from(self.every);
        1.0 + f64::from(self.beta) * (count as f64).ln_1p()
    }
}

/// Multiplies the rows, of `stride` numbers each.
pub(crate) fn define(
    x: &[f32],
    stride: usize,
    temperature: Temperature,
    sequences: &[Sequence<'_>],
) -> Vec<f32> {
    let positions = sequences.iter().flat_map(|sequence| {
        let first = sequence.position;
        (first..).take(sequence.rows.indexes().len())
    });
    let rows = x.chunks_exact(stride).zip(positions);
    let scaled = |(row, position): (&'_ [f32], u32)| {
        let factor = temperature.at(position);
        row.iter().map(|x| (factor * f64::from(*x)) as f32).collect::<Vec<f32>>()
    };
    rows.flat_map(scaled).collect()
}

pub(super) fn work(_beta: f32, _every: u32, _offset: u32, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(1, step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: positions 0 to 2 count 0, positions 3 to 6 count 1 with an offset of 1 in steps of 4.
    #[test]
    fn the_factor_grows_by_steps() {
        let temperature = Temperature { beta: 0.5, every: 4, offset: 1 };
        let factors = [0, 2, 3, 6, 7].map(|position| temperature.at(position));
        let two = 1.0 + 0.5 * 2f64.ln();
        for (factor, want) in factors.into_iter().zip([1.0, 1.0, two, two, 1.0 + 0.5 * 3f64.ln()]) {
            assert!((factor - want).abs() < 1e-12, "{factors:?}");
        }
    }
}
