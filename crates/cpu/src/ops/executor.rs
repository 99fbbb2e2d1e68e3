//! What operators compute with, and the rows of the step that they compute.

use girih_graph::backend::Sequence;

use crate::kernels::Table;
use crate::memory::Aligned;
use crate::pool::ThreadPool;
use crate::state::SequenceBlocks;

/// The kernels, the threads, and the memory of each thread.
pub(crate) struct Executor<'a> {
    pub table: &'a Table,
    pub pool: &'a ThreadPool,
    pub locals: &'a mut [Aligned<f32>],
    /// Memory that threads share.
    pub partials: &'a mut [f32],
    /// Words that threads share.
    pub words: &'a mut [u32],
    /// How the current operator is computed, for `profile`; an operator with several
    /// variants sets it, for example to `["gemm", table.name, "int8", "q4_0"]`.
    pub variant: [&'static str; 4],
}

/// The rows of a step, and which of them are output rows.
#[derive(Clone, Copy)]
pub(crate) struct StepRows<'a> {
    pub sequences: &'a [Sequence<'a>],
    /// One entry for each row of the step.
    pub origins: &'a [RowOrigin],
    /// The indexes of the output rows, in order.
    pub output_rows: &'a [u32],
}

impl<'a> StepRows<'a> {
    /// The blocks of the sequence that `row` belongs to.
    pub fn blocks(&self, row: usize) -> SequenceBlocks<'a> {
        let index = self.origins[row].sequence as usize;
        SequenceBlocks::of(&self.sequences[index], index)
    }
}

/// The sequence and the position of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowOrigin {
    /// The index of its sequence.
    pub sequence: u32,
    /// Its position in that sequence.
    pub position: u32,
}
