//! The memory of scratch values: values whose lifetimes do not overlap share it.

use crate::graph::Graph;
use crate::ops::Op;
use crate::value::{Role, ValueId};

/// The memory of a graph's scratch values, at the extents of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScratchPlan {
    /// One entry per value of the graph; `None` for values that are not
    /// scratch. A reshaped value has the placement of its operand.
    pub placements: Vec<Option<Placement>>,
    /// The bytes of all scratch memory.
    pub bytes: usize,
}

/// A range of scratch memory, in use over a range of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The first byte.
    pub offset: usize,
    /// The number of bytes.
    pub bytes: usize,
    /// The index of the node that writes it.
    pub first: usize,
    /// The index of the last node that reads it.
    pub last: usize,
}

impl ScratchPlan {
    /// The alignment of every placement in bytes: one cache line.
    pub const PLACEMENT_ALIGNMENT: usize = 64;

    /// The plan of a graph without faults.
    ///
    /// Places the largest values first, each at the lowest offset that no
    /// overlapping lifetime uses: the greedy-by-size strategy of Pisarchyk & Lee
    /// 2020 (arXiv 2001.03288), which is within a few percent of the best.
    pub fn of(graph: &Graph) -> ScratchPlan {
        let roots = roots(graph);
        let mut of_roots = lifetimes(graph, &roots);
        let mut order: Vec<usize> = (0..of_roots.len()).filter(|&i| of_roots[i].is_some()).collect();
        order.sort_by_key(|&i| of_roots[i].map(|life| (std::cmp::Reverse(life.bytes), life.first)));
        let mut placed: Vec<Placement> = Vec::new();
        for index in order {
            let life = of_roots[index].as_mut().expect("filtered above");
            life.offset = lowest_offset(life, &placed);
            placed.push(*life);
        }
        let bytes = placed.iter().map(|placed| placed.offset + placed.bytes).max().unwrap_or(0);
        let placements = roots.iter().map(|root| root.and_then(|root| of_roots[root.0 as usize])).collect();
        ScratchPlan { placements, bytes }
    }
}

/// For each scratch value, the value whose memory it shares: its own, or that
/// of what it reshapes.
fn roots(graph: &Graph) -> Vec<Option<ValueId>> {
    let scratch = |id: ValueId| graph.value(id).role == Role::Scratch;
    let mut roots: Vec<_> = graph.ids().map(|(id, _)| scratch(id).then_some(id)).collect();
    for node in &graph.nodes {
        if node.op == Op::Reshape && scratch(node.inputs[0]) && scratch(node.output) {
            roots[node.output.0 as usize] = roots[node.inputs[0].0 as usize];
        }
    }
    roots
}

/// The size and lifetime of each root, with offset 0.
fn lifetimes(graph: &Graph, roots: &[Option<ValueId>]) -> Vec<Option<Placement>> {
    let mut lifetimes: Vec<Option<Placement>> = vec![None; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().chain([&node.output]) {
            let Some(root) = roots[id.0 as usize] else { continue };
            let bytes = graph.value(root).shape.elements() * size_of::<f32>();
            let bytes = bytes.next_multiple_of(ScratchPlan::PLACEMENT_ALIGNMENT);
            let life =
                lifetimes[root.0 as usize].get_or_insert(Placement { offset: 0, bytes, first: at, last: at });
            life.last = at;
        }
    }
    lifetimes
}

/// The lowest offset at which `life` overlaps no placement of an overlapping lifetime.
fn lowest_offset(life: &Placement, placed: &[Placement]) -> usize {
    let mut concurrent: Vec<_> =
        placed.iter().filter(|other| other.first <= life.last && life.first <= other.last).collect();
    concurrent.sort_by_key(|other| other.offset);
    let mut offset = 0;
    for other in concurrent {
        if other.offset >= offset + life.bytes {
            break;
        }
        offset = offset.max(other.offset + other.bytes);
    }
    offset
}
