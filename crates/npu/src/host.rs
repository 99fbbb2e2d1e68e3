//! The cost of nodes that the host computes between two programs of the array. Their results are
//! those of the [interpreter](girih_graph::interpret).

use girih_graph::backend::{Sequence, step_count};
use girih_graph::{Graph, Node, Op, Span};

/// The cost of host work, which determines the host's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCost {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

impl HostCost {
    /// The cost of a node in a step of these sequences.
    ///
    /// # Panics
    /// When the node is one that the host never computes.
    pub fn of(graph: &Graph, node: &Node, sequences: &[Sequence<'_>]) -> HostCost {
        // The numbers of values that are read or written at four bytes each.
        let count = |operand: usize| {
            let value = graph.value(node.inputs[operand]);
            (step_count(sequences, value.outermost) * value.shape.stride()) as u64
        };
        let each = |flops: u64| HostCost { flops: flops * count(0), bytes: 8 * count(0) };
        let stride = |operand: usize| graph.value(node.inputs[operand]).shape.stride() as u64;
        match node.op {
            Op::Embed => HostCost { flops: 0, bytes: 4 * count(0) * stride(1) },
            Op::Gather => {
                let rows: usize = sequences.iter().map(|sequence| sequence.output_rows().len()).sum();
                HostCost { flops: 0, bytes: 8 * rows as u64 * stride(0) }
            }
            Op::Write => each(0),
            Op::Scale { .. } => each(1),
            Op::Norm { .. } => each(4),
            Op::Softcap { .. } => each(10),
            Op::Add => HostCost { flops: count(0), bytes: 12 * count(0) },
            Op::Gate { .. } => HostCost { flops: 10 * count(0), bytes: 12 * count(0) },
            Op::Attend { span, .. } => attend(span, stride(0), stride(1), sequences),
            op => unreachable!("no site of '{}' is the host", op.name()),
        }
    }
}

/// Counts scores and weighted sum, two operations per element each, over the positions that each
/// row attends to; keys and values are read once for all heads.
fn attend(span: Span, width: u64, inner: u64, sequences: &[Sequence<'_>]) -> HostCost {
    let mut cost = HostCost::default();
    for sequence in sequences {
        for (_, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
            let seen = sequence.sees(span, position).len() as u64;
            cost.flops += 4 * seen * width;
            cost.bytes += 4 * seen * inner;
        }
    }
    cost
}
