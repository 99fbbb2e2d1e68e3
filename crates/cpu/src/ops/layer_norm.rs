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

use super::executor::Executor;
use super::norm::sum_of;
use super::rows::each_row;
use crate::kernels::CpuKernel;

/// `y = (x − mean(x)) / √(variance(x) + epsilon) · weight + bias`.
#[derive(Debug)]
#[allow(missing_docs)] // the formula names them
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

/// Normalizes each run of `weight.len()` values by its mean and its variance.
pub(crate) fn layer_norm(
    executor: &mut Executor<'_>,
    x: &[f32],
    (weight, bias): (&[f32], Option<&[f32]>),
    epsilon: f32,
    output: &mut [f32],
) {
    each_row(executor, x, weight.len(), output, |table, _, x, y| {
        table.run(LayerNorm { x, weight, bias, epsilon, y });
    });
}
