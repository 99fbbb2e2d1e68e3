//! The times of a graph's nodes, from those of the layers that OpenVINO ran.
//!
//! A layer that OpenVINO made of several has the name of one of them, so its time is that of the node which that one was
//! written for.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use girih_graph::backend::{NodeTime, Sequence, Watch, step_count};
use girih_graph::{Extent, Graph, Node, Reads, Role, ValueId};
use girih_tensor::Result;

use crate::ffi::{InferRequest, LayerTime};
use crate::weights::PlaneLayout;

/// The name for what OpenVINO added between the layers, such as conversions of layouts.
const ADDED: &str = "added";

/// The times of a step's calls.
#[derive(Debug, Default)]
pub(crate) struct RequestNodeTimes {
    of_nodes: BTreeMap<usize, Duration>,
    added: Duration,
}

/// The times of a model's layers since they were asked for last.
#[derive(Debug)]
pub(crate) struct LayerClock {
    /// Whether the device tells the means of all runs.
    tells_means: bool,
    /// The sums of all runs.
    sums: HashMap<String, Duration>,
}

impl LayerClock {
    /// The clock of a model that has not run.
    pub fn new(tells_means: bool) -> LayerClock {
        LayerClock { tells_means, sums: HashMap::new() }
    }

    /// The times since the last call.
    ///
    /// # Errors
    /// When the device has no times.
    pub fn since(&mut self, request: &InferRequest) -> Result<Vec<LayerTime>> {
        Ok(self.lacking(request.times()?, request.runs()))
    }

    /// What the sums of `runs` runs lack. Means are cut to microseconds, so the sum of a layer may be off by as many as there
    /// were runs, whatever the number of calls.
    fn lacking(&mut self, mut times: Vec<LayerTime>, runs: u64) -> Vec<LayerTime> {
        if self.tells_means {
            for LayerTime { name, time } in &mut times {
                let sum = time.saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX));
                let before = self.sums.insert(name.clone(), sum).unwrap_or_default();
                *time = sum.saturating_sub(before);
            }
        }
        times
    }
}

/// The number of a layer in the name that OpenVINO gives it: `n12`, or `n12` with something behind.
fn layer_number(name: &str) -> Option<u32> {
    let digits: String = name.strip_prefix('n')?.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

impl RequestNodeTimes {
    /// Adds the times of a call's layers. `first_layers` has the number of the first layer of each node.
    pub fn add(&mut self, first_layers: &[u32], times: &[LayerTime]) {
        for LayerTime { name, time } in times {
            let node = layer_number(name)
                .and_then(|layer| first_layers.partition_point(|first| *first <= layer).checked_sub(1));
            match node {
                Some(node) => *self.of_nodes.entry(node).or_default() += *time,
                None => self.added += *time,
            }
        }
    }

    /// Reports the nodes that took time, in the graph's order, and what was added.
    pub fn report(
        &self,
        graph: &Graph,
        layout: &PlaneLayout,
        sequences: &[Sequence<'_>],
        watch: &mut dyn Watch,
    ) {
        let all_rows = step_count(sequences, Extent::Rows);
        for (index, time) in &self.of_nodes {
            let node: &Node = &graph.nodes[*index];
            let value = graph.value(node.output);
            let work = graph.work(node, sequences);
            let operands = node.inputs.iter().zip(work.reads);
            let rows = match value.outermost {
                Extent::Context | Extent::Fixed => all_rows,
                extent => step_count(sequences, extent),
            };
            watch.took(&NodeTime {
                name: &value.name,
                op: node.op.name(),
                variant: &[],
                rows,
                bytes: operands.map(|(id, reads)| read_bytes(graph, layout, *id, reads)).sum(),
                operations: 2 * work.multiply_adds,
                time: *time,
            });
        }
        if self.added > Duration::ZERO {
            let (rows, time) = (all_rows, self.added);
            watch.took(&NodeTime {
                name: ADDED,
                op: ADDED,
                variant: &[],
                rows,
                bytes: 0,
                operations: 0,
                time,
            });
        }
    }
}

/// Bytes of a weight or of windows that a node reads.
fn read_bytes(graph: &Graph, layout: &PlaneLayout, id: ValueId, reads: Reads) -> u64 {
    let value = graph.value(id);
    let weight = || layout.find(&value.name).map_or(0, |stored| stored.bytes() as u64);
    match (value.role, reads) {
        (Role::Weight, Reads::All) => weight(),
        (Role::Weight, Reads::Rows(rows)) => weight() / value.shape.rows().max(1) as u64 * rows,
        (Role::State(_), Reads::Positions(positions)) => positions.distinct * value.row_len() as u64 * 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer_time(name: &str, micros: u64) -> LayerTime {
        LayerTime { name: name.to_owned(), time: Duration::from_micros(micros) }
    }

    #[test]
    fn the_time_of_a_step_is_what_the_means_of_all_steps_gain() {
        let told = [100, 51, 34];
        let own = |tells_means| {
            let mut clock = LayerClock::new(tells_means);
            let own = told
                .into_iter()
                .zip(1..)
                .map(|(mean, runs)| clock.lacking(vec![layer_time("n1", mean)], runs)[0].time.as_micros());
            own.collect::<Vec<u128>>()
        };
        assert_eq!(own(true), [100, 2, 0]);
        assert_eq!(own(false), [100, 51, 34]);
    }

    #[test]
    fn a_layer_belongs_to_the_node_that_it_was_written_for() {
        let mut times = RequestNodeTimes::default();
        let layers = [
            layer_time("n4", 1),
            layer_time("n7_reorder", 2),
            layer_time("n8", 4),
            layer_time("c3", 8),
            layer_time("n1", 16),
            layer_time("x", 32),
        ];
        times.add(&[2, 8, 8], &layers);
        let found: Vec<(usize, u128)> =
            times.of_nodes.iter().map(|(node, time)| (*node, time.as_micros())).collect();
        assert_eq!(found, [(0, 3), (2, 4)]);
        assert_eq!(times.added.as_micros(), 56);
    }
}
