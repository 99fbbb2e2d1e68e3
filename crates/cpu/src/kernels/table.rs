//! The kernels of one instruction set, and what they are given.

use girih_graph::{Act, Pairing};

use super::attend::AttendKernels;
use super::packed::MatmulKernels;

/// Values of a row of activations that share one scale when they are quantized.
pub const QUANT_GROUP: usize = 32;

/// A kernel that quantizes whole groups: to codes, scales and sums of codes.
pub type QuantizeRow = fn(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]);

/// A kernel that normalizes a row by its mean and its variance.
pub type LayerNormRow = fn(x: &[f32], weight: &[f32], bias: Option<&[f32]>, epsilon: f32, y: &mut [f32]);

/// The kernels of one instruction set, as ordinary functions.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The name in logs and flags.
    pub name: &'static str,
    /// The multiplication of packed weights.
    pub matmul: MatmulKernels,
    /// `y = x / √(mean(x²) + epsilon) · weight`.
    pub norm: fn(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]),
    /// `y = (x − mean(x)) / √(variance(x) + epsilon) · weight + bias`.
    pub layer_norm: LayerNormRow,
    /// `y` = the heads `x` of one row with rotated pairs.
    pub rotate: fn(x: &[f32], rotation: Rotation<'_>, pairing: Pairing, y: &mut [f32]),
    /// The loops of attention.
    pub attend: AttendKernels,
    /// `y = act(gate) · up`.
    pub gate: fn(act: Act, gate: &[f32], up: &[f32], y: &mut [f32]),
    /// `y = act(x)`.
    pub activate: fn(act: Act, x: &[f32], y: &mut [f32]),
    /// `y = a + b`.
    pub add: fn(a: &[f32], b: &[f32], y: &mut [f32]),
    /// `y = factor · x`.
    pub scale: fn(x: &[f32], factor: f32, y: &mut [f32]),
    /// Replaces each value `x` by `cap · tanh(x / cap)`.
    pub softcap: fn(values: &mut [f32], cap: f32),
    /// Rounds each [`QUANT_GROUP`] values to a scale times integers in −127 ..= 127,
    /// and adds these up: all tables to the same bits. A group that holds an
    /// infinity or NaN has that for its scale, and codes of zero.
    ///
    /// Panics when the lengths do not fit each other.
    pub quantize: QuantizeRow,
}

/// The angles by which the pairs of a head are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// The cosine for each pair.
    pub cosines: &'a [f32],
    /// The sine for each pair.
    pub sines: &'a [f32],
}
