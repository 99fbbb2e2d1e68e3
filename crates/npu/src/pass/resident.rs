//! Where resident launches lie: each kind of kernel has its own cores, so that the launches of a
//! token stay configured side by side. Matrix-vector products have the lower rows of cores and the
//! first channel of each shim. Kernels on a single row have one core each above them, and the
//! second channels. Attention has the top row of cores. It needs both channels of each shim, so
//! their circuits are written again before and after it.

use std::collections::BTreeSet;

use crate::form::groups::Kernel;
use crate::form::schedule::check::streams::overloaded;
use crate::form::schedule::{Channel, Launch, Route, Tile};
use crate::form::tiled::{Flow, Herd, TiledLaunch};
use crate::target::Target;

/// Returns the cores of matrix-vector products.
pub(super) fn product_herd(target: &Target) -> Herd {
    Herd { columns: target.array.columns as u8, rows: (target.array.compute_rows / 2).max(1) as u8 }
}

/// Returns a launch that stays configured. An operand that a core receives only once is sent ahead of
/// the first one, over the same channel.
pub(super) fn keep(launch: TiledLaunch, kernel: &Kernel, target: &Target) -> TiledLaunch {
    let home = if launch.flat { top_left(target) } else { home(kernel, target) };
    let mut launch = TiledLaunch { resident: Some(home), ..launch };
    let alone = launch.herd == Herd { columns: 1, rows: 1 };
    let [first, others @ ..] = &mut launch.streams[..] else { return launch };
    let once =
        others.iter_mut().filter(|other| other.flow == Flow::In && other.level == 0 && other.depth == 1);
    once.filter(|_| alone && first.level > 0).for_each(|other| other.ahead_of = Some(first.name.clone()));
    launch
}

/// Returns the lower left core of a kernel's launches. Each operand of a kernel on a single row
/// takes the shim of another column, so kernels with two operands are two columns apart from the next.
fn home(kernel: &Kernel, target: &Target) -> Tile {
    let column = match kernel {
        Kernel::Gemv { .. } | Kernel::Gemm { .. } | Kernel::Dequant { .. } | Kernel::Attend(_) => {
            return lower_left(target);
        }
        Kernel::RmsNorm { rows: 1, .. } | Kernel::LayerNorm { rows: 1, .. } => 1,
        Kernel::Rope { .. } => 2,
        Kernel::Add { .. } => 3,
        Kernel::Gate { .. } | Kernel::Gelu { .. } => 5,
        Kernel::Bias { .. } => 4,
        Kernel::Append { .. } => 6,
        Kernel::RmsNorm { .. } | Kernel::LayerNorm { .. } => 7,
    };
    let above = u32::from(product_herd(target).rows).min(target.array.compute_rows - 1) as u8;
    Tile::new((column % target.array.columns) as u8, lower_left(target).row + above)
}

/// Returns the left core of the top row, which attention has.
fn top_left(target: &Target) -> Tile {
    Tile::new(0, lower_left(target).row + (target.array.compute_rows - 1) as u8)
}

/// Returns the lower left core of the array.
pub(super) fn lower_left(target: &Target) -> Tile {
    Tile::new(0, 1 + target.array.memory_rows as u8)
}

/// Returns a switch that would carry too many streams with the circuits that resident launches leave, and
/// why. A circuit stays until a launch uses a channel of its ends. It is written with its launch, or
/// before earlier launches that do not use its ends.
pub(super) fn overloaded_switch(launches: &[Launch], target: &Target) -> Option<(Tile, String)> {
    let resident: Vec<&Launch> = launches.iter().filter(|launch| launch.resident).collect();
    overloaded_with(&resident, 1, target).or_else(|| overloaded_with(&resident, resident.len(), target))
}

/// As [`overloaded_switch`], where each launch writes the circuits of `count` launches from itself on.
fn overloaded_with(launches: &[&Launch], count: usize, target: &Target) -> Option<(Tile, String)> {
    let ends = |route: &Route| -> Vec<Channel> {
        std::iter::once(route.from).chain(route.to.iter().map(|hop| hop.channel)).collect()
    };
    let mut held: Vec<&Route> = Vec::new();
    // The second round sees what the first one has left.
    for first in (0..launches.len()).chain(0..launches.len()) {
        let mut taken: BTreeSet<Channel> = BTreeSet::new();
        let mut written: Vec<&Route> = Vec::new();
        for launch in launches[first..].iter().take(count) {
            let unused = |route: &&Route| ends(route).iter().all(|end| !taken.contains(end));
            written.extend(launch.routes.iter().filter(unused));
            taken.extend(launch.routes.iter().flat_map(ends));
        }
        let replaced: BTreeSet<Channel> = written.iter().flat_map(|route| ends(route)).collect();
        held.retain(|route| ends(route).iter().all(|end| !replaced.contains(end)));
        held.extend(written);
        if let Some(over) = overloaded(held.iter().copied(), target).into_iter().next() {
            return Some(over);
        }
    }
    None
}
