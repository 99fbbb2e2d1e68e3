//! A graph divided between a device and the host: which nodes run where, and what crosses from
//! one to the other.

use std::fmt;
use std::ops::Range;

use crate::backend::HostWork;
use crate::graph::Graph;
use crate::value::{Role, ValueId};

/// Where a node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// On the device.
    Device,
    /// On the host, for this reason.
    Host(String),
}

/// Consecutive nodes that all run on the device, or all on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whether its nodes run on the host.
    pub is_host: bool,
    /// The indexes of its nodes in the graph.
    pub nodes: Range<usize>,
    /// The inputs of the step and the results of earlier parts that its nodes read, in the
    /// graph's order.
    pub reads: Vec<ValueId>,
    /// The state that its nodes read or write, in the graph's order.
    pub state: Vec<ValueId>,
    /// Its results that later parts read, and the output of the graph if it makes it, in the
    /// graph's order.
    pub yields: Vec<ValueId>,
}

/// A graph and where each of its nodes runs.
#[derive(Clone, Debug)]
pub struct Split {
    graph: Graph,
    /// One for each node.
    sites: Vec<Site>,
    parts: Vec<Part>,
}

/// Divides a graph: `site` is asked once for each node, by its index. A part ends where the
/// next node runs elsewhere.
pub fn split(graph: &Graph, mut site: impl FnMut(&Graph, usize) -> Site) -> Split {
    let sites: Vec<Site> = (0..graph.nodes.len()).map(|index| site(graph, index)).collect();
    let mut first = 0;
    let runs = sites.chunk_by(|site, next| is_host(site) == is_host(next)).map(|run| {
        first += run.len();
        (is_host(&run[0]), first - run.len()..first)
    });
    // The index of the last node that reads each value.
    let mut last_reader = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|id| last_reader[id.0 as usize] = Some(index));
    }
    let parts = runs.map(|(is_host, nodes)| part(graph, is_host, nodes, &last_reader)).collect();
    Split { graph: graph.clone(), sites, parts }
}

fn is_host(site: &Site) -> bool {
    matches!(site, Site::Host(_))
}

/// The part of these nodes.
fn part(graph: &Graph, is_host: bool, nodes: Range<usize>, last_reader: &[Option<usize>]) -> Part {
    let own = &graph.nodes[nodes.clone()];
    let is_state = |id: &ValueId| matches!(graph.value(*id).role, Role::State(_));
    let mut made: Vec<ValueId> = own.iter().map(|node| node.output).collect();
    made.sort_unstable();
    let mut read: Vec<ValueId> = own.iter().flat_map(|node| node.inputs.iter().copied()).collect();
    read.sort_unstable();
    read.dedup();
    let mut state: Vec<ValueId> = read.iter().chain(&made).copied().filter(is_state).collect();
    state.sort_unstable();
    state.dedup();
    let crosses_in = |id: &ValueId| {
        graph.value(*id).role != Role::Weight && !is_state(id) && made.binary_search(id).is_err()
    };
    let reads = read.iter().copied().filter(crosses_in).collect();
    let crosses_out = |id: &ValueId| {
        graph.value(*id).role == Role::Output
            || !is_state(id) && last_reader[id.0 as usize].is_some_and(|reader| reader >= nodes.end)
    };
    let yields = made.iter().copied().filter(crosses_out).collect();
    Part { is_host, nodes, reads, state, yields }
}

impl Split {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The parts, in the order in which they run. Together they have all nodes.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Where a node runs.
    ///
    /// # Panics
    /// When the graph has no such node.
    pub fn site(&self, node: usize) -> &Site {
        &self.sites[node]
    }

    /// The nodes that the host computes, by kind, in the graph's order.
    pub fn host_work(&self) -> Vec<HostWork> {
        let mut all: Vec<HostWork> = Vec::new();
        for (node, site) in self.graph.nodes.iter().zip(&self.sites) {
            let Site::Host(reason) = site else { continue };
            let (name, op) = (name_in_layer(&self.graph.value(node.output).name), node.op.name());
            let alike =
                |known: &&mut HostWork| known.name == name && known.op == op && known.reason == *reason;
            match all.iter_mut().find(alike) {
                Some(known) => known.count += 1,
                None => all.push(HostWork { name: name.to_owned(), op, count: 1, reason: reason.clone() }),
            }
        }
        all
    }

    /// The reasons of a part's nodes, each once; empty for a part of the device.
    fn reasons(&self, part: &Part) -> Vec<&str> {
        let mut reasons = Vec::new();
        for site in &self.sites[part.nodes.clone()] {
            if let Site::Host(reason) = site
                && !reasons.contains(&reason.as_str())
            {
                reasons.push(reason.as_str());
            }
        }
        reasons
    }

    /// The bytes of these values at the graph's key, and their names.
    fn sizes(&self, ids: &[ValueId]) -> String {
        let values = || ids.iter().map(|id| self.graph.value(*id));
        let bytes = values().map(|value| value.dtype.bytes(&value.shape).unwrap_or(usize::MAX));
        let names: Vec<&str> = values().map(|value| value.name.as_str()).collect();
        format!("{} bytes ({})", bytes.fold(0, usize::saturating_add), names.join(", "))
    }
}

/// One line for each part: where it runs, its first and its last node, what crosses into it and
/// out of it, its state, and why it runs on the host.
impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            let name = |index: usize| &self.graph.value(self.graph.nodes[index].output).name;
            let site = if part.is_host { "host" } else { "device" };
            let (first, last) = (name(part.nodes.start), name(part.nodes.end - 1));
            write!(f, "{site} {first} .. {last}: in {}", self.sizes(&part.reads))?;
            write!(f, ", out {}", self.sizes(&part.yields))?;
            if !part.state.is_empty() {
                let names = part.state.iter().map(|id| self.graph.value(*id).name.as_str());
                write!(f, ", state {}", names.collect::<Vec<_>>().join(", "))?;
            }
            let reasons = self.reasons(part);
            writeln!(f, "{}{}", if reasons.is_empty() { "" } else { ": " }, reasons.join("; "))?;
        }
        Ok(())
    }
}

/// A value's name without its layer: the part after its last number.
pub fn name_in_layer(name: &str) -> &str {
    let mut rest = name;
    let mut found = name;
    while let Some((head, tail)) = rest.split_once('.') {
        if head.bytes().all(|byte| byte.is_ascii_digit()) {
            found = tail;
        }
        rest = tail;
    }
    found
}
