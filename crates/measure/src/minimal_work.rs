//! The minimal work of a step: the bytes that it has to read and the operations that it
//! has to execute, counted on the graph, independent of any device.

use girih_graph::backend::Range32;
use girih_graph::{Graph, Node, Outputs, ReadPositions, Reads, Role, Sequence, Value, sink_gather};
use serde::Serialize;

/// Bytes and operations of one step, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MinimalWork {
    /// Bytes of weights in their file formats, without blocks of zeros that are skipped. Each weight is read once per step; of an
    /// embedding table, one row per token; and of experts, as many as the rows would choose at random.
    pub weight_bytes: f64,
    /// Bytes of keys and values, and of what sequences carry.
    pub state_bytes: f64,
    /// Multiplications and additions of matmuls, attention and short convolutions.
    pub operations: f64,
}

/// A graph, and its weights that are held without blocks of zeros (`girih_graph::Runner::densities`).
pub type LoadedGraph<'a> = (&'a Graph, &'a [(String, f64)]);

/// The rows of a step of sequences of equal length.
#[derive(Clone, Copy, Debug)]
struct WorkRows {
    /// The number of sequences.
    sequences: u32,
    /// The number of rows of each.
    count: u32,
    /// The position of the first row.
    position: u32,
    /// The number of output rows of each.
    output_rows: u32,
}

impl MinimalWork {
    /// Returns the work of several steps; after the last attention, only output rows count.
    fn of_steps((graph, sparse): LoadedGraph<'_>, steps: impl IntoIterator<Item = WorkRows>) -> MinimalWork {
        let early = sink_gather(graph).map(|early| early.graph);
        let graph = early.as_ref().unwrap_or(graph);
        let of_step = |rows| graph.nodes.iter().map(move |node| node_work((graph, sparse), node, rows));
        steps.into_iter().flat_map(of_step).fold(MinimalWork::default(), MinimalWork::plus)
    }

    /// Returns the work of `tokens` steps of one row of each of `sequences` sequences, from `position` on.
    pub fn of_decode(graph: LoadedGraph<'_>, position: u32, tokens: u32, sequences: u32) -> MinimalWork {
        let step = |at| WorkRows { sequences, count: 1, position: at, output_rows: 1 };
        // The number of visible positions grows linearly until windows are full, so the
        // first, middle and last step are accurate enough for a limit.
        let last = position + tokens.saturating_sub(1);
        let steps = [position, position + (last - position) / 2, last].map(step);
        let sum = MinimalWork::of_steps(graph, steps);
        sum.times(f64::from(tokens) / steps.len() as f64)
    }

    /// Returns the work of `tokens` rows of one sequence from `position` on, in steps of up to `chunk` rows;
    /// the last row is an output row.
    pub fn of_prefill(graph: LoadedGraph<'_>, position: u32, tokens: u32, chunk: u32) -> MinimalWork {
        let chunk = chunk.max(1);
        let step = |done: u32| {
            let count = (tokens - done).min(chunk);
            let output_rows = u32::from(done + count == tokens);
            WorkRows { sequences: 1, count, position: position + done, output_rows }
        };
        MinimalWork::of_steps(graph, (0..tokens).step_by(chunk as usize).map(step))
    }

    /// The bytes of weights and state.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.state_bytes
    }

    /// Returns the sum.
    pub fn plus(self, other: MinimalWork) -> MinimalWork {
        MinimalWork {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            state_bytes: self.state_bytes + other.state_bytes,
            operations: self.operations + other.operations,
        }
    }

    fn times(self, factor: f64) -> MinimalWork {
        MinimalWork {
            weight_bytes: self.weight_bytes * factor,
            state_bytes: self.state_bytes * factor,
            operations: self.operations * factor,
        }
    }
}

fn node_work((graph, sparse): LoadedGraph<'_>, node: &Node, rows: WorkRows) -> MinimalWork {
    let WorkRows { sequences, count, position, output_rows } = rows;
    let sequence = |index: u32| {
        let rows = Range32 { start: index * count, end: (index + 1) * count };
        Sequence { blocks: &[], position, rows, outputs: Outputs::LastN(output_rows), spans: &[] }
    };
    let work = graph.work(node, &(0..sequences).map(sequence).collect::<Vec<_>>());
    let mut minimal = MinimalWork { operations: 2.0 * work.multiply_adds as f64, ..MinimalWork::default() };
    let density = |value: &Value| {
        sparse.iter().find(|(name, _)| *name == value.name).map_or(1.0, |(_, density)| *density)
    };
    let weights = node.inputs.iter().map(|id| graph.value(*id)).filter(|value| value.role == Role::Weight);
    let [all, held] = weights
        .fold([0.0; 2], |[all, held], value| [all + bytes(value), held + bytes(value) * density(value)]);
    if all > 0.0 {
        minimal.operations *= held / all;
    }
    for (id, reads) in node.inputs.iter().zip(work.reads) {
        let value = graph.value(*id);
        match (value.role, reads) {
            (Role::Weight, Reads::All) => minimal.weight_bytes += bytes(value) * density(value),
            (Role::Weight, Reads::Rows(count)) => {
                let row = bytes(value) * density(value) / value.shape.rows().max(1) as f64;
                minimal.weight_bytes += count as f64 * row;
            }
            (Role::State(_), Reads::Positions(ReadPositions { distinct, by_row: _ })) => {
                minimal.state_bytes += distinct as f64 * position_bytes(value);
            }
            (Role::State(_), Reads::All) => minimal.state_bytes += bytes(value),
            _ => {}
        }
    }
    minimal
}

fn bytes(value: &Value) -> f64 {
    // The graph check refuses formats that cannot hold the shape.
    value.dtype.bytes(&value.shape).map_or(0.0, |bytes| bytes as f64)
}

/// Returns the bytes of one position of a state value.
fn position_bytes(value: &Value) -> f64 {
    let (rows, columns) = value.dtype.tile();
    (value.shape.stride() * value.dtype.block_bytes()) as f64 / (rows * columns) as f64
}
