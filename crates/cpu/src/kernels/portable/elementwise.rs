//! Element-wise kernels. Functions that are not arithmetic are computed in `f64` and
//! rounded once: these are the plain twins of `exponential`, which tables of vector
//! instructions use instead.

use girih_graph::Act;

pub(super) fn gate(act: Act, gate: &[f32], up: &[f32], y: &mut [f32]) {
    match act {
        Act::Silu => pairwise(gate, up, y, |gate, up| (silu(f64::from(gate)) * f64::from(up)) as f32),
        Act::GeluTanh => pairwise(gate, up, y, |gate, up| (gelu(f64::from(gate)) * f64::from(up)) as f32),
        Act::Gelu => unreachable!("refused: the backend does not know it"),
    }
}

#[inline(always)] // Tables compile it with their own vector instructions.
pub(in super::super) fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    pairwise(a, b, y, |a, b| a + b);
}

#[inline(always)]
pub(in super::super) fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x * factor;
    }
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

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// `x/2 · (1 + tanh(z))` is `x / (1 + e^−2z)`, in which nothing cancels.
fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + (-2.0 * inner).exp())
}
