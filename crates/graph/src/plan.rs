//! Where scratch values live: values whose lives do not overlap share memory.

use crate::{Graph, Op, Role, ValueId};

/// The memory of a graph's scratch values, at the extents of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScratchPlan {
    /// One entry per value of the graph; `None` for values that are not
    /// scratch. A reshaped value has the place of its operand.
    pub places: Vec<Option<Placement>>,
    /// The bytes that all scratch values together take.
    pub bytes: usize,
}

/// A stretch of scratch memory, held over a stretch of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where it begins, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// The node that writes it.
    pub first: usize,
    /// The last node that reads it.
    pub last: usize,
}

impl ScratchPlan {
    /// Bytes to which every placement is aligned: one cache line.
    pub const ALIGNMENT: usize = 64;

    /// The plan of a graph without faults.
    ///
    /// Largest values first, each at the lowest offset that no overlapping
    /// life holds: the greedy-by-size strategy of Pisarchyk & Lee 2020
    /// (arXiv 2001.03288), which is within a few percent of the best.
    pub fn of(graph: &Graph) -> ScratchPlan {
        let roots = roots(graph);
        let mut places = lives(graph, &roots);
        let mut order: Vec<usize> = (0..places.len()).filter(|&i| places[i].is_some()).collect();
        order.sort_by_key(|&i| places[i].map(|place| (std::cmp::Reverse(place.bytes), place.first)));
        let mut placed: Vec<Placement> = Vec::new();
        for index in order {
            let life = places[index].as_mut().expect("filtered above");
            life.offset = lowest(life, &placed);
            placed.push(*life);
        }
        let bytes = placed.iter().map(|place| place.offset + place.bytes).max().unwrap_or(0);
        let places = roots.iter().map(|root| root.and_then(|root| places[root.0 as usize])).collect();
        ScratchPlan { places, bytes }
    }
}

/// For each scratch value, the value whose memory it lives in.
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

/// The life of each root, its offset still open.
fn lives(graph: &Graph, roots: &[Option<ValueId>]) -> Vec<Option<Placement>> {
    let mut lives: Vec<Option<Placement>> = vec![None; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().chain([&node.output]) {
            let Some(root) = roots[id.0 as usize] else { continue };
            let bytes = graph.value(root).shape.elements() * size_of::<f32>();
            let bytes = bytes.next_multiple_of(ScratchPlan::ALIGNMENT);
            let life =
                lives[root.0 as usize].get_or_insert(Placement { offset: 0, bytes, first: at, last: at });
            life.last = at;
        }
    }
    lives
}

/// The lowest offset at which `life` meets nothing that lives at the same time.
fn lowest(life: &Placement, placed: &[Placement]) -> usize {
    let mut rivals: Vec<_> =
        placed.iter().filter(|other| other.first <= life.last && life.first <= other.last).collect();
    rivals.sort_by_key(|other| other.offset);
    let mut offset = 0;
    for rival in rivals {
        if rival.offset >= offset + life.bytes {
            break;
        }
        offset = offset.max(rival.offset + rival.bytes);
    }
    offset
}
