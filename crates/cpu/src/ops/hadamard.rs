//! Products of blocks of numbers with a Hadamard matrix, by butterflies.
//!
//! ```text
//! for half in 1, 2, 4, … size / 2:  (a, b) = (a + b, a − b)   of the numbers i and i + half of each 2 · half
//! then:                             times 1 / √size, rounded
//! ```
//! Stages come in this order and nothing is fused, so all tables yield equal bits. Where the size is a power of four, the
//! product is exact. Bytes moved: a row in and out, and the stages in L1.

use girih_graph::ValueId;

use super::rows::each_row;
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// The lanes within which a stage exchanges numbers of one vector.
const HADAMARD_LANES: usize = 16;

/// `y` = each block of `size` numbers of `x`, which is whole blocks, times the matrix.
pub struct Hadamard<'a> {
    pub x: &'a [f32],
    pub size: usize,
    pub y: &'a mut [f32],
}

impl CpuKernel for Hadamard<'_> {
    #[inline(always)]
    fn run(self) {
        let Hadamard { x, size, y } = self;
        y.copy_from_slice(x);
        let factor = (1.0 / (size as f64).sqrt()) as f32;
        for block in y.chunks_exact_mut(size) {
            let (lines, rest) = block.as_chunks_mut::<HADAMARD_LANES>();
            lines.iter_mut().for_each(within);
            butterflies(rest, 1);
            butterflies(block, HADAMARD_LANES);
            block.iter_mut().for_each(|y| *y *= factor);
        }
    }
}

/// The stages of the numbers of a vector.
#[inline(always)]
fn within(line: &mut [f32; HADAMARD_LANES]) {
    *line = exchanged::<1>(line);
    *line = exchanged::<2>(line);
    *line = exchanged::<4>(line);
    *line = exchanged::<8>(line);
}

/// One stage as one sum of two vectors: `a − b` is the sum of `a` and of `b` with the other sign.
#[inline(always)]
fn exchanged<const HALF: usize>(line: &[f32; HADAMARD_LANES]) -> [f32; HADAMARD_LANES] {
    std::array::from_fn(|lane| {
        let own = if lane & HALF == 0 { line[lane] } else { -line[lane] };
        line[lane ^ HALF] + own
    })
}

/// The stages from this half on.
#[inline(always)]
fn butterflies(block: &mut [f32], first: usize) {
    let mut half = first;
    while half < block.len() {
        for pair in block.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
        half *= 2;
    }
}

pub(crate) fn bind(size: usize, x: ValueId, y: ValueId) -> BoundOp {
    BoundOp::new(move |step| {
        let stride = step.values.stride(y);
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, stride, y, |table, _, x, y| table.run(Hadamard { x, size, y }));
    })
}
