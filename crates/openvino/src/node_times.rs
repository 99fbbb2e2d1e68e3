//! The times of a graph's nodes, from those of the layers that OpenVINO ran.
//!
//! A layer that OpenVINO made of several has the name of one of them, so its time is that of the node which that one was
//! written for.

use std::collections::BTreeMap;
use std::time::Duration;

use girih_graph::backend::{NodeTime, Sequence, Watch, step_count};
use girih_graph::{Extent, Graph, Node, Reads, Role, ValueId};

use crate::ffi::LayerTime;
use crate::weights::PlaneLayout;

/// The name for what OpenVINO added between the layers, such as conversions of layouts.
const ADDED: &str = "added";

/// The times of a step's calls.
#[derive(Debug, Default)]
pub(crate) struct RequestNodeTimes {
    of_nodes: BTreeMap<usize, Duration>,
    added: Duration,
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

    #[test]
    fn a_layer_belongs_to_the_node_that_it_was_written_for() {
        let time =
            |name: &str, micros| LayerTime { name: name.to_owned(), time: Duration::from_micros(micros) };
        let mut times = RequestNodeTimes::default();
        let layers = [
            time("n4", 1),
            time("n7_reorder", 2),
            time("n8", 4),
            time("c3", 8),
            time("n1", 16),
            time("x", 32),
        ];
        times.add(&[2, 8, 8], &layers);
        let found: Vec<(usize, u128)> =
            times.of_nodes.iter().map(|(node, time)| (*node, time.as_micros())).collect();
        assert_eq!(found, [(0, 3), (2, 4)]);
        assert_eq!(times.added.as_micros(), 56);
    }
}
