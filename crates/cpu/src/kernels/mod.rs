//! The inner loops, one table of them for each instruction set.
//!
//! A kernel takes plain slices, allocates nothing and knows no graphs. It adds
//! up each of its results in one fixed order, so that a result depends on its
//! operands only and not on what else is computed beside it.
use girih_graph::{Act, Pairing};
use girih_tensor::DType;

mod portable;

/// Rows that [`Table::dots`] takes at once.
pub const QUAD: usize = 4;

/// The kernels of one instruction set, as ordinary functions.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The name in logs and flags.
    pub name: &'static str,
    /// Decodes whole blocks as [`DType::unpack`] does, to the same numbers.
    pub unpack: fn(dtype: DType, bytes: &[u8], values: &mut [f32]),
    /// The sum of the products of two equally long rows.
    pub dot: fn(a: &[f32], b: &[f32]) -> f32,
    /// [`Table::dot`] of `x` with each of [`QUAD`] rows that follow each
    /// other, bit for bit.
    pub dots: fn(rows: &[f32], x: &[f32]) -> [f32; QUAD],
    /// `y = x / √(mean(x²) + epsilon) · weight`.
    pub norm: fn(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]),
    /// `y` = the head `x` with each of its pairs turned.
    pub rotate: fn(x: &[f32], turns: Turns<'_>, pairing: Pairing, y: &mut [f32]),
    /// Replaces scores by `exp(score − largest)`; yields the largest score and
    /// the sum of the replacements.
    pub weigh: fn(scores: &mut [f32]) -> (f32, f32),
    /// Adds `weights[i]` times row `i` of `values` to `sums`, in the order of `i`.
    pub blend: fn(weights: &[f32], values: &[f32], sums: &mut [f32]),
    /// `y = act(gate) · up`.
    pub gate: fn(act: Act, gate: &[f32], up: &[f32], y: &mut [f32]),
    /// `y = a + b`.
    pub add: fn(a: &[f32], b: &[f32], y: &mut [f32]),
    /// `y = factor · x`.
    pub scale: fn(x: &[f32], factor: f32, y: &mut [f32]),
    /// Replaces each value `x` by `cap · tanh(x / cap)`.
    pub softcap: fn(values: &mut [f32], cap: f32),
}

/// The angles by which the pairs of a head are turned.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// The cosine for each pair.
    pub cosines: &'a [f32],
    /// The sine for each pair.
    pub sines: &'a [f32],
}

/// The tables that this machine can run, best first; the last one runs anywhere.
pub fn tables() -> &'static [Table] {
    &[portable::TABLE]
}
