//! Which nodes are one launch: matmuls of one value, a matmul with the addition that follows it, and heads.

use std::collections::HashMap;

use girih_graph::{AppliedOp, Graph, Role, ValueId, sink_gather};

use crate::heads::FusedHeads;
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
pub(crate) struct JoinedNodes {
    /// Matmuls of one value, the first one first; each has two or more.
    pub matmuls: Vec<Vec<GroupedMatmul>>,
    /// A matmul outside of these groups, the addition of its result, and what is added.
    pub sums: Vec<FusedSum>,
    /// What lies between matmuls and attention.
    pub heads: Vec<FusedHeads>,
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

/// What matmuls of a group multiply: all rows, and what is left of them where only output rows are computed.
type SharedRows = (ValueId, Option<ValueId>);

/// The number of operands that a value is.
fn uses(graph: &Graph, id: ValueId) -> usize {
    graph.nodes.iter().flat_map(|node| &node.inputs).filter(|operand| **operand == id).count()
}

impl JoinedNodes {
    /// The groups of a graph whose matrices together fit into a binding of `limit` bytes.
    pub fn of(graph: &Graph, limit: u64) -> JoinedNodes {
        let mut groups = JoinedNodes { heads: FusedHeads::all(graph), ..JoinedNodes::default() };
        // Matmuls of one value of which some compute output rows only are apart, so that both lists of launches use the
        // same matrices.
        let sunk = sink_gather(graph).map(|sunk| rows_of_weights(&sunk.graph)).unwrap_or_default();
        let mut open: Vec<(SharedRows, Vec<GroupedMatmul>)> = Vec::new();
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
            let rows = (x, sunk.get(&graph.value(weight).name).copied());
            let fits = |(of, group): &&mut (_, Vec<GroupedMatmul>)| {
                let first = group[0];
                let alike = MatrixShape { rows: shape.rows, ..first.shape } == shape;
                let [codes, scales] = shape.band_bytes().map(|bytes| bytes as u64);
                let bands: usize = group.iter().map(|matmul| matmul.shape.bands()).sum();
                let bytes = (bands + shape.bands()) as u64 * codes.max(scales);
                *of == rows
                    && alike
                    && group.len() < MOST_MATMULS
                    && first.bias.is_some() == bias.is_some()
                    && bytes <= limit
            };
            match open.iter_mut().find(fits) {
                Some((_, group)) => group.push(matmul),
                None => open.push((rows, vec![matmul])),
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

    /// What is read at a node beside its operands.
    pub fn late(&self, node: usize) -> impl Iterator<Item = ValueId> + '_ {
        self.heads_at(node).into_iter().flat_map(FusedHeads::reads)
    }

    /// The heads whose launch runs at a node.
    pub fn heads_at(&self, node: usize) -> Option<&FusedHeads> {
        self.heads.iter().find(|heads| heads.anchor == node)
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

/// What each matrix of a matmul is multiplied with, by the name of the matrix.
fn rows_of_weights(graph: &Graph) -> HashMap<String, ValueId> {
    let rows = graph.nodes.iter().filter_map(|node| match node.op.applied_to(&node.inputs) {
        Some(AppliedOp::Linear { x, weight, bias: _ }) => Some((graph.value(weight).name.clone(), x)),
        _ => None,
    });
    rows.collect()
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

#[cfg(test)]
mod tests {
    use girih_graph::{Builder, Key, Op, OutputKind};
    use girih_tensor::{DType, Shape};

    use super::*;

    /// Two matmuls of one value; the result of the first one is needed for all rows if its op is positional.
    fn graph(is_positional: bool) -> Graph {
        let key = Key { rows: 8, sequences: 1, context: 8, output_rows: 1, output: OutputKind::Logits };
        let mut builder = Builder::new(key);
        let x = builder.input("x", &[32], DType::F32);
        let [q, z] = ["q", "z"].map(|name| {
            let shape = Shape::new(&[32, 32]).expect("it is small");
            let weight = builder.weight(&format!("{name}.weight"), shape, DType::F32);
            builder.shaped(name, Op::Linear, &[x, weight], &[32])
        });
        let temper = Op::Temper { beta: 1.0, every: 1, offset: 0 };
        let q = if is_positional { builder.same("tempered", temper, &[q]) } else { q };
        let sum = builder.same("sum", Op::Add, &[q, z]);
        let y = builder.gather("y", sum);
        builder.finish(y)
    }

    #[test]
    fn both_lists_of_launches_join_the_same_matmuls() {
        for (is_positional, joined) in [(false, 1), (true, 0)] {
            let graph = graph(is_positional);
            let sunk = sink_gather(&graph).expect("a matmul may compute output rows only").graph;
            let counts = [&graph, &sunk].map(|graph| JoinedNodes::of(graph, 1 << 20).matmuls.len());
            assert_eq!(counts, [joined, joined]);
        }
    }

    #[test]
    fn matmuls_beyond_the_limit_of_a_binding_are_apart() {
        // Two bands of 4,096 bytes each.
        let graph = graph(false);
        assert_eq!(JoinedNodes::of(&graph, 8192).matmuls.len(), 1);
        assert!(JoinedNodes::of(&graph, 8191).matmuls.is_empty());
    }
}
