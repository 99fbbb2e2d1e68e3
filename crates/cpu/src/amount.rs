//! What an instruction has to read and to compute, whichever way it is done:
//! what `profile` divides by the time that it took.

use girih_graph::backend::Sequence;

use crate::lower::{Attention, Call, Products};
use crate::state::Cache;
use crate::weights::Weights;

/// Bytes and operations of one instruction in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Bytes of weights and of state, each counted once.
    pub bytes: u64,
    /// Multiplications and additions of products and of attention.
    pub operations: u64,
}

impl Amount {
    /// The amount of `call` for `rows` rows of its result.
    pub fn of(
        call: Call,
        rows: usize,
        weights: &Weights,
        state: &Cache,
        sequences: &[Sequence<'_>],
    ) -> Amount {
        let rows = rows as u64;
        let bytes_of = |index: usize| size_of_val(weights.vector(index)) as u64;
        match call {
            Call::Embed { table } => {
                let matrix = weights.matrix(table);
                Amount { bytes: rows * (matrix.size() / matrix.rows.max(1) as u64), operations: 0 }
            }
            Call::Norm { weight, .. } => Amount { bytes: bytes_of(weight), operations: 0 },
            Call::Rope { turn, .. } => Amount { bytes: bytes_of(turn.frequencies), operations: 0 },
            Call::Attend { keys, values, attention, .. } => {
                let position = state.tensor(keys).position_bytes() + state.tensor(values).position_bytes();
                sequences
                    .iter()
                    .map(|sequence| attended(sequence, attention, position))
                    .fold(Amount::default(), sum)
            }
            Call::Alias | Call::Take { .. } | Call::Elementwise(_) => Amount::default(),
        }
    }

    /// The amount of products of so many rows.
    pub fn of_products(products: &Products, rows: usize, weights: &Weights) -> Amount {
        let amounts = products.parts.iter().map(|part| {
            let matrix = weights.matrix(part.weight);
            let bias = part.bias.map_or(0, |bias| size_of_val(weights.vector(bias)) as u64);
            let operations = 2 * rows as u64 * (matrix.rows * matrix.columns) as u64;
            Amount { bytes: matrix.size() + bias, operations }
        });
        amounts.fold(Amount::default(), sum)
    }
}

/// The attention of one sequence, with so many bytes of state at a position: the
/// positions that any of its rows sees are read, and a multiplication and an
/// addition are done for each value of each key and value that a row sees, in
/// each of its heads.
fn attended(sequence: &Sequence<'_>, attention: Attention, position_bytes: u64) -> Amount {
    let Attention { groups, shared, size, value_size, span, .. } = attention;
    let (mut first, mut end, mut pairs) = (usize::MAX, 0, 0);
    for position in (sequence.position as usize..).take(sequence.rows.indexes().len()) {
        let seen = sequence.sees(span, position);
        (first, end, pairs) = (first.min(seen.start), end.max(seen.end), pairs + seen.len() as u64);
    }
    let read = end.saturating_sub(first) as u64;
    let values = (groups * shared * (size + value_size)) as u64;
    Amount { bytes: read * position_bytes, operations: 2 * pairs * values }
}

fn sum(a: Amount, b: Amount) -> Amount {
    Amount { bytes: a.bytes + b.bytes, operations: a.operations + b.operations }
}
