//! Which nodes are one launch: matmuls of one value, and a matmul with the addition that follows it.

use girih_graph::{AppliedOp, Graph, Role, ValueId};

use crate::matrix::MatrixShape;
use crate::temporary::matrix_shape;

/// The most matmuls of a launch.
pub(crate) const MOST_MATMULS: usize = 3;

/// A matmul of a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupedMatmul {
    /// The number of the node.
    pub node: usize,
    pub weight: ValueId,
    pub bias: Option<ValueId>,
    pub y: ValueId,
    pub shape: MatrixShape,
}

/// How the nodes of a graph are joined.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// Matmuls of one value, the first one first; each has two or more.
    pub matmuls: Vec<Vec<GroupedMatmul>>,
    /// A matmul outside of these groups, the addition of its result, and what is added.
    pub sums: Vec<FusedSum>,
}

/// A matmul whose result is only added to another value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FusedSum {
    /// The number of the matmul's node.
    pub node: usize,
    /// The number of the addition's node.
    pub add: usize,
    pub residual: ValueId,
    /// The sum.
    pub y: ValueId,
}

/// The number of operands that a value is.
fn uses(graph: &Graph, id: ValueId) -> usize {
    graph.nodes.iter().flat_map(|node| &node.inputs).filter(|operand| **operand == id).count()
}

impl Groups {
    /// The groups of a graph whose matrices together fit into a binding of `limit` bytes.
    pub fn of(graph: &Graph, limit: u64) -> Groups {
        let mut groups = Groups::default();
        let mut open: Vec<(ValueId, Vec<GroupedMatmul>)> = Vec::new();
        for (node, of) in graph.nodes.iter().enumerate() {
            let Some(AppliedOp::Linear { x, weight, bias }) = of.op.applied_to(&of.inputs) else {
                continue;
            };
            let Some(shape) = matrix_shape(graph, weight) else {
                continue;
            };
            // A matrix that others use, such as an embedding, stays alone.
            if uses(graph, weight) != 1 || !shape.rows.is_multiple_of(32) {
                continue;
            }
            let matmul = GroupedMatmul { node, weight, bias, y: of.output, shape };
            let fits = |(of, group): &&mut (ValueId, Vec<GroupedMatmul>)| {
                let first = group[0];
                let alike = MatrixShape { rows: shape.rows, ..first.shape } == shape;
                let [codes, scales] = shape.band_bytes().map(|bytes| bytes as u64);
                let bands: usize = group.iter().map(|matmul| matmul.shape.bands()).sum();
                let bytes = (bands + shape.bands()) as u64 * codes.max(scales);
                *of == x
                    && alike
                    && group.len() < MOST_MATMULS
                    && first.bias.is_some() == bias.is_some()
                    && bytes <= limit
            };
            match open.iter_mut().find(fits) {
                Some((_, group)) => group.push(matmul),
                None => open.push((x, vec![matmul])),
            }
        }
        let (alone, several): (Vec<_>, Vec<_>) =
            open.into_iter().map(|(_, group)| group).partition(|group| group.len() == 1);
        groups.sums = alone.iter().filter_map(|group| sum_of(graph, &group[0])).collect();
        groups.matmuls = several;
        groups
    }

    /// What is made at a node although its own node comes later.
    pub fn early(&self, node: usize) -> impl Iterator<Item = ValueId> + '_ {
        let group = self.matmuls.iter().filter(move |group| group[0].node == node);
        let sums = self.sums.iter().filter(move |sum| sum.node == node);
        group.flatten().map(|matmul| matmul.y).chain(sums.map(|sum| sum.y))
    }

    /// The group that a node is in.
    pub fn group(&self, node: usize) -> Option<&[GroupedMatmul]> {
        let group = self.matmuls.iter().find(|group| group.iter().any(|matmul| matmul.node == node));
        group.map(Vec::as_slice)
    }

    /// The sum that a matmul makes.
    pub fn sum(&self, node: usize) -> Option<&FusedSum> {
        self.sums.iter().find(|sum| sum.node == node)
    }
}

/// The addition that is all that reads the result of a matmul.
fn sum_of(graph: &Graph, matmul: &GroupedMatmul) -> Option<FusedSum> {
    if graph.value(matmul.y).role != Role::Scratch || uses(graph, matmul.y) != 1 {
        return None;
    }
    let mut adds = graph.nodes.iter().enumerate().filter(|(_, node)| node.inputs.contains(&matmul.y));
    let (add, node) = adds.next()?;
    let Some(AppliedOp::Add { a, b }) = node.op.applied_to(&node.inputs) else {
        return None;
    };
    let residual = if a == matmul.y { b } else { a };
    let maker = graph.nodes.iter().position(|node| node.output == residual);
    let is_there = maker.is_none_or(|maker| maker < matmul.node);
    // The sum replaces neither what it adds nor what is multiplied.
    (is_there && residual != matmul.y).then_some(FusedSum {
        node: matmul.node,
        add,
        residual,
        y: node.output,
    })
}

/// The name under which the matrices of a group are stored.
pub(crate) fn joined_name(graph: &Graph, ids: impl Iterator<Item = ValueId>) -> String {
    ids.map(|id| graph.value(id).name.as_str()).collect::<Vec<_>>().join(" + ")
}
