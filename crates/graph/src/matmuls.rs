//! The matmuls of a graph: from them a backend tells how it rounds.

use crate::graph::{Graph, Node};
use crate::ops::{Op, OperandKind};
use crate::value::{Role, ValueId};

/// The weights that rows are multiplied by, once for each use; those of embeddings are looked up instead.
pub fn multiplied_weights(graph: &Graph) -> impl Iterator<Item = ValueId> + Clone {
    let nodes = graph.nodes.iter().filter(|node| node.op != Op::Embed);
    nodes.flat_map(|node| {
        let operands = node.op.spec().operands.iter().zip(&node.inputs);
        let matrices =
            operands.filter(|(kind, _)| matches!(kind, OperandKind::Matrix | OperandKind::Matrices));
        matrices.map(|(_, weight)| *weight)
    })
}

/// The matmul that yields the graph's output, possibly before a scale or a cap.
pub fn head_matmul(graph: &Graph) -> Option<&Node> {
    graph.nodes.iter().filter(|node| node.op == Op::Linear).find(|node| yields_output(graph, node.output))
}

/// Whether a value is the graph's output, possibly after a scale or a cap.
fn yields_output(graph: &Graph, mut id: ValueId) -> bool {
    loop {
        let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&id));
        match (readers.next(), readers.next()) {
            (None, _) => return graph.value(id).role == Role::Output,
            (Some(Node { op: Op::Scale { .. } | Op::Softcap { .. }, output, .. }), None) => id = *output,
            _ => return false,
        }
    }
}
