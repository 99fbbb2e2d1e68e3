//! Products of blocks of numbers with a Hadamard matrix.

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    y.is_like(x)
}

/// Each number of a block is the sum of all of them, where the sign of `j` in the sum `i` is `(−1)^popcount(i & j)`, over
/// the root of their count. A row that is no whole number of blocks is refused by the checker.
pub(crate) fn define(x: &[f32], size: u32) -> Vec<f32> {
    let root = f64::from(size).sqrt();
    let sum = |block: &[f32], i: usize| {
        let signed = |(j, x): (usize, &f32)| match (i & j).count_ones() % 2 {
            0 => f64::from(*x),
            _ => -f64::from(*x),
        };
        block.iter().enumerate().map(signed).sum::<f64>()
    };
    let blocks = x.chunks_exact(size as usize);
    blocks.flat_map(|block| (0..block.len()).map(move |i| (sum(block, i) / root) as f32)).collect()
}

/// A sum or a difference in each stage, and a product.
pub(super) fn work(size: u32, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(1, u64::from(size.ilog2() + 1) * step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: blocks of two become their sum and their difference, over the root of 2.
    #[test]
    fn a_block_becomes_sums_of_both_signs() {
        assert_eq!(define(&[1.0, 2.0, 3.0, 4.0], 4), [5.0, -1.0, -2.0, 0.0]);
        let root = 2f32.sqrt();
        assert_eq!(define(&[3.0, 1.0, 0.0, 2.0], 2), [4.0 / root, 2.0 / root, 2.0 / root, -2.0 / root]);
    }

    #[test]
    fn a_block_turned_twice_is_itself() {
        let x: Vec<f32> = (0..64).map(|index| (index * index % 37) as f32 - 11.0).collect();
        let twice = define(&define(&x, 16), 16);
        assert!(twice.iter().zip(&x).all(|(got, want)| (got - want).abs() < 1e-5), "{twice:?}");
    }
}
