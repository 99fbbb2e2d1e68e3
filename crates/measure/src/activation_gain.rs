//! How an activation changes the relative errors of rows.

use girih_graph::Act;

use crate::rounding::mean_square;

/// The factor of the mean square of relative errors, which a square doubles.
pub(crate) const SQUARE_GAIN: f64 = 4.0;

/// The factor by which an activation makes the mean square of relative errors larger, if it has no
/// [`derivative`].
pub(crate) fn square_gain(act: Act) -> f64 {
    if act == Act::Relu2 { SQUARE_GAIN } else { 1.0 }
}

/// The derivative of an activation that is small where its input is negative and large.
pub(crate) fn derivative(act: Act) -> Option<fn(f64) -> f64> {
    match act {
        Act::Sigmoid => Some(|x| Act::Sigmoid.of(x) * Act::Sigmoid.of(-x)),
        Act::Softplus => Some(|x| Act::Sigmoid.of(x)),
        Act::Silu | Act::GeluTanh | Act::Gelu | Act::QuickGelu | Act::Relu | Act::Relu2 | Act::Identity => {
            None
        }
    }
}

/// The factor by which an activation makes the mean square of the relative errors of these inputs larger.
pub(crate) fn gain_of_row(act: Act, derivative: fn(f64) -> f64, row: &[f32]) -> f64 {
    let mean = |of: &dyn Fn(f64) -> f64| mean_square(row.iter().map(|x| of(f64::from(*x))));
    let even = mean(&|x| x) * mean(&derivative);
    ratio(even.max(mean(&|x| x * derivative(x))), mean(&|x| act.of(x)))
}

/// A quotient of mean squares; the largest error if only the divisor is 0.
pub(crate) fn ratio(noise: f64, size: f64) -> f64 {
    match (noise, size) {
        (0.0, _) => 0.0,
        (_, 0.0) => 1.0,
        _ => noise / size,
    }
}
