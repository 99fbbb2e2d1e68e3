//! Normalization of rows by their root mean square.
//!
//! ```text
//! sums[l] += x[i]²              for i = l, l + 32, l + 64 …   in 32 lanes l
//! sum      = halves of the sums added, halves of these, … down to one
//! y[i]     = (x[i] · (1 / √(sum / n + epsilon))) · weight[i]        weight[i] = 1 if there are no weights
//! ```
//! Nothing is fused: each multiplication and each addition is rounded, so all tables yield the same bits. 32
//! lanes are two vectors of AVX-512, whose additions follow each other without waiting.
//!
//! Bytes: 12 a value; `x` is read again from L1.

use girih_graph::ValueId;

use super::rows::{each, each_row};
use crate::bound::{BoundOp, PackSource};
use crate::kernels::CpuKernel;

/// Running sums of a row.
const LANES: usize = 32;

/// `y = x / √(mean(x²) + epsilon) · weight`.
pub struct Norm<'a> {
    pub x: &'a [f32],
    pub weight: Option<&'a [f32]>,
    pub epsilon: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for Norm<'_> {
    #[inline(always)]
    fn run(self) {
        let Norm { x, weight, epsilon, y } = self;
        let mean = sum_of(x, |x| x * x) / x.len() as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        match weight {
            Some(weight) => {
                for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
                    *y = x * scale * weight;
                }
            }
            None => each(x, y, |x| x * scale),
        }
    }
}

/// The sum of a term of each value of a row.
#[inline(always)]
pub(super) fn sum_of(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (steps, rest) = x.as_chunks::<LANES>();
    for step in steps {
        add_terms(&mut sums, step, &term);
    }
    add_terms(&mut sums, rest, &term);
    let mut half = LANES / 2;
    while half > 0 {
        let (lower, upper) = sums.split_at_mut(half);
        lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
        half /= 2;
    }
    sums[0]
}

#[inline(always)]
fn add_terms(sums: &mut [f32; LANES], x: &[f32], term: impl Fn(f32) -> f32) {
    for (sum, x) in sums.iter_mut().zip(x) {
        *sum += term(*x);
    }
}

/// Normalizes each run of `width` values.
pub(crate) fn bind(epsilon: f32, x: ValueId, weight: Option<ValueId>, y: ValueId, width: usize) -> BoundOp {
    let run = BoundOp::new(move |step| {
        let weight = weight.map(|weight| step.weights.vector(weight));
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, width, y, |table, run, x, y| {
            // A weight of all values of a row begins again with the next one.
            let weight = weight.map(|weight| &weight[run * width % weight.len()..][..width]);
            table.run(Norm { x, weight, epsilon, y });
        });
    });
    BoundOp { pack_source: Some(PackSource::Norm { x, weight, epsilon }), ..run }
}
