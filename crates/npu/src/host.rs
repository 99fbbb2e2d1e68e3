//! The cost of nodes that the host computes between two programs of the array. Their results are
//! those of the [interpreter](girih_graph::interpret).

use girih_graph::backend::{Sequence, step_count};
use girih_graph::{Extent, Graph, Node, NodeWork, ReadPositions, Reads, Role};
use girih_tensor::DType;

/// The cost of host work, which determines the host's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCost {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

impl HostCost {
    /// The cost of a node in a step of these sequences: the values of the step that it reads and makes,
    /// at four bytes a number. Attention counts its keys and values instead, at two bytes, as each
    /// row reads them once for all heads.
    pub fn of(graph: &Graph, node: &Node, sequences: &[Sequence<'_>]) -> HostCost {
        let NodeWork { multiply_adds, other_operations, reads } = graph.work(node, sequences);
        let (mut values, mut attended) = (0, 0);
        for (id, reads) in node.inputs.iter().zip(reads) {
            let value = graph.value(*id);
            let stride = value.shape.stride() as u64;
            let is_value = matches!(value.role, Role::Input | Role::Scratch) && value.dtype == DType::F32;
            match reads {
                Reads::All if is_value => values += step_count(sequences, value.outermost) as u64 * stride,
                Reads::Rows(rows) if is_value => values += rows * stride,
                Reads::Positions(ReadPositions { distinct: _, by_row }) => attended += by_row * stride,
                Reads::Nothing | Reads::All | Reads::Rows(_) => {}
            }
        }
        let output = graph.value(node.output);
        let rows = match output.outermost {
            Extent::Context => step_count(sequences, Extent::Rows),
            extent => step_count(sequences, extent),
        };
        values += rows as u64 * output.shape.stride() as u64;
        let bytes = if attended > 0 { 2 * attended } else { 4 * values };
        HostCost { flops: 2 * multiply_adds + other_operations, bytes }
    }
}
