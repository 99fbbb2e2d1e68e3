//! Pass 2, from a launch to its tilings: the herd, the loop nest, the chunks.
//! The only pass with a choice. A mapping makes it; without one the pass yields
//! guesses, the best first.

mod attend;
mod bias;
mod gemm;
mod gemv;
mod rows;

use girih_graph::Act;

use crate::Target;
use crate::form::groups::{Kernel, Task};
use crate::form::schedule::{Affine, Dim, Number, Parameter};
use crate::form::tiled::{Item, Source, TiledLaunch};
use crate::form::tiling::Tiling;

/// Rows and columns of a block of the matrix kernel's left operand; its right
/// operand and its result have blocks of as many columns.
const BLOCK: (u32, u32) = (4, 8);

/// What a tiled launch takes over from its task.
#[derive(Clone, Copy)]
struct Launch<'a> {
    name: &'a str,
    arguments: &'a [u32],
}

/// The tilings of a launch that fit a core's memory, best first: the one that
/// its mapping gives, or guesses.
pub fn candidates(task: &Task, target: &Target) -> Vec<TiledLaunch> {
    let tilings = task.tiling.map_or_else(|| guesses(&task.kernel, target), |tiling| vec![tiling]);
    tilings.into_iter().filter_map(|tiling| build(task, tiling, target)).collect()
}

/// The tilings that are tried without a mapping, best first.
fn guesses(kernel: &Kernel, target: &Target) -> Vec<Tiling> {
    match *kernel {
        Kernel::Gemm { m, n, k } => gemm::guesses([m, n, k], target).into_iter().map(Tiling::Gemm).collect(),
        Kernel::Gemv { n, .. } => gemv::guesses(n, target).into_iter().map(Tiling::Gemv).collect(),
        Kernel::RmsNorm { rows, .. } | Kernel::Rope { rows, .. } => {
            rows::row_guesses(rows, target).into_iter().map(Tiling::Rows).collect()
        }
        Kernel::Gate { n, .. } | Kernel::Add { n } => {
            rows::element_guesses(n, target).into_iter().map(Tiling::Elements).collect()
        }
        Kernel::Bias { rows, n } => {
            bias::space([rows, n], target).into_iter().map(Tiling::Elements).collect()
        }
        Kernel::Attend { .. } => attend::space(kernel, target).into_iter().map(Tiling::Attend).collect(),
    }
}

/// Every tiling that a search may try.
pub fn space(kernel: &Kernel, target: &Target) -> Vec<Tiling> {
    match *kernel {
        Kernel::Gemm { m, n, k } => gemm::space([m, n, k], target).into_iter().map(Tiling::Gemm).collect(),
        Kernel::Gemv { n, .. } => gemv::space(n, target).into_iter().map(Tiling::Gemv).collect(),
        Kernel::RmsNorm { .. } | Kernel::Rope { .. } => {
            rows::row_space(kernel, target).into_iter().map(Tiling::Rows).collect()
        }
        Kernel::Gate { n, .. } | Kernel::Add { n } => {
            rows::element_space(n, target).into_iter().map(Tiling::Elements).collect()
        }
        Kernel::Bias { rows, n } => {
            bias::space([rows, n], target).into_iter().map(Tiling::Elements).collect()
        }
        Kernel::Attend { .. } => attend::space(kernel, target).into_iter().map(Tiling::Attend).collect(),
    }
}

/// The launch with this tiling; none if the tiling does not divide it, is of
/// another kernel, or does not fit a core's memory.
pub fn build(task: &Task, tiling: Tiling, target: &Target) -> Option<TiledLaunch> {
    let launch = Launch { name: &task.name, arguments: &task.arguments };
    let built = match (task.kernel, tiling) {
        (Kernel::Gemm { m, n, k }, Tiling::Gemm(tile)) => gemm::build(launch, [m, n, k], tile, target),
        (Kernel::Gemv { first, n, k }, Tiling::Gemv(tile)) => {
            gemv::build(launch, first, [n, k], tile, target)
        }
        (Kernel::RmsNorm { .. } | Kernel::Rope { .. }, Tiling::Rows(tile)) => {
            rows::build_rows(launch, &task.kernel, tile, target)
        }
        (Kernel::Gate { n, act }, Tiling::Elements(tile)) => {
            let entry = match act {
                Act::Silu => "silu_mul",
                Act::GeluTanh => "gelu_mul",
            };
            rows::build_elements(launch, entry, n, tile, target)
        }
        (Kernel::Add { n }, Tiling::Elements(tile)) => rows::build_elements(launch, "add", n, tile, target),
        (Kernel::Bias { rows, n }, Tiling::Elements(tile)) => bias::build(launch, [rows, n], tile, target),
        (Kernel::Attend { .. }, Tiling::Attend(tile)) => attend::build(launch, &task.kernel, tile, target),
        _ => None,
    };
    built.filter(|launch| fits(launch, target))
}

/// Whether chunks and locals fit a core, and each chunk one descriptor.
fn fits(launch: &TiledLaunch, target: &Target) -> bool {
    let have = u64::from(target.compute.bytes - target.compute.reserved);
    let words = launch.streams.iter().map(|stream| u64::from(stream.chunk_words()));
    launch.core_bytes() <= have && words.max().unwrap_or(0) <= target.compute.dma.max_words
}

fn whole(name: &str, value: u32) -> Parameter {
    Parameter { name: name.to_owned(), value: Number::Int(Affine::constant(i64::from(value))) }
}

fn float(name: &str, value: f32) -> Parameter {
    Parameter { name: name.to_owned(), value: Number::Float(value) }
}

fn call(entry: &str, operands: &[&str], parameters: Vec<Parameter>) -> Item {
    let operands = operands.iter().map(|name| Source { name: (*name).to_owned(), offset: Affine::default() });
    Item::Call { entry: entry.to_owned(), operands: operands.collect(), parameters }
}

fn dim(size: u32, stride: u32) -> Dim {
    Dim { size, stride }
}

/// The largest number up to `most` that divides `n`; at least 1.
fn divisor(n: u32, most: u32) -> u32 {
    (1..=most.max(1)).rev().find(|count| n >= *count && n.is_multiple_of(*count)).unwrap_or(1)
}
