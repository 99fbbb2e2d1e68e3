//! Pass 2, tiling: the herd, the loop nest and the chunks of a launch. It is the
//! only pass that has to choose. A mapping determines the choice; without one,
//! the pass returns guesses, best first.

mod append;
mod attend;
mod bias;
mod dequant;
mod gemm;
mod gemm_q4nx;
mod gemv;
mod nest;
mod packed;
mod rows;

use super::resident;
use crate::form::groups::{GateAct, Kernel, KernelLaunch};
use crate::form::tiled::{Herd, TiledLaunch};
use crate::form::tiling::{ElementTiling, RowTiling, Tiling};
use crate::form::weights::WeightLayout;
use crate::target::Target;
pub(crate) use attend::block_granule;
pub(super) use gemv::side as gemv_side;
use nest::{LaunchArguments, fits};

/// Returns the tilings of a launch that fit a core's memory, best first: that of
/// its mapping, or guesses.
pub fn candidates(task: &KernelLaunch, target: &Target) -> Vec<TiledLaunch> {
    let guesses =
        || if task.resident { resident_guesses(&task.kernel, target) } else { guesses(&task.kernel, target) };
    let tilings = task.tiling.map_or_else(guesses, |tiling| vec![tiling]);
    tilings.into_iter().filter_map(|tiling| build(task, tiling, target)).collect()
}

/// Returns the tilings that are tried without a mapping, best first. Where the kernel has no own
/// guesses, these are all tilings.
fn guesses(kernel: &Kernel, target: &Target) -> Vec<Tiling> {
    match *kernel {
        Kernel::Gemm { m, n, k, weights: weights @ (WeightLayout::Rows | WeightLayout::Groups) } => {
            gemm::guesses([m, n, k], weights, target).into_iter().map(Tiling::Gemm).collect()
        }
        Kernel::Gemv { n, k, weights, .. } => {
            let tiles = match weights {
                WeightLayout::Q4nx => packed::guesses([n, k], target),
                WeightLayout::Rows | WeightLayout::Groups => gemv::guesses([n, k], target),
            };
            tiles.into_iter().map(Tiling::Gemv).collect()
        }
        Kernel::RmsNorm { rows, .. } | Kernel::LayerNorm { rows, .. } | Kernel::Rope { rows, .. } => {
            rows::row_guesses(rows, target).into_iter().map(Tiling::Rows).collect()
        }
        Kernel::Gate { n, .. } | Kernel::Gelu { n } | Kernel::Add { n } => {
            rows::element_guesses(n, target).into_iter().map(Tiling::Elements).collect()
        }
        _ => space(kernel, target),
    }
}

/// The maximum rows or heads of a call of a resident launch. Queries and keys have the same chunks with it,
/// so the core that norms or rotates both keeps its configuration.
const RESIDENT_STEP: u32 = 2;

/// Returns the tilings of a resident launch, best first: one core for a kernel on a single row.
fn resident_guesses(kernel: &Kernel, target: &Target) -> Vec<Tiling> {
    let one = Herd { columns: 1, rows: 1 };
    let alone = |tiling: &Tiling| match tiling {
        Tiling::Rows(RowTiling { herd, step }) => *herd == one && *step <= RESIDENT_STEP,
        Tiling::Elements(ElementTiling { herd, .. }) => *herd == one,
        _ => true,
    };
    match *kernel {
        Kernel::Gemv { n, k, weights: WeightLayout::Q4nx, .. } => {
            packed::resident([n, k], target).into_iter().map(Tiling::Gemv).collect()
        }
        Kernel::Gemv { .. } => guesses(kernel, target),
        _ => space(kernel, target).into_iter().filter(alone).collect(),
    }
}

/// Returns every tiling that a search may try.
pub fn space(kernel: &Kernel, target: &Target) -> Vec<Tiling> {
    match *kernel {
        Kernel::Gemm { m, n, k, weights } => {
            let tiles = match weights {
                WeightLayout::Q4nx => gemm_q4nx::space([m, n, k], target),
                WeightLayout::Rows | WeightLayout::Groups => gemm::space([m, n, k], weights, target),
            };
            tiles.into_iter().map(Tiling::Gemm).collect()
        }
        Kernel::Gemv { n, k, weights, .. } => {
            let tiles = match weights {
                WeightLayout::Q4nx => packed::space([n, k], target),
                WeightLayout::Rows | WeightLayout::Groups => gemv::space([n, k], target),
            };
            tiles.into_iter().map(Tiling::Gemv).collect()
        }
        Kernel::Dequant { n, k } => {
            dequant::space([n, k], target).into_iter().map(Tiling::Elements).collect()
        }
        Kernel::RmsNorm { .. } | Kernel::LayerNorm { .. } | Kernel::Rope { .. } => {
            rows::row_space(kernel, target).into_iter().map(Tiling::Rows).collect()
        }
        Kernel::Gate { n, .. } | Kernel::Gelu { n } | Kernel::Add { n } => {
            rows::element_space(n, target).into_iter().map(Tiling::Elements).collect()
        }
        Kernel::Bias { rows, n } => {
            bias::space([rows, n], target).into_iter().map(Tiling::Elements).collect()
        }
        Kernel::Append { size, .. } => vec![Tiling::Elements(append::tiling(size))],
        Kernel::Attend(sizes) => attend::space(sizes, target).into_iter().map(Tiling::Attend).collect(),
    }
}

/// Returns the launch with a tiling; none if the tiling does not divide the launch,
/// is of another kernel, or does not fit a core's memory.
pub fn build(task: &KernelLaunch, tiling: Tiling, target: &Target) -> Option<TiledLaunch> {
    let launch = LaunchArguments { name: &task.name, arguments: &task.arguments };
    let built = match (task.kernel, tiling) {
        (Kernel::Gemm { m, n, k, weights: WeightLayout::Q4nx }, Tiling::Gemm(tile)) => {
            gemm_q4nx::build(launch, [m, n, k], tile, target)
        }
        (Kernel::Gemm { m, n, k, weights }, Tiling::Gemm(tile)) => {
            gemm::build(launch, [m, n, k], weights, tile, target)
        }
        (Kernel::Gemv { first, n, k, weights: WeightLayout::Q4nx }, Tiling::Gemv(tile)) => {
            packed::build(launch, first, [n, k], tile, target)
        }
        (Kernel::Gemv { first, n, k, .. }, Tiling::Gemv(tile)) => {
            gemv::build(launch, first, [n, k], tile, target)
        }
        (Kernel::Dequant { n, k }, Tiling::Elements(tile)) => dequant::build(launch, [n, k], tile, target),
        (Kernel::RmsNorm { .. } | Kernel::LayerNorm { .. } | Kernel::Rope { .. }, Tiling::Rows(tile)) => {
            rows::build_rows(launch, &task.kernel, tile, target)
        }
        (Kernel::Gelu { n }, Tiling::Elements(tile)) => {
            rows::build_elements(launch, "gelu", &["x", "y"], n, tile, target)
        }
        (Kernel::Gate { n, act }, Tiling::Elements(tile)) => {
            let entry = match act {
                GateAct::Silu => "silu_mul",
                GateAct::GeluTanh => "gelu_mul",
            };
            rows::build_elements(launch, entry, &["a", "b", "y"], n, tile, target)
        }
        (Kernel::Add { n }, Tiling::Elements(tile)) => {
            rows::build_elements(launch, "add", &["a", "b", "y"], n, tile, target)
        }
        (Kernel::Bias { rows, n }, Tiling::Elements(tile)) => bias::build(launch, [rows, n], tile, target),
        (Kernel::Append { heads, size, half }, Tiling::Elements(tile)) => {
            append::build(launch, [heads, size], half, tile)
        }
        (Kernel::Attend(sizes), Tiling::Attend(tile)) => attend::build(launch, sizes, tile, target),
        _ => None,
    };
    let built = built.filter(|launch| fits(launch, target))?;
    Some(if task.resident { resident::keep(built, &task.kernel, target) } else { built })
}
