//! The bytes that an instruction must read and the operations that it must execute, whatever
//! the kernel. `profile` divides them by the time.

use girih_graph::{AppliedOp, MAX_OPERANDS, NodeWork, ReadPositions, Reads, WorkStep};
use girih_tensor::Shape;

use crate::state::CpuState;
use crate::weights::CpuWeights;

/// Bytes and operations of one instruction in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Bytes of weights and of state, each counted once.
    pub bytes: u64,
    /// Multiplications and additions of matmuls and of attention.
    pub operations: u64,
}

/// A node with its operands' shapes, and where they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstructionWork {
    pub call: AppliedOp<Shape>,
    pub stored: [OperandStore; MAX_OPERANDS],
}

/// Where an operand is stored, by its index there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OperandStore {
    /// Among the values of the step, or nowhere, if there is no such operand: its bytes do not count.
    Step,
    Weights(usize),
    State(usize),
}

impl InstructionWork {
    /// The amount of a step.
    pub fn amount(&self, step: WorkStep<'_>, weights: &CpuWeights, state: &CpuState) -> Amount {
        let NodeWork { multiply_adds, other_operations: _, reads } = self.call.work(step);
        let bytes = self.stored.iter().zip(reads).map(|(stored, reads)| match (*stored, reads) {
            (OperandStore::Weights(index), Reads::All) => weights.bytes(index),
            (OperandStore::Weights(index), Reads::Rows(rows)) => rows * weights.row_bytes(index),
            (OperandStore::State(index), Reads::Positions(ReadPositions { distinct, by_row: _ })) => {
                distinct * state.tensor(index).position_bytes()
            }
            (OperandStore::Step | OperandStore::Weights(_) | OperandStore::State(_), _) => 0,
        });
        Amount { bytes: bytes.sum(), operations: 2 * multiply_adds }
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        amounts.fold(Amount::default(), |a, b| Amount {
            bytes: a.bytes + b.bytes,
            operations: a.operations + b.operations,
        })
    }
}
