//! Rows with the root mean square of others.

use girih_tensor::{Shape, reference};

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, like: &Value, y: &Value) -> bool {
    x.rank() > 1 && y.is_like(x) && like.is_like(x)
}

/// A row has `width` numbers.
pub(crate) fn define(x: &[f32], like: &[f32], least: f32, width: usize) -> Vec<f32> {
    let least = f64::from(least).sqrt();
    let rows = x.chunks_exact(width).zip(like.chunks_exact(width));
    let matched = rows.flat_map(|(x, like)| {
        let own = reference::root_mean_square(x, 0.0);
        // A comparison that lets NaN pass.
        let own = if own < least { least } else { own };
        let factor = reference::root_mean_square(like, 0.0) / own;
        x.iter().map(move |x| (f64::from(*x) * factor) as f32)
    });
    matched.collect()
}

/// Two squares and their sums, and a product.
pub(super) fn work(_least: f32, x: Shape, _like: Shape, step: WorkStep<'_>) -> NodeWork {
    NodeWork::each(3, 5 * step.elements(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the root mean square of (3, 4, 0, 0) is 2.5, that of (1, 1, 1, 1) is 1; a row of zeros stays one.
    #[test]
    fn a_row_has_the_size_of_another() {
        let x = [3.0, 4.0, 0.0, 0.0];
        assert_eq!(define(&x, &[1.0; 4], 1e-5, 4), [1.2, 1.6, 0.0, 0.0]);
        assert_eq!(define(&x, &[1.0; 4], 25.0, 4), [0.6, 0.8, 0.0, 0.0]);
        assert_eq!(define(&[0.0; 2], &[1.0; 2], 1e-5, 2), [0.0; 2]);
        assert!(define(&[f32::NAN, 1.0], &[1.0; 2], 1e-5, 2).iter().all(|y| y.is_nan()));
    }
}
