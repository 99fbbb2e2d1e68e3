//! The bytes that an instruction must read and the operations that it must execute, whatever
//! the kernel. `profile` divides them by the time.

use girih_graph::backend::Sequence;

use crate::instruction::{Matmuls, OpCall};
use crate::ops::attend::AttentionParams;
use crate::state::{CpuState, KvStore};
use crate::weights::CpuWeights;

/// Bytes and operations of one instruction in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Bytes of weights and of state, each counted once.
    pub bytes: u64,
    /// Multiplications and additions of matmuls and of attention.
    pub operations: u64,
}

impl Amount {
    /// Returns the amount of `call` for `rows` rows of its result.
    pub fn of(
        call: OpCall,
        rows: usize,
        weights: &CpuWeights,
        state: &CpuState,
        sequences: &[Sequence<'_>],
    ) -> Amount {
        let rows = rows as u64;
        let bytes_of = |index: usize| size_of_val(weights.vector(index)) as u64;
        match call {
            OpCall::Embed { table, .. } => {
                let matrix = weights.matrix(table);
                Amount { bytes: rows * (matrix.size() / matrix.rows.max(1) as u64), operations: 0 }
            }
            OpCall::Norm { weight, .. } => Amount { bytes: bytes_of(weight), operations: 0 },
            OpCall::LayerNorm { weight, bias, .. } => {
                Amount { bytes: bytes_of(weight) + bias.map_or(0, bytes_of), operations: 0 }
            }
            OpCall::Rope { rotation, .. } => Amount { bytes: bytes_of(rotation.frequencies), operations: 0 },
            OpCall::Attend { store, keys, values, attention, .. } => {
                let position = match store {
                    KvStore::State => {
                        state.tensor(keys).position_bytes() + state.tensor(values).position_bytes()
                    }
                    // Rows of the step are activations.
                    KvStore::Step => 0,
                };
                sequences
                    .iter()
                    .map(|sequence| attended(sequence, attention, position))
                    .fold(Amount::default(), sum)
            }
            OpCall::ShortConv { taps, .. } => Amount { bytes: bytes_of(taps), operations: 0 },
            OpCall::Alias
            | OpCall::Gather { .. }
            | OpCall::Splice { .. }
            | OpCall::Pool { .. }
            | OpCall::Elementwise(_) => Amount::default(),
        }
    }

    /// Returns the amount of matmuls of `rows` rows.
    pub fn of_matmuls(matmuls: &Matmuls, rows: usize, weights: &CpuWeights) -> Amount {
        let amounts = matmuls.parts.iter().map(|part| {
            let matrix = weights.matrix(part.weight);
            let bias = part.bias.map_or(0, |bias| size_of_val(weights.vector(bias)) as u64);
            let operations = 2 * rows as u64 * (matrix.rows * matrix.columns) as u64;
            Amount { bytes: matrix.size() + bias, operations }
        });
        amounts.fold(Amount::default(), sum)
    }
}

/// Returns the amount of attention of one sequence. The positions that any row sees
/// are read once. Each head of each row takes a multiplication and an addition for
/// each number of each key and value that the row sees.
fn attended(sequence: &Sequence<'_>, attention: AttentionParams, position_bytes: u64) -> Amount {
    let AttentionParams { kv_heads, shared, size, value_size, span, .. } = attention;
    let (mut first, mut end, mut pairs) = (usize::MAX, 0, 0);
    for position in (sequence.position as usize..).take(sequence.rows.indexes().len()) {
        let seen = sequence.sees(span, position);
        (first, end, pairs) = (first.min(seen.start), end.max(seen.end), pairs + seen.len() as u64);
    }
    let read = end.saturating_sub(first) as u64;
    let values = (kv_heads * shared * (size + value_size)) as u64;
    Amount { bytes: read * position_bytes, operations: 2 * pairs * values }
}

fn sum(a: Amount, b: Amount) -> Amount {
    Amount { bytes: a.bytes + b.bytes, operations: a.operations + b.operations }
}
