//! Which nodes of a graph are adapters, and how their first matrices are packed.

use girih_graph::{Act, Graph, InputSpec, Node, Op, Role, ValueId, Weighed};
use girih_tensor::DType;

use crate::kernels::packed::{BAND, NARROW};

/// An `experts` node whose rows chose an adapter each: `factor · (B · (A · x))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterNode {
    pub x: ValueId,
    /// The factor of each adapter, for each row.
    pub chosen: ValueId,
    /// The first matrices, and the second ones.
    pub a: ValueId,
    pub b: ValueId,
}

impl AdapterNode {
    /// The operands of a node, if it is such a node and its matrices are floats.
    pub fn of(graph: &Graph, node: &Node) -> Option<AdapterNode> {
        let is_float = |id: ValueId| matches!(graph.value(id).dtype, DType::BF16 | DType::F16 | DType::F32);
        match (node.op, &node.inputs[..]) {
            (
                Op::Experts {
                    used: 1,
                    act: Act::Identity,
                    limit: None,
                    offset: None,
                    weighed: Weighed::Results,
                },
                &[x, chosen, a, b],
            ) if is_float(a) && is_float(b) && are_adapters(graph, chosen) => {
                Some(AdapterNode { x, chosen, a, b })
            }
            _ => None,
        }
    }
}

/// Whether a value is the graph's input of adapters, or some rows of it.
fn are_adapters(graph: &Graph, mut id: ValueId) -> bool {
    loop {
        let value = graph.value(id);
        if value.role == Role::Input {
            return value.name == InputSpec::ADAPTERS;
        }
        match graph.nodes.iter().find(|node| node.output == id) {
            Some(node) if node.op == Op::Gather => id = node.inputs[0],
            _ => return false,
        }
    }
}

/// The number of parts into which each row of a weight is cut before it is packed; each part is then a row. Rows of the
/// first matrices of adapters are cut, as there are fewer of them than a band has: a rank of 16 fills half a band, and
/// the other half would be read, too.
pub(crate) fn row_parts(graph: &Graph, weight: ValueId) -> usize {
    let is_a = |node: &&Node| node.inputs.get(2) == Some(&weight) && AdapterNode::of(graph, node).is_some();
    let &[_, rank, inputs] = graph.value(weight).shape.extents() else { return 1 };
    if graph.nodes.iter().find(is_a).is_none() {
        return 1;
    }
    let fits = |parts: &usize| rank * parts <= BAND && inputs.is_multiple_of(*parts);
    [NARROW, NARROW / 2, NARROW / 4].into_iter().find(fits).unwrap_or(1)
}
