//! The operators over all rows of a step: how each is cut into pieces for the
//! threads, and which kernels a piece calls.

pub(crate) mod attend;
pub(crate) mod linear;
mod rope;
mod rows;
pub(crate) mod write;

use girih_graph::backend::Sequence;

use crate::kernels::Table;
use crate::memory::Aligned;
use crate::pool::Pool;

pub(crate) use attend::{Heads, attend};
pub(crate) use linear::{Finish, MOST_PRODUCTS, Product, arranged, foresee, linear};
pub(crate) use rope::{StepTurns, rope};
pub(crate) use rows::{elementwise, embed, norm, take};
pub(crate) use write::{MOST_WRITES, Written, write};

/// What computes: kernels, threads, and memory of each thread's own.
pub(crate) struct Executor<'a> {
    pub table: &'a Table,
    pub pool: &'a Pool,
    pub locals: &'a mut [Aligned<f32>],
    /// Room for the partial sums of attention.
    pub partials: &'a mut [f32],
    /// Which of its ways to compute the present operator took, in words, for
    /// `profile`: an operator with several says so,
    /// `executor.variant = ["gemm", table.name, "int8", "q4_0"]`.
    pub variant: [&'static str; 4],
}

/// Whose rows they are, and which of them are output rows.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub sequences: &'a [Sequence<'a>],
    /// One entry for each row of the step.
    pub origins: &'a [Origin],
    /// the output rows, in order.
    pub output_rows: &'a [u32],
}

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The index of its sequence.
    pub sequence: u32,
    /// Its position in the sequence's sequence.
    pub position: u32,
}
