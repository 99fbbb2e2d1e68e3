//! Normalization of rows by their mean and their variance.
//!
//! ```text
//! mean = sum of x / n
//! d[i] = x[i] − mean
//! y[i] = (d[i] · (1 / √(sum of d² / n + epsilon))) · weight[i] + bias[i]
//! ```
//! The sums are those of `norm`. Distances from the mean are squared, so nothing cancels if the mean is large.
//!
//! Bytes: 12 a value, 16 with a bias; `x` is read again from L1.

use girih_graph::ValueId;

use super::norm::sum_of;
use super::rows::each_row;
use crate::bound::BoundOp;
use crate::kernels::CpuKernel;

/// `y = (x − mean(x)) / √(variance(x) + epsilon) · weight + bias`.
pub struct LayerNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
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
        let scaled = y.iter_mut().zip(x).zip(weight);
        match bias {
            Some(bias) => {
                for (((y, x), weight), bias) in scaled.zip(bias) {
                    *y = (x - mean) * scale * weight + bias;
                }
            }
            None => {
                for ((y, x), weight) in scaled {
                    *y = (x - mean) * scale * weight;
                }
            }
        }
    }
}

/// Normalizes each run of as many values as there are weights.
pub(crate) fn bind(epsilon: f32, x: ValueId, weight: ValueId, bias: Option<ValueId>, y: ValueId) -> BoundOp {
    BoundOp::new(move |step| {
        let (weight, bias) = (step.weights.vector(weight), bias.map(|bias| step.weights.vector(bias)));
        let (y, [x]) = step.values.split(y, [x]);
        each_row(&mut step.executor, x, weight.len(), y, |table, _, x, y| {
            table.run(LayerNorm { x, weight, bias, epsilon, y });
        });
    })
}
