//! The work of a node in a step, on any device: what it reads and what it computes. A device that
//! stores the operands turns reads into bytes.

use girih_tensor::Shape;

use crate::constant::Span;
use crate::sequence::{Sequence, step_count};
use crate::value::Extent;

/// The largest number of operands of an op.
pub const MAX_OPERANDS: usize = 8;

/// What a node must do in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeWork {
    /// Multiplications that are followed by an addition each: those of matmuls, attention and
    /// short convolutions.
    pub multiply_adds: u64,
    /// Other operations, estimated; an activation counts as ten.
    pub other_operations: u64,
    /// What is read of each operand.
    pub reads: [Reads; MAX_OPERANDS],
}

/// What a node reads of an operand in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// Nothing, or there is no such operand.
    #[default]
    Nothing,
    /// Everything: a whole weight, all rows of the step, or the carried value of each sequence.
    All,
    /// This number of rows.
    Rows(u64),
    /// Positions of the sequences.
    Positions(ReadPositions),
}

/// The positions that the rows of a step read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPositions {
    /// Those that any row reads, each counted once.
    pub distinct: u64,
    /// The sum of those that each row reads.
    pub by_row: u64,
}

/// A step, as the work of a node in it depends on it.
#[derive(Clone, Copy, Debug)]
pub struct WorkStep<'a> {
    /// Rows of the node's result; of a write, the rows that it stores.
    pub rows: u64,
    /// The sequences of the step.
    pub sequences: &'a [Sequence<'a>],
    /// The experts that its rows have chosen, each counted once; without it, as many as they would choose at random.
    pub experts: Option<u64>,
}

impl WorkStep<'_> {
    /// The numbers in the rows of the result, if each has `shape`'s.
    pub(crate) fn elements(&self, shape: Shape) -> u64 {
        self.rows * shape.stride() as u64
    }

    /// The rows of the step.
    pub(crate) fn all_rows(&self) -> u64 {
        step_count(self.sequences, Extent::Rows) as u64
    }

    /// The positions that the rows of the step attend to.
    pub(crate) fn positions(&self, span: Span) -> ReadPositions {
        let (mut distinct, mut by_row) = (0, 0);
        for sequence in self.sequences {
            let (mut first, mut end) = (usize::MAX, 0);
            for position in (sequence.position as usize..).take(sequence.rows.indexes().len()) {
                let seen = sequence.sees(span, position);
                (first, end, by_row) = (first.min(seen.start), end.max(seen.end), by_row + seen.len() as u64);
            }
            distinct += end.saturating_sub(first) as u64;
        }
        ReadPositions { distinct, by_row }
    }
}

impl NodeWork {
    /// Reads the first `operands` operands whole.
    pub(crate) fn reading_all(operands: usize) -> NodeWork {
        let reads = std::array::from_fn(|index| if index < operands { Reads::All } else { Reads::Nothing });
        NodeWork { reads, ..NodeWork::default() }
    }

    /// Reads this of the first operands.
    pub(crate) fn reading<const N: usize>(first: [Reads; N]) -> NodeWork {
        let mut reads = [Reads::Nothing; MAX_OPERANDS];
        reads[..N].copy_from_slice(&first);
        NodeWork { reads, ..NodeWork::default() }
    }

    /// As [`NodeWork::reading_all`], with operations other than multiplications and additions of sums.
    pub(crate) fn each(operands: usize, other_operations: u64) -> NodeWork {
        NodeWork { other_operations, ..NodeWork::reading_all(operands) }
    }
}
