//! Which nodes between the products of attention and attention itself are one launch: norms and rotations of heads, and the
//! writes of keys and values.

use girih_graph::{AppliedOp, Extent, Graph, Pairing, Role, ValueId};

use crate::state::is_keys;
use crate::step_table::{GpuRotation, group_of};

/// The largest head that `heads.wgsl` has room for.
const MOST_HEAD: usize = 1024;

/// A norm of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadNorm {
    pub epsilon: f32,
    pub weight: Option<ValueId>,
}

/// A rotation of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadRotation {
    pub pairing: Pairing,
    pub factor: f32,
    pub rotation: GpuRotation,
}

/// Heads that are normed and rotated, either or none.
#[derive(Clone, Debug)]
pub(crate) struct HeadChain {
    pub x: ValueId,
    pub norm: Option<HeadNorm>,
    pub rotation: Option<HeadRotation>,
    /// The result: heads, or the state that they are written to.
    pub y: ValueId,
    nodes: Vec<usize>,
}

/// What one launch computes: queries, unless they are products as they are; keys; values.
#[derive(Clone, Debug)]
pub(crate) struct FusedHeads {
    pub q: Option<HeadChain>,
    pub k: HeadChain,
    pub v: HeadChain,
    /// The last of its nodes, where the launch runs.
    pub anchor: usize,
}

impl FusedHeads {
    /// All launches of a graph. The parts of each have equal constants.
    pub fn all(graph: &Graph) -> Vec<FusedHeads> {
        let mut all: Vec<FusedHeads> = Vec::new();
        for node in &graph.nodes {
            if let Some(AppliedOp::Attend { q, keys, values, .. }) = node.op.applied_to(&node.inputs)
                && !all.iter().any(|known| known.k.y == keys || known.v.y == values)
                && let Some(heads) = FusedHeads::of(graph, q, [keys, values])
            {
                all.push(heads);
            }
        }
        all
    }

    fn of(graph: &Graph, q: ValueId, [keys, values]: [ValueId; 2]) -> Option<FusedHeads> {
        let value = |id| graph.value(id);
        group_of(graph, keys)?;
        let are_alike = group_of(graph, keys) == group_of(graph, values)
            && value(keys).dtype == value(values).dtype
            && [q, values].iter().all(|id| value(*id).shape.columns() <= MOST_HEAD);
        if keys == values || !are_alike || !is_keys(graph, keys) || is_keys(graph, values) {
            return None;
        }
        let k = HeadChain::written(graph, keys, true)?;
        let v = HeadChain::written(graph, values, true).filter(|v| v.is_plain() && v.agrees(&k));
        let v = v.or_else(|| HeadChain::written(graph, values, false))?;
        let q = HeadChain::ending(graph, q).filter(|q| q.agrees(&k) && q.agrees(&v));
        let heads = FusedHeads::joined(q, k.clone(), v.clone());
        let heads = if heads.is_in_order(graph) { heads } else { FusedHeads::joined(None, k, v) };
        heads.is_in_order(graph).then_some(heads)
    }

    fn joined(q: Option<HeadChain>, k: HeadChain, v: HeadChain) -> FusedHeads {
        let mut heads = FusedHeads { q, k, v, anchor: 0 };
        heads.anchor = heads.nodes().max().unwrap_or(0);
        heads
    }

    fn chains(&self) -> impl Iterator<Item = &HeadChain> {
        self.q.iter().chain([&self.k, &self.v])
    }

    /// The numbers of its nodes.
    pub fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.chains().flat_map(|chain| chain.nodes.iter().copied())
    }

    /// What the launch reads.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.chains().map(|chain| chain.x)
    }

    /// Whether no other node reads a result before the launch, and all have the rows of the step.
    fn is_in_order(&self, graph: &Graph) -> bool {
        let results: Vec<ValueId> = self.chains().map(|chain| chain.y).collect();
        let own: Vec<usize> = self.nodes().collect();
        let reads_one = |index: usize| {
            !own.contains(&index) && graph.nodes[index].inputs.iter().any(|id| results.contains(id))
        };
        let has_rows = self.reads().all(|id| graph.value(id).outermost == Extent::Rows);
        has_rows && !(0..self.anchor).any(reads_one)
    }
}

impl HeadChain {
    /// Heads as they are.
    pub fn plain(x: ValueId) -> HeadChain {
        HeadChain { x, norm: None, rotation: None, y: x, nodes: Vec::new() }
    }

    /// What is written to a state value; `with_norm` takes its norm and its rotation in.
    fn written(graph: &Graph, state: ValueId, with_norm: bool) -> Option<HeadChain> {
        let is_write = |index: &usize| graph.nodes[*index].output == state;
        let mut writes = (0..graph.nodes.len()).filter(is_write);
        let write = writes.next()?;
        let Some(AppliedOp::Write { x }) = graph.nodes[write].op.applied_to(&graph.nodes[write].inputs)
        else {
            return None;
        };
        if writes.next().is_some() {
            return None;
        }
        let mut chain = HeadChain { y: state, nodes: vec![write], ..HeadChain::plain(x) };
        while with_norm && chain.takes(graph, true) {}
        Some(chain)
    }

    /// The norm and the rotation that make a value; `None` if there are none.
    fn ending(graph: &Graph, y: ValueId) -> Option<HeadChain> {
        let mut chain = HeadChain::plain(y);
        while chain.takes(graph, !chain.nodes.is_empty()) {}
        (!chain.nodes.is_empty()).then_some(chain)
    }

    /// Takes in the node that makes `x`: a norm, or a rotation before which there is no norm yet. `is_inner` says that
    /// `x` disappears, so that nothing else may read it.
    fn takes(&mut self, graph: &Graph, is_inner: bool) -> bool {
        let Some(index) = graph.nodes.iter().position(|node| node.output == self.x) else {
            return false;
        };
        let readers = graph.nodes.iter().flat_map(|node| &node.inputs).filter(|id| **id == self.x).count();
        if graph.value(self.x).role != Role::Scratch || (is_inner && readers != 1) || self.norm.is_some() {
            return false;
        }
        let node = &graph.nodes[index];
        let size = graph.value(self.x).shape.columns();
        let x = match node.op.applied_to(&node.inputs) {
            Some(AppliedOp::Rope { pairing, factor, x, .. }) if self.rotation.is_none() => {
                let (factor, rotation) = (factor.unwrap_or(1.0), GpuRotation::of(node));
                self.rotation = Some(HeadRotation { pairing, factor, rotation });
                x
            }
            Some(AppliedOp::Norm { epsilon, x, weight }) if size <= MOST_HEAD => {
                let weights = weight.map_or(size, |id| graph.value(id).shape.elements());
                if weights % size != 0 || !graph.value(x).shape.stride().is_multiple_of(weights) {
                    return false;
                }
                self.norm = Some(HeadNorm { epsilon, weight });
                x
            }
            _ => return false,
        };
        self.x = x;
        self.nodes.push(index);
        true
    }

    /// Whether it has neither a rotation nor weights of a norm.
    fn is_plain(&self) -> bool {
        self.rotation.is_none() && self.norm.is_none_or(|norm| norm.weight.is_none())
    }

    /// Whether one launch has the constants of both.
    fn agrees(&self, other: &HeadChain) -> bool {
        let epsilons = self.norm.zip(other.norm).map(|(a, b)| a.epsilon == b.epsilon);
        let rotations = self.rotation.zip(other.rotation).map(|(a, b)| a == b);
        epsilons.unwrap_or(true) && rotations.unwrap_or(true)
    }
}
