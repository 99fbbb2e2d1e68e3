//! The gated delta rule over the rows of each sequence.

use std::ops::Range;

use girih_tensor::Result;

use super::values::Values;
use super::weights::WeightRows;
use crate::constant::HeadSharing;
use crate::ops::delta_rule::{self, DeltaRow};
use crate::sequence::BLOCK_POSITIONS;
use crate::state::PositionMajor;
use crate::value::ValueId;

impl Values<'_> {
    /// Runs a delta rule over these rows (queries, keys, values, betas, steps), and replaces what each
    /// sequence carries.
    pub(super) fn delta_rule(
        &self,
        rows: [ValueId; 5],
        sharing: HeadSharing,
        [a, carried]: [ValueId; 2],
        weights: &dyn WeightRows,
        state: &mut PositionMajor,
    ) -> Result<Vec<f32>> {
        let [a, carried] = [a, carried].map(|id| self.graph.value(id));
        let a = weights.rows(&a.name, 0..a.shape.rows())?;
        let strides = rows.map(|id| self.graph.value(id).shape.stride());
        let mut read = [&[][..]; 5];
        for (read, id) in read.iter_mut().zip(rows) {
            *read = self.read(id)?;
        }
        let mut result = Vec::with_capacity(read[2].len());
        for sequence in self.sequences {
            let Range { start, end } = sequence.rows.indexes();
            let mut held = state.carried(&carried.name, sequence)?;
            for (row, position) in (start..end).zip(sequence.position as usize..) {
                let of_row = |operand: usize| &read[operand][row * strides[operand]..][..strides[operand]];
                let [q, k, v, beta, dt] = [0, 1, 2, 3, 4].map(of_row);
                result.extend(delta_rule::define(&DeltaRow { q, k, v, beta, dt }, sharing, &a, &mut held));
                if (position + 1).is_multiple_of(BLOCK_POSITIONS) || row + 1 == end {
                    state.carry(&carried.name, sequence, position, &held)?;
                }
            }
        }
        Ok(result)
    }
}
