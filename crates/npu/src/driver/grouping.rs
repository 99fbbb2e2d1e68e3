//! Whether the launches of a token stay configured: where that takes less time, by simulation. The
//! choice does not change results.

use std::sync::Arc;

use girih_graph::Graph;
use girih_tensor::Result;

use super::compiled::CompiledGraph;
use super::estimate::time_programs;
use crate::pass::{self, ArrayMapping, Grouping, NoDump, Policy};
use crate::target::Target;

/// Returns the grouping with which a step takes less time on the array. Steps of several rows have no
/// launches that stay configured, and programs that do not fit take forever.
pub(super) fn cheaper(graph: &Graph, target: &Target, mapping: &ArrayMapping) -> Grouping {
    if graph.key.rows > 1 {
        return Grouping::Joined;
    }
    let cycles = |grouping| array_cycles(graph, target, mapping, grouping).unwrap_or(u64::MAX);
    if cycles(Grouping::Resident) < cycles(Grouping::Joined) { Grouping::Resident } else { Grouping::Joined }
}

/// The cycles of a step's programs.
fn array_cycles(graph: &Graph, target: &Target, mapping: &ArrayMapping, grouping: Grouping) -> Result<u64> {
    let policy = Policy { grouping, ..mapping.policy };
    let groups = pass::groups(graph, target, &ArrayMapping { policy, ..mapping.clone() }, &mut NoDump)?;
    let compile = |program| Ok(Arc::new(pass::compile(program, target, &mut NoDump)?));
    let schedules = groups.programs.iter().map(compile).collect::<Result<Vec<_>>>()?;
    let fresh = schedules.len();
    let timed = time_programs(&CompiledGraph { groups, schedules, fresh }, target)?;
    Ok(timed.iter().map(|program| program.runs * program.report.cycles).sum())
}
