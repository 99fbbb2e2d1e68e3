//! Searches for the fastest mapping, in timing mode: tilings launch by launch,
//! then groupings and the placement of attention step by step. Also explains
//! why one mapping is faster than another.

mod bound;
mod explain;
mod search;
mod stitch;
mod timing;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::pass::{self, ArrayMapping, AttentionPlacement, Grouping, NoDump, Policy, TileRule};
use girih_tensor::Result;

pub use bound::LaunchBound;
pub use explain::{LaunchComparison, MappedLaunches, MappingComparison, Mechanism, StepComparison, explain};
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
}

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
    let mut policies = Vec::new();
    let places = AttentionPlacement::ALL.iter().filter(|(_, place)| *place != AttentionPlacement::ByCost);
    for (_, attention) in places.rev() {
        policies.extend(
            Grouping::ALL
                .iter()
                .rev()
                .map(|(_, grouping)| Policy { grouping: *grouping, attention: *attention }),
        );
    }
    let weights = against.mapping.weights;
    let mut cuts = Vec::new();
    for graph in graphs {
        let cut = |policy: &Policy| {
            let mapping = ArrayMapping { weights, ..ArrayMapping::from(*policy) };
            pass::groups(graph, target, &mapping, &mut NoDump)
        };
        cuts.push(policies.iter().map(cut).collect::<Result<Vec<_>>>()?);
    }
    let kernels = search::search(&search::kernel_uses(&cuts), target, threads, progress)?;
    let tiles: Vec<TileRule> = kernels.iter().map(|one| TileRule::of(&one.of.kernel, one.tiling)).collect();
    let mut timed = Vec::new();
    for policy in policies {
        let mapping = ArrayMapping { name: "swept".to_owned(), policy, weights, tiles: tiles.clone() };
        timed.push(time_mapping(graphs, target, &mapping)?);
    }
    let relative = |one: &TimedMapping| -> f64 {
        let total = |step: &MappedStep| step.seconds(target).iter().sum::<f64>();
        one.steps.iter().zip(&against.steps).map(|(step, base)| total(step) / total(base)).sum()
    };
    let best = timed.iter().min_by(|a, b| relative(a).total_cmp(&relative(b)));
    let mapping = best.map(|best| best.mapping.clone()).unwrap_or_else(|| against.mapping.clone());
    Ok(SweepResult { mapping, kernels, policies: timed })
}
