//! Searches for the fastest mapping, in timing mode: tilings launch by launch,
//! then groupings and the placement of attention step by step. Also explains
//! why one mapping is faster than another.

mod bound;
mod explain;
mod fair;
mod mechanism;
mod search;
mod stitch;
mod timing;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::form::groups::{AttendSizes, Kernel};
use girih_npu::pass::{self, ArrayMapping, AttentionPlacement, NoDump, Policy, TileRule};
use girih_tensor::Result;

use search::SearchSpace;

pub use bound::LaunchBound;
pub use explain::{LaunchComparison, MappedLaunches, MappingComparison, StepComparison, explain};
pub use fair::published_tiles;
pub use mechanism::Mechanism;
pub use search::{BestTiling, KernelUse};
pub use stitch::{GroupingRow, LayoutRow, Stitching, stitching};
pub use timing::{MappedStep, TimedMapping, time_mapping};

/// The result of a search.
#[derive(Clone, Debug)]
pub struct SweepResult {
    /// The best mapping.
    pub mapping: ArrayMapping,
    /// The best tiling of each kernel.
    pub kernels: Vec<BestTiling>,
    /// Each grouping with each placement of attention, all with the best tilings.
    pub policies: Vec<TimedMapping>,
    /// The best mapping without the mechanisms that no published row exercises.
    pub published: TimedMapping,
}

/// The name of mappings that the search finds.
const SWEPT: &str = "swept";

/// The name of the best mapping without unpublished mechanisms.
const SWEPT_PUBLISHED: &str = "swept-published";

/// Searches for the mapping with the shortest time over the steps of `graphs`.
/// The time of each step counts relative to its time with `against`. The result
/// does not depend on the number of threads.
///
/// # Errors
/// When a graph cannot be partitioned or a kernel has no tiling that fits.
pub fn sweep(
    graphs: &[Graph],
    target: &Target,
    against: &TimedMapping,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<SweepResult> {
    let policies = policies();
    let weights = against.mapping.weights;
    let mut cuts = Vec::new();
    for graph in graphs {
        let cut = |policy: &Policy| {
            let mapping = ArrayMapping { weights, ..ArrayMapping::from(*policy) };
            pass::groups(graph, target, &mapping, &mut NoDump)
        };
        cuts.push(policies.iter().map(cut).collect::<Result<Vec<_>>>()?);
    }
    let uses = search::kernel_uses(&cuts);
    let kernels = search::search(&uses, SearchSpace::All, target, threads, progress)?;
    let base = |name: &str| ArrayMapping { name: name.to_owned(), ..against.mapping.clone() };
    let timed = time_policies(graphs, target, &base(SWEPT), &kernels, &policies)?;
    let best = fastest(&timed, against, target).unwrap_or(against);
    let mapping = best.mapping.clone();
    let kept = published_tilings(&kernels, target, threads)?;
    let with_rows: Vec<Policy> =
        policies.into_iter().filter(|policy| policy.attention != AttentionPlacement::Array).collect();
    let published = time_policies(graphs, target, &base(SWEPT_PUBLISHED), &kept, &with_rows)?;
    let published = fastest(&published, against, target).unwrap_or(against).clone();
    Ok(SweepResult { mapping, kernels, policies: timed, published })
}

/// Each grouping with each placement of attention.
fn policies() -> Vec<Policy> {
    let known = AttentionPlacement::ALL.iter().rev();
    let placed = known.filter(|(_, attention)| *attention != AttentionPlacement::ByCost);
    let grouped = |attention: AttentionPlacement| {
        stitch::searched_groupings().rev().map(move |grouping| Policy { grouping, attention })
    };
    placed.flat_map(|(_, attention)| grouped(*attention)).collect()
}

/// The best tilings whose mechanisms published rows exercise: those of `kernels`, or of a second
/// search where they use others.
fn published_tilings(kernels: &[BestTiling], target: &Target, threads: usize) -> Result<Vec<BestTiling>> {
    let space = SearchSpace::Published;
    let (kept, others): (Vec<&BestTiling>, Vec<&BestTiling>) =
        kernels.iter().partition(|one| space.contains(&one.of.kernel, &one.tiling));
    // No tiling of a single row of attention has a published row; its placement is left out instead.
    let single = |one: &&BestTiling| matches!(one.of.kernel, Kernel::Attend(AttendSizes { rows: 1, .. }));
    let uses: Vec<KernelUse> =
        others.into_iter().filter(|one| !single(one)).map(|one| one.of.clone()).collect();
    let found = search::search(&uses, space, target, threads, &|_, _| ())?;
    Ok(kept.into_iter().cloned().chain(found).collect())
}

/// Times the steps with each policy and these tilings, otherwise with `base`.
fn time_policies(
    graphs: &[Graph],
    target: &Target,
    base: &ArrayMapping,
    kernels: &[BestTiling],
    policies: &[Policy],
) -> Result<Vec<TimedMapping>> {
    let tiles: Vec<TileRule> = kernels.iter().map(|one| TileRule::of(&one.of.kernel, one.tiling)).collect();
    let time = |policy: &Policy| {
        let mapping = ArrayMapping { policy: *policy, tiles: tiles.clone(), ..base.clone() };
        time_mapping(graphs, target, &mapping)
    };
    policies.iter().map(time).collect()
}

/// The mapping with the shortest time, each step relative to its time with `against`.
fn fastest<'a>(
    timed: &'a [TimedMapping],
    against: &TimedMapping,
    target: &Target,
) -> Option<&'a TimedMapping> {
    let relative = |one: &TimedMapping| -> f64 {
        let total = |step: &MappedStep| step.seconds(target).iter().sum::<f64>();
        one.steps.iter().zip(&against.steps).map(|(step, base)| total(step) / total(base)).sum()
    };
    timed.iter().min_by(|a, b| relative(a).total_cmp(&relative(b)))
}
