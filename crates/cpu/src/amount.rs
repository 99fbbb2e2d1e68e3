//! The bytes that an instruction must read and the operations that it must execute, whatever
//! the kernel. `profile` divides them by the time.

use girih_graph::{AppliedOp, NodeWork, ReadPositions, Reads, ValueId, WorkStep};
use girih_tensor::Shape;

use crate::step::CpuStep;
use crate::step_values::ValueStore;

/// Bytes and operations of one instruction in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Bytes of weights and of state, each counted once.
    pub bytes: u64,
    /// Multiplications and additions of matmuls, attention and short convolutions.
    pub operations: u64,
}

/// A node with its operands, and with their shapes.
#[derive(Clone, Debug)]
pub(crate) struct InstructionWork {
    pub call: AppliedOp<Shape>,
    pub operands: Vec<ValueId>,
}

impl InstructionWork {
    /// The amount of a step, for `rows` rows of the result.
    pub fn amount(&self, rows: usize, step: &CpuStep<'_>) -> Amount {
        let experts = match self.call {
            AppliedOp::Experts { .. } => Some(chosen_experts(step, self.operands[1])),
            _ => None,
        };
        let work_step = WorkStep { rows: rows as u64, sequences: step.rows.sequences, experts };
        let NodeWork { multiply_adds, other_operations: _, reads } = self.call.work(work_step);
        let weights = step.weights.loaded;
        let stores = self.operands.iter().map(|id| step.values.stores[id.0 as usize]);
        let bytes = stores.zip(reads).map(|(store, reads)| match (store, reads) {
            (ValueStore::Weight(index), Reads::All) => weights.bytes(index),
            (ValueStore::Weight(index), Reads::Rows(rows)) => rows * weights.row_bytes(index),
            (ValueStore::State(index), Reads::Positions(ReadPositions { distinct, by_row: _ })) => {
                distinct * step.state.tensor(index).position_bytes()
            }
            (ValueStore::State(index), Reads::All) => {
                (step.rows.sequences.len() * step.state.carried(index).block_bytes()) as u64
            }
            // The values of a step do not count.
            (ValueStore::Step(_) | ValueStore::Weight(_) | ValueStore::State(_), _) => 0,
        });
        Amount { bytes: bytes.sum(), operations: (2.0 * multiply_adds as f64 * self.density(step)) as u64 }
    }

    /// The share of the units of its packed weights that are multiplied, on average.
    fn density(&self, step: &CpuStep<'_>) -> f64 {
        let weights = self.operands.iter().filter_map(|id| match step.values.stores[id.0 as usize] {
            ValueStore::Weight(index) => step.weights.loaded.dense_bytes(index),
            ValueStore::Step(_) | ValueStore::State(_) => None,
        });
        let [present, dense] =
            weights.fold([0, 0], |sum: [u64; 2], bytes| [sum[0] + bytes[0], sum[1] + bytes[1]]);
        if dense == 0 { 1.0 } else { present as f64 / dense as f64 }
    }
}

/// The number of experts whose weight is not 0 in some row.
fn chosen_experts(step: &CpuStep<'_>, weights: ValueId) -> u64 {
    let (rows, experts) = (step.values.get(weights), step.values.stride(weights));
    let is_chosen = |expert: &usize| rows[*expert..].iter().step_by(experts).any(|weight| *weight != 0.0);
    if rows.is_empty() { 0 } else { (0..experts).filter(is_chosen).count() as u64 }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        amounts.fold(Amount::default(), |a, b| Amount {
            bytes: a.bytes + b.bytes,
            operations: a.operations + b.operations,
        })
    }
}
