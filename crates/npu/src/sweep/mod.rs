//! The search for a mapping: tilings launch by launch, then groupings and the
//! place of attention step by step, all in timing mode; and why the best is
//! better than another. It knows graphs, passes and the simulator, and changes
//! no figure of time.

mod bound;
mod explain;
mod search;
mod stitch;

use girih_graph::Graph;
use girih_tensor::Result;

use crate::Target;
use crate::driver::{Compiled, Compiler, Estimate, estimate};
use crate::pass::{self, ArrayMapping, AttentionPlacement, Grouping, NoDump, Policy, TileRule};

pub use bound::Bound;
pub use explain::{Comparison, LaunchPart, LaunchRow, Mechanism, explain};
pub use search::{Searched, Use};
pub use stitch::{GroupingRow, LayoutRow, Stitching, stitching};

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The best mapping.
    pub mapping: ArrayMapping,
    /// Its kernels.
    pub kernels: Vec<Searched>,
    /// Every grouping and place of attention with the best tilings.
    pub policies: Vec<Weighed>,
}

/// A mapping and how long its steps take.
#[derive(Clone, Debug)]
pub struct Weighed {
    /// The mapping.
    pub mapping: ArrayMapping,
    /// Each graph's step.
    pub steps: Vec<Timed>,
}

/// A step of a mapping.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Its programs.
    pub compiled: Compiled,
    /// How long it takes.
    pub estimate: Estimate,
}

impl Timed {
    /// Seconds of the array, of the host's work, and of passing bytes between
    /// them: syncs, copies and command lists.
    pub fn seconds(&self, target: &Target) -> [f64; 3] {
        let ledger = &self.estimate.ledger;
        let passing = ledger.sync_seconds(target) + ledger.copy_seconds(target);
        [ledger.array_seconds(target), ledger.host_seconds(target), passing]
    }
}

/// Times one step of each graph by a mapping; the step ends at the last
/// position of its context.
///
/// # Errors
/// When a program does not fit the target.
pub fn weigh(graphs: &[Graph], target: &Target, mapping: &ArrayMapping) -> Result<Weighed> {
    let compiler = Compiler::new(target.clone(), mapping.clone(), None);
    let mut steps = Vec::new();
    for graph in graphs {
        let compiled = compiler.compile(graph, &mut NoDump)?;
        let estimate = estimate(graph, &compiled, target, tokens_before(graph))?;
        steps.push(Timed { compiled, estimate });
    }
    Ok(Weighed { mapping: mapping.clone(), steps })
}

/// Tokens before the last step that a graph's context has room for.
fn tokens_before(graph: &Graph) -> u32 {
    graph.key.context.saturating_sub(graph.key.rows)
}

/// Searches for the mapping with which the steps of `graphs` take the least
/// time, each as a share of what it takes with `against`. The result is the
/// same for any number of threads.
///
/// # Errors
/// When a graph cannot be cut or a kernel fits with no tiling.
pub fn sweep(
    graphs: &[Graph],
    target: &Target,
    against: &Weighed,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Found> {
    let mut policies = Vec::new();
    for (_, attention) in AttentionPlacement::ALL.iter().rev() {
        policies.extend(
            Grouping::ALL
                .iter()
                .rev()
                .map(|(_, grouping)| Policy { grouping: *grouping, attention: *attention }),
        );
    }
    let mut cuts = Vec::new();
    for graph in graphs {
        let cut = |policy: &Policy| pass::groups(graph, target, &ArrayMapping::from(*policy), &mut NoDump);
        cuts.push(policies.iter().map(cut).collect::<Result<Vec<_>>>()?);
    }
    let kernels = search::search(&search::uses(&cuts), target, threads, progress)?;
    let tiles: Vec<TileRule> = kernels.iter().map(|one| TileRule::of(&one.of.kernel, one.tiling)).collect();
    let mut weighed = Vec::new();
    for policy in policies {
        let mapping = ArrayMapping { name: "swept".to_owned(), policy, tiles: tiles.clone() };
        weighed.push(weigh(graphs, target, &mapping)?);
    }
    let share = |one: &Weighed| -> f64 {
        let of = |step: &Timed| step.seconds(target).iter().sum::<f64>();
        one.steps.iter().zip(&against.steps).map(|(step, base)| of(step) / of(base)).sum()
    };
    let best = weighed.iter().min_by(|a, b| share(a).total_cmp(&share(b)));
    let mapping = best.map(|best| best.mapping.clone()).unwrap_or_else(|| against.mapping.clone());
    Ok(Found { mapping, kernels, policies: weighed })
}
