//! Which keys and values a program appends to those of the steps before, so that the host need not write
//! them before attention.

use girih_graph::{Graph, Op, ValueId};
use girih_tensor::DType;

use super::padding::ColumnPadding;
use super::policy::Grouping;
use super::site::{Answer, ArrayNode, ArrayOp, ArrayOperand};

/// The states that programs append to.
pub(super) struct AppendedStates {
    /// The row that a step appends to each value of the graph that is such a state.
    rows: Vec<Option<ValueId>>,
}

impl AppendedStates {
    /// Finds the states of a graph: in steps of a single row whose launches stay configured, keys and
    /// values that only attention of the array reads. Their rows must be results of the array, and the
    /// state must hold them exactly: then the host has the same numbers when it writes them afterwards.
    pub fn of(
        graph: &Graph,
        answers: &[Answer],
        grouping: Grouping,
        padding: &ColumnPadding,
    ) -> AppendedStates {
        let mut rows = vec![None; graph.values.len()];
        if grouping != Grouping::Resident || graph.key.rows != 1 || graph.key.sequences != 1 {
            return AppendedStates { rows };
        }
        for (node, _) in graph.nodes.iter().zip(answers).filter(|(node, _)| node.op == Op::Write) {
            let is_exact = matches!(graph.value(node.output).dtype, DType::F32 | DType::BF16);
            let row = padding.root(node.inputs[0]);
            if is_exact && is_made_by_array(graph, answers, row) {
                rows[node.output.0 as usize] = Some(row);
            }
        }
        let mut states = AppendedStates { rows };
        // Keys are appended with their values or not at all, and for one reader.
        while let Some(state) = states.unfit(graph, answers) {
            states.rows[state.0 as usize] = None;
        }
        states
    }

    /// Returns a state that a node reads without appending both keys and values.
    fn unfit(&self, graph: &Graph, answers: &[Answer]) -> Option<ValueId> {
        graph.nodes.iter().zip(answers).find_map(|(node, answer)| {
            let pair = attended(answer);
            let readers =
                |state: ValueId| graph.nodes.iter().filter(|node| node.inputs.contains(&state)).count();
            let is_appended = |state: &ValueId| self.row(*state).is_some() && readers(*state) == 1;
            let is_fit = pair.is_some_and(|pair| pair.iter().all(is_appended));
            let read = node.inputs.iter().find(|input| self.row(**input).is_some())?;
            (!is_fit).then_some(*read)
        })
    }

    /// The row that a step appends to a state, if a program does so.
    pub fn row(&self, state: ValueId) -> Option<ValueId> {
        self.rows[state.0 as usize]
    }

    /// Whether a value is such a row, which the host reads after the programs.
    pub fn is_row(&self, value: ValueId) -> bool {
        self.rows.contains(&Some(value))
    }
}

/// The keys and the values that a node attends to on the array.
fn attended(answer: &Answer) -> Option<[ValueId; 2]> {
    let Answer::Array(ArrayNode { op: ArrayOp::Attend { .. }, operands }) = answer else { return None };
    operands.iter().find_map(|operand| match *operand {
        ArrayOperand::Chunks { keys, values, .. } => Some([keys, values]),
        _ => None,
    })
}

fn is_made_by_array(graph: &Graph, answers: &[Answer], value: ValueId) -> bool {
    let mut made = graph.nodes.iter().zip(answers);
    made.any(|(node, answer)| node.output == value && matches!(answer, Answer::Array(_)))
}
