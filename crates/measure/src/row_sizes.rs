//! What a run tells of the rows of its values: their sizes, and the rows that the analysis of errors reads.

use std::collections::HashMap;
use std::ops::Range;

use girih_graph::{Graph, Op, SELECTION_POSITIONS, Watch};
use girih_tensor::Shape;

use crate::activation_gain::derivative;
use crate::rounding::mean_square;

/// The sizes of the rows of a graph's values in a run, and the rows that attention reads: a watch.
/// Sequences begin at position 0.
#[derive(Debug)]
pub(crate) struct RowSizes<'a> {
    pub(crate) graph: &'a Graph,
    /// The mean square of each matrix of weights.
    pub(crate) weight_squares: &'a HashMap<String, f64>,
    /// The biases by which experts are chosen and the sinks of attention, by name.
    pub(crate) vectors: Option<&'a HashMap<String, Vec<f32>>>,
    /// The rows of each sequence.
    pub(crate) sequences: Vec<Range<usize>>,
    /// Rows that attend to each other both ways.
    pub(crate) spans: Vec<Range<usize>>,
    /// The errors of the rows that the caller gave; empty if these are those of the golden.
    pub(crate) given: Vec<f64>,
    /// The index of each value by its name.
    indices: HashMap<&'a str, usize>,
    /// The mean square of each row of each value; empty if the backend did not report it.
    pub(crate) squares: Vec<Vec<f64>>,
    /// The rows of each value that attention reads, or by which experts are chosen; `None` for other values.
    pub(crate) read: Vec<Option<Vec<f32>>>,
}

impl<'a> RowSizes<'a> {
    /// No rows yet.
    pub(crate) fn of(
        graph: &'a Graph,
        weight_squares: &'a HashMap<String, f64>,
        sequences: Vec<Range<usize>>,
    ) -> RowSizes<'a> {
        let indices = graph.ids().map(|(id, value)| (value.name.as_str(), id.0 as usize)).collect();
        let mut read = vec![None; graph.values.len()];
        // Operands of a node are results of earlier ones.
        for node in graph.nodes.iter().rev() {
            let passes_on = matches!(node.op, Op::Reshape | Op::Write);
            let is_read = read[node.output.0 as usize].is_some();
            let reads = matches!(
                node.op,
                Op::Attend { .. }
                    | Op::AttendLatent { .. }
                    | Op::SelectKeys { .. }
                    | Op::Route { .. }
                    | Op::SsmScan { .. }
            );
            if reads || passes_on && is_read {
                node.inputs.iter().for_each(|id| read[id.0 as usize] = Some(Vec::new()));
            }
            if let Op::Norm { .. } | Op::LayerNorm { .. } = node.op
                && graph.value(node.inputs[0]).shape.extents().len() > 2
            {
                read[node.inputs[0].0 as usize] = Some(Vec::new());
            }
            if let Op::MixHeads = node.op {
                node.inputs.iter().for_each(|id| read[id.0 as usize] = Some(Vec::new()));
            }
            if let Op::Sparsify { .. } = node.op {
                read[node.output.0 as usize] = Some(Vec::new());
            }
            if let Op::DeltaRule { .. } = node.op {
                node.inputs[..5].iter().for_each(|id| read[id.0 as usize] = Some(Vec::new()));
            }
            if let Op::Gate { act, .. } | Op::GateHeads { act } = node.op
                && derivative(act).is_some()
            {
                read[node.inputs[0].0 as usize] = Some(Vec::new());
            }
        }
        let squares = vec![Vec::new(); graph.values.len()];
        let (spans, given) = (Vec::new(), Vec::new());
        RowSizes { graph, weight_squares, vectors: None, sequences, spans, given, indices, squares, read }
    }

    /// With rows that attend to each other both ways.
    pub(crate) fn with_spans(self, spans: Vec<Range<usize>>) -> RowSizes<'a> {
        RowSizes { spans, ..self }
    }

    /// With the errors of the rows that the caller gives.
    pub(crate) fn with_given(self, given: Vec<f64>) -> RowSizes<'a> {
        RowSizes { given, ..self }
    }

    /// With the biases by which experts are chosen and the sinks of attention.
    pub(crate) fn with_vectors(self, vectors: &'a HashMap<String, Vec<f32>>) -> RowSizes<'a> {
        RowSizes { vectors: Some(vectors), ..self }
    }

    /// With the mean squares of the rows of a value that the backend does not report, such as an input.
    pub(crate) fn with_squares(mut self, name: &str, squares: Vec<f64>) -> RowSizes<'a> {
        if let Some(index) = self.indices.get(name) {
            self.squares[*index] = squares;
        }
        self
    }

    /// The mean squares of the rows of a value; none if the backend did not report it.
    pub(crate) fn squares_of(&self, name: &str) -> Vec<f64> {
        self.indices.get(name).map_or_else(Vec::new, |index| self.squares[*index].clone())
    }

    /// The number of scores of experts and of positions in the run, and of the elements of experts' results.
    pub(crate) fn routed(&self) -> (usize, usize) {
        let rows = self.sequences.last().map_or(0, |sequence| sequence.end);
        let elements = |is_counted: fn(&Op) -> bool| {
            let nodes = self.graph.nodes.iter().filter(|node| is_counted(&node.op));
            nodes.map(|node| rows * self.graph.value(node.output).shape.columns()).sum()
        };
        let selected = SELECTION_POSITIONS * elements(|op| matches!(op, Op::SelectKeys { .. }));
        (
            selected + elements(|op| matches!(op, Op::Route { .. })),
            elements(|op| matches!(op, Op::Experts { .. })),
        )
    }
}

impl Watch for RowSizes<'_> {
    fn wants(&self, name: &str) -> bool {
        self.indices.contains_key(name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        let rows = shape.extents().first().copied().unwrap_or(1).max(1);
        let columns = (data.len() / rows).max(1);
        let index = self.indices[name];
        self.squares[index].extend(data.chunks(columns).map(|row| mean_square(row.iter().copied())));
        if let Some(rows) = &mut self.read[index] {
            rows.extend_from_slice(data);
        }
    }
}
