//! What an op reads and writes in one step.

use girih_graph::ValueId;

use crate::ops::{Executor, StepRotations, StepRows};
use crate::packed_matrix::PackedMatrix;
use crate::state::CpuState;
use crate::step_values::{StepValues, ValueStore};
use crate::weights::{CpuWeights, TableRows};

/// One step while it runs.
pub(crate) struct CpuStep<'a> {
    pub executor: Executor<'a>,
    pub rows: StepRows<'a>,
    pub values: StepValues<'a>,
    pub weights: StepWeights<'a>,
    pub state: &'a mut CpuState,
    /// Keys and values of attention to rows of the step.
    pub step_state: &'a mut CpuState,
    /// One entry for each weight of frequencies and factor.
    pub rotations: &'a mut [StepRotations],
}

/// The weights of a program.
#[derive(Clone, Copy)]
pub(crate) struct StepWeights<'a> {
    pub loaded: &'a CpuWeights,
    pub stores: &'a [ValueStore],
}

impl<'a> StepWeights<'a> {
    fn index(self, id: ValueId) -> usize {
        match self.stores[id.0 as usize] {
            ValueStore::Weight(index) => index,
            ValueStore::Step(_) | ValueStore::State(_) => unreachable!("checked: the operand is a weight"),
        }
    }

    pub fn vector(self, id: ValueId) -> &'a [f32] {
        self.loaded.vector(self.index(id))
    }

    /// The matrices of all experts.
    pub fn experts(self, id: ValueId) -> &'a [PackedMatrix] {
        self.loaded.experts(self.index(id))
    }

    /// The table that rows are read from.
    pub fn table(self, id: ValueId) -> TableRows<'a> {
        self.loaded.table(self.index(id))
    }

    pub fn matrix(self, id: ValueId) -> &'a PackedMatrix {
        self.loaded.matrix(self.index(id))
    }
}
