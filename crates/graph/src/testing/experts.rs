//! Compares experts that run by themselves with those of a whole graph.

use std::collections::HashMap;

use girih_tensor::Shape;

use crate::backend::{ExpertsCall, Watch};
use crate::description::AnyBackend;
use crate::host_experts::HostExperts;
use crate::routed_experts::{ExpertsGraph, is_routed};
use crate::runner::Runner;
use crate::testing::case::Case;

/// Keeps values by name.
#[derive(Default)]
struct KeptValues {
    wanted: Vec<String>,
    /// The rows of each value, and their number.
    found: HashMap<String, (usize, Vec<f32>)>,
}

impl Watch for KeptValues {
    fn wants(&self, name: &str) -> bool {
        self.wanted.iter().any(|wanted| wanted == name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        self.found.insert(name.to_owned(), (shape.extents()[0], data.to_vec()));
    }
}

/// Runs a case in one step on `whole`, which is loaded for it, and its routed experts by themselves on `alone`, on the rows that they
/// read there. Returns the number of nodes whose results are the same to the bit.
///
/// # Errors
/// A sentence when they differ, or a step fails.
pub fn compare_experts(
    whole: &mut dyn Runner,
    alone: Box<dyn AnyBackend>,
    case: &Case,
) -> Result<usize, String> {
    let graph = &case.graph;
    let experts = ExpertsGraph::of(graph)?;
    let mut alone = HostExperts::load(alone, &case.weights, experts).map_err(|error| error.to_string())?;
    let name = |id| graph.value(id).name.clone();
    let routed = || graph.nodes.iter().filter(|node| is_routed(graph, node));
    let operands = |node: &crate::Node| [node.inputs[0], node.inputs[1], node.output].map(name);
    let wanted = routed().flat_map(operands).collect();
    let mut watch = KeptValues { wanted, ..KeptValues::default() };
    case.run_watched(whole, &case.whole(), &mut watch).map_err(|error| error.to_string())?;
    let mut compared = 0;
    for node in routed() {
        let names = operands(node);
        let [x, weights, result] = names.each_ref().map(|name| watch.found.get(name));
        let absent = || format!("a value of '{}' was not watched", names[2]);
        let ((rows, x), (_, weights), (_, result)) =
            (x.ok_or_else(absent)?, weights.ok_or_else(absent)?, result.ok_or_else(absent)?);
        let call = ExpertsCall { name: &names[2], rows: *rows, x, weights };
        let own = alone.run(&call).map_err(|error| error.to_string())?;
        if !own.iter().map(|x| x.to_bits()).eq(result.iter().map(|x| x.to_bits())) {
            return Err(format!("{}: '{}' differs by itself", case.name, names[2]));
        }
        compared += 1;
    }
    Ok(compared)
}
