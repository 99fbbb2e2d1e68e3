//! What of each number of a row lies above a cutoff.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    x.rank() > 1 && y.is_like(x)
}

/// A row has `width` numbers.
pub(crate) fn define(x: &[f32], deviations: f32, width: usize) -> Vec<f32> {
    let rest = x.chunks_exact(width).flat_map(|row| {
        let (mean, deviation) = reference::mean_and_deviation(row, 0.0);
        let cutoff = mean + f64::from(deviations) * deviation;
        row.iter().map(move |x| {
            let above = f64::from(*x) - cutoff;
            // A comparison that lets NaN pass.
            if above < 0.0 { 0.0 } else { above as f32 }
        })
    });
    rest.collect()
}

/// A sum, a difference, a square and its sum, and a difference.
pub(super) fn work(_deviations: f32, x: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(2, 5 * step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the mean is 2, the variance (4 + 0 + 0 + 4) / 4; half a deviation above the mean is 2.707107.
    #[test]
    fn a_number_counts_from_the_cutoff_on() {
        let y = define(&[0.0, 2.0, 2.0, 4.0], 0.5, 4);
        assert_eq!(y[..3], [0.0; 3]);
        assert!((y[3] - 1.292_893).abs() < 1e-6, "{y:?}");
        assert_eq!(define(&[0.0, 2.0, 2.0, 4.0], 0.0, 4), [0.0, 0.0, 0.0, 2.0]);
        assert!(define(&[f32::NAN, 1.0], 1.0, 2).iter().all(|y| y.is_nan()));
    }
}
