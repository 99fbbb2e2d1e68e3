//! The inner loops, one table of them for each instruction set.
//!
//! A kernel takes plain slices, allocates nothing and knows no graphs. It adds
//! up each of its results in one fixed order, so that a result depends on its
//! operands only and not on what else is computed beside it.
//!
//! A table of vector instructions can be had only from [`tables`], which asks
//! the processor first: whoever holds one may call it. What a table does not
//! have of its own it takes from the portable one.

pub mod ahead;
pub mod attend;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod exponential;
pub(crate) mod layout;
pub mod packed;
pub mod peaks;
mod portable;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_attend;

use std::sync::LazyLock;

use girih_graph::{Act, Error, Pairing};

use attend::Attend;

/// Values of a row of activations that share one scale when they are quantized.
pub const GROUP: usize = 32;

/// A kernel that makes integers of whole groups: codes, scales and sums of codes.
pub type Quantize = fn(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]);

/// The kernels of one instruction set, as ordinary functions.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The name in logs and flags.
    pub name: &'static str,
    /// What multiplies packed weights.
    pub products: packed::Products,
    /// `y = x / √(mean(x²) + epsilon) · weight`.
    pub norm: fn(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]),
    /// `y` = the heads `x` of one row, each with its pairs turned.
    pub rotate: fn(x: &[f32], turns: Turns<'_>, pairing: Pairing, y: &mut [f32]),
    /// The loops of attention.
    pub attend: Attend,
    /// `y = act(gate) · up`.
    pub gate: fn(act: Act, gate: &[f32], up: &[f32], y: &mut [f32]),
    /// `y = a + b`.
    pub add: fn(a: &[f32], b: &[f32], y: &mut [f32]),
    /// `y = factor · x`.
    pub scale: fn(x: &[f32], factor: f32, y: &mut [f32]),
    /// Replaces each value `x` by `cap · tanh(x / cap)`.
    pub softcap: fn(values: &mut [f32], cap: f32),
    /// Rounds each [`GROUP`] values to a scale times integers in −127 ..= 127,
    /// and adds these up: all tables to the same bits. A group that holds an
    /// infinity or NaN has that for its scale, and codes of zero.
    ///
    /// Panics when the lengths do not fit each other.
    pub quantize: Quantize,
}

/// The angles by which the pairs of a head are turned.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// The cosine for each pair.
    pub cosines: &'a [f32],
    /// The sine for each pair.
    pub sines: &'a [f32],
}

/// The names of all tables there are for this kind of machine, best first.
pub fn names() -> &'static [&'static str] {
    if cfg!(target_arch = "x86_64") { &["avx512bf16", "avx512", "avx2", "portable"] } else { &["portable"] }
}

/// The tables that this machine can run, best first; the last one runs anywhere.
pub fn tables() -> &'static [Table] {
    static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
        let mut tables = Vec::new();
        #[cfg(target_arch = "x86_64")]
        tables.extend([avx512::brain_table(), avx512::table(), avx2::table()].into_iter().flatten());
        tables.push(portable::TABLE);
        tables
    });
    &TABLES
}

/// The table of that name.
///
/// # Errors
/// When this machine has none; the error names those it has.
pub fn by_name(name: &str) -> Result<Table, Error> {
    tables().iter().copied().find(|table| table.name == name).ok_or_else(|| {
        let have: Vec<_> = tables().iter().map(|table| table.name).collect();
        let have = have.join(", ");
        Error::new(format!("this machine cannot run kernels named '{name}'; it runs these: {have}"))
    })
}
