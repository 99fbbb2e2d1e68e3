//! Normalization of rows by their mean and their variance.
//!
//! ```text
//! mean = sum of x / n
//! d[i] = x[i] − mean
//! y[i] = (d[i] · (1 / √(sum of d² / n + epsilon))) · weight[i] + bias[i]        without either, by itself
//! ```
//! The sums are those of `norm`. Distances from the mean are squared, so nothing cancels if the mean is large.
//!
//! Bytes: 12 a value, 16 with a bias; `x` is read again from L1.

use girih_graph::ValueId;

use super::norm::sum_of;
use super::rows::{each, each_row, pairwise};
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y = (x − mean(x)) / √(variance(x) + epsilon) · weight + bias`.
pub struct LayerNorm<'a> {
    pub x: &'a [f32],
    pub weight: Option<&'a [f32]>,
    pub bias: Option<&'a [f32]>,
    pub epsilon: f32,
    pub y: &'a mut [f32],
}

impl CpuKernel for LayerNorm<'_> {
    #[inline(always)]
    fn run(self) {
        let LayerNorm { x, weight, bias, epsilon, y } = self;
        let count = x.len() as f32;
        let mean = sum_of(x, |x| x) / count;
        let variance = sum_of(x, |x| (x - mean) * (x - mean)) / count;
        let scale = 1.0 / (variance + epsilon).sqrt();
        match (weight, bias) {
            (Some(weight), Some(bias)) => {
                for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                    *y = (x - mean) * scale * weight + bias;
                }
            }
            (Some(weight), None) => pairwise(x, weight, y, |x, weight| (x - mean) * scale * weight),
            (None, Some(bias)) => pairwise(x, bias, y, |x, bias| (x - mean) * scale + bias),
            (None, None) => each(x, y, |x| (x - mean) * scale),
        }
    }
}

/// Normalizes each run of `width` values.
pub(crate) fn bind(
    epsilon: f32,
    x: ValueId,
    vectors: [Option<ValueId>; 2],
    y: ValueId,
    width: usize,
) -> BoundOp {
    BoundOp::new(move |step| {
        let [weight, bias] = vectors.map(|vector| vector.map(|vector| step.weights.vector(vector)));
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, width, y, |table, _, x, y| {
            table.run(LayerNorm { x, weight, bias, epsilon, y });
        });
    })
}
