//! Element-wise kernels. Functions that are not arithmetic are computed in `f64` and
//! rounded once: these are the plain twins of `exponential`, which tables of vector
//! instructions use instead.

use girih_graph::Act;
use girih_tensor::reference;

pub(super) fn gate(act: Act, gate: &[f32], up: &[f32], y: &mut [f32]) {
    pairwise(gate, up, y, |gate, up| (activated(act, f64::from(gate)) * f64::from(up)) as f32);
}

pub(super) fn activate(act: Act, x: &[f32], y: &mut [f32]) {
    each(x, y, |x| activated(act, f64::from(x)) as f32);
}

#[inline(always)] // Tables compile it with their own vector instructions.
pub(in super::super) fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    pairwise(a, b, y, |a, b| a + b);
}

#[inline(always)]
pub(in super::super) fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
    each(x, y, |x| x * factor);
}

pub(super) fn softcap(values: &mut [f32], cap: f32) {
    let cap = f64::from(cap);
    for value in values {
        *value = (cap * (f64::from(*value) / cap).tanh()) as f32;
    }
}

#[inline(always)]
pub(in super::super) fn pairwise(a: &[f32], b: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = f(a, b);
    }
}

#[inline(always)]
pub(in super::super) fn each(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

fn activated(act: Act, x: f64) -> f64 {
    match act {
        Act::Silu => x / (1.0 + (-x).exp()),
        // `x/2 · (1 + tanh(z))` is `x / (1 + e^−2z)`, in which nothing cancels.
        Act::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * inner).exp())
        }
        Act::Gelu => 0.5 * x * (1.0 + reference::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Act::Identity => x,
    }
}
