//! Times the steps of a model with a mapping.

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::{CompiledGraph, Compiler, Estimate, estimate};
use girih_npu::pass::{ArrayMapping, NoDump};
use girih_tensor::Result;

/// A mapping and the times of its steps.
#[derive(Clone, Debug)]
pub struct TimedMapping {
    /// The mapping.
    pub mapping: ArrayMapping,
    /// The step of each graph.
    pub steps: Vec<MappedStep>,
}

/// A step compiled with a mapping, and its time.
#[derive(Clone, Debug)]
pub struct MappedStep {
    /// Its programs.
    pub compiled: CompiledGraph,
    /// Its time.
    pub estimate: Estimate,
}

impl MappedStep {
    /// Seconds of the array, of host work, and of transfers between them:
    /// syncs, copies and command lists.
    pub fn seconds(&self, target: &Target) -> [f64; 3] {
        let ledger = &self.estimate.ledger;
        let passing = ledger.sync_seconds(target) + ledger.copy_seconds(target);
        [ledger.array_seconds(target), ledger.host_seconds(target), passing]
    }
}

/// Times one step of each graph with a mapping. The step ends at the last
/// position of its context.
///
/// # Errors
/// When a program does not fit the target.
pub fn time_mapping(graphs: &[Graph], target: &Target, mapping: &ArrayMapping) -> Result<TimedMapping> {
    let compiler = Compiler::new(target.clone(), mapping.clone(), None);
    let mut steps = Vec::new();
    for graph in graphs {
        let compiled = compiler.compile(graph, &mut NoDump)?;
        let estimate = estimate(graph, &compiled, target, tokens_before(graph))?;
        steps.push(MappedStep { compiled, estimate });
    }
    Ok(TimedMapping { mapping: mapping.clone(), steps })
}

/// Tokens before a step that fills a graph's context.
pub(super) fn tokens_before(graph: &Graph) -> u32 {
    graph.key.context.saturating_sub(graph.key.rows)
}
