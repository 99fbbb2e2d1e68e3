//! Rotary position embedding (RoPE).
//!
//! ```text
//! (y[a], y[b]) = (x[a] · cos − x[b] · sin, x[a] · sin + x[b] · cos)   for each pair (a, b)
//! ```
//! Sines and cosines include the op's factor. Components behind the pairs are kept. Nothing is fused, so all tables yield the same bits. Bytes: 8 a value; the rotation of a row stays in L1 for
//! all heads.

use girih_graph::{Pairing, ValueId};

use super::rotations::{RopeParams, Rotation, RotationTable};
use super::rows::each_row;
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y` = the heads `x` of one row with rotated pairs.
pub struct Rotate<'a> {
    pub x: &'a [f32],
    pub rotation: Rotation<'a>,
    pub pairing: Pairing,
    /// The size of a head.
    pub size: usize,
    pub y: &'a mut [f32],
}

impl CpuKernel for Rotate<'_> {
    #[inline(always)]
    fn run(self) {
        match self.pairing {
            Pairing::Halves => self.each_head(halves),
            Pairing::Neighbours => self.each_head(neighbours),
        }
    }
}

impl Rotate<'_> {
    /// Rotates the pairs of each head by `rotate`, and copies the components behind them.
    #[inline(always)] // As `run`. A closure in an adapter became a call, which left the table's instructions.
    fn each_head(self, rotate: impl Fn(&[f32], Rotation<'_>, &mut [f32])) {
        let Rotate { x, rotation, pairing: _, size, y } = self;
        let rotated = 2 * rotation.cosines.len();
        for (x, y) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)) {
            rotate(&x[..rotated], rotation, &mut y[..rotated]);
            if rotated < size {
                y[rotated..].copy_from_slice(&x[rotated..]);
            }
        }
    }
}

#[inline(always)]
fn halves(x: &[f32], rotation: Rotation<'_>, y: &mut [f32]) {
    let (x, x_upper) = x.split_at(rotation.cosines.len());
    let (y, y_upper) = y.split_at_mut(rotation.cosines.len());
    let angles = rotation.cosines.iter().zip(rotation.sines);
    for ((x, y), (cosine, sine)) in x.iter().zip(x_upper).zip(y.iter_mut().zip(y_upper)).zip(angles) {
        (*y.0, *y.1) = (x.0 * cosine - x.1 * sine, x.0 * sine + x.1 * cosine);
    }
}

#[inline(always)]
fn neighbours(x: &[f32], rotation: Rotation<'_>, y: &mut [f32]) {
    let (x, y) = (x.as_chunks::<2>().0, y.as_chunks_mut::<2>().0);
    let angles = rotation.cosines.iter().zip(rotation.sines);
    for (([a, b], y), (cosine, sine)) in x.iter().zip(y).zip(angles) {
        *y = [a * cosine - b * sine, a * sine + b * cosine];
    }
}

/// Rotates every head of every row.
pub(crate) fn bind(rotation: RopeParams, size: usize, x: ValueId, y: ValueId) -> BoundOp {
    BoundOp::new(move |step| {
        let stride = step.values.stride(y);
        let RopeParams { rotations: RotationTable { frequencies, factor, positions }, table, pairing } =
            rotation;
        let (y, [x, given]) = step.values.split(y, [x, positions.unwrap_or(x)]);
        let frequencies = step.weights.vector(frequencies);
        let positions = positions.map(|_| given);
        step.rotations[table].fill(&mut step.executor, frequencies, factor, positions, step.rows);
        let rotations = &step.rotations[table];
        each_row(&mut step.executor, x, stride, y, |table, row, x, y| {
            table.run(Rotate { x, rotation: rotations.row(row), pairing, size, y });
        });
    })
}
