//! The parts that the loop nests of all kernels share.

use crate::form::schedule::{Affine, Dim, Parameter, ParameterValue};
use crate::form::tiled::{Item, TiledLaunch, TiledOperand};
use crate::target::Target;

/// Rows and columns of a block of the matrix kernel's left operand. Blocks of its
/// right operand and of its result have the same number of columns.
pub(super) const GEMM_BLOCK: (u32, u32) = (4, 8);

/// The name and the arguments of a launch, which tiling does not change.
#[derive(Clone, Copy)]
pub(super) struct LaunchArguments<'a> {
    pub name: &'a str,
    pub arguments: &'a [u32],
}

/// The possible numbers of rows of a call, largest first.
pub(super) const CALL_ROWS: [u32; 4] = [8, 4, 2, 1];

/// Elements are distributed in vectors of this length.
pub(super) const VECTOR_ELEMENTS: u32 = 16;

/// Whether chunks and locals fit a core's memory, and each chunk fits a descriptor.
pub(super) fn fits(launch: &TiledLaunch, target: &Target) -> bool {
    let have = u64::from(target.compute.bytes - target.compute.reserved);
    let words = launch.streams.iter().map(|stream| u64::from(stream.chunk_words()));
    launch.core_bytes() <= have && words.max().unwrap_or(0) <= target.compute.dma.max_words
}

pub(super) fn whole(name: &str, value: u32) -> Parameter {
    Parameter { name: name.to_owned(), value: ParameterValue::Int(Affine::constant(i64::from(value))) }
}

pub(super) fn float(name: &str, value: f32) -> Parameter {
    Parameter { name: name.to_owned(), value: ParameterValue::Float(value) }
}

pub(super) fn call(entry: &str, operands: &[&str], parameters: Vec<Parameter>) -> Item {
    let operands =
        operands.iter().map(|name| TiledOperand { name: (*name).to_owned(), offset: Affine::default() });
    Item::Call { entry: entry.to_owned(), operands: operands.collect(), parameters }
}

pub(super) fn dim(size: u32, stride: u32) -> Dim {
    Dim { size, stride }
}

/// Returns the largest divisor of `n` up to `max`, at least 1.
pub(super) fn divisor(n: u32, max: u32) -> u32 {
    (1..=max.max(1)).rev().find(|count| n >= *count && n.is_multiple_of(*count)).unwrap_or(1)
}
