//! The ops that replace what each sequence carries, row by row.

use std::borrow::Cow;
use std::ops::Range;

use girih_tensor::Result;

use super::values::Values;
use super::weights::WeightRows;
use crate::ops::short_conv;
use crate::ops::ssm_scan::{self, ScanRow, ScanRule};
use crate::sequence::BLOCK_POSITIONS;
use crate::state::PositionMajor;
use crate::value::ValueId;

fn row_of(values: &[f32], row: usize, width: usize) -> &[f32] {
    &values[row * width..][..width]
}

impl Values<'_> {
    /// Runs a short convolution, and replaces what each sequence carries.
    pub(super) fn short_conv(
        &self,
        [x, taps, carried]: [ValueId; 3],
        bias: Option<ValueId>,
        weights: &dyn WeightRows,
        state: &mut PositionMajor,
    ) -> Result<Vec<f32>> {
        let (rows, width) = (self.read(x)?, self.graph.value(x).shape.columns());
        let bias = bias.map(|bias| self.vector(bias, weights)).transpose()?;
        let (taps, carried) = (self.vector(taps, weights)?, self.graph.value(carried));
        let (kept, mut result) = (carried.shape.elements(), Vec::with_capacity(rows.len()));
        for sequence in self.sequences {
            let Range { start, end } = sequence.rows.indexes();
            let mut held = state.carried(&carried.name, sequence)?;
            held.extend_from_slice(&rows[start * width..end * width]);
            result.extend(short_conv::define(&held, &taps, bias.as_deref(), width));
            for (count, position) in (1..=end - start).zip(sequence.position as usize..) {
                if (position + 1).is_multiple_of(BLOCK_POSITIONS) || count == end - start {
                    state.carry(&carried.name, sequence, position, &held[count * width..][..kept])?;
                }
            }
        }
        Ok(result)
    }

    /// Runs a scan, and replaces what each sequence carries.
    pub(super) fn ssm_scan(
        &self,
        (least, most): (f32, Option<f32>),
        rows: [ValueId; 4],
        vectors: [ValueId; 3],
        carried: ValueId,
        weights: &dyn WeightRows,
        state: &mut PositionMajor,
    ) -> Result<Vec<f32>> {
        let b = self.graph.value(rows[2]).shape;
        let [x, dt, b_rows, c] = rows.map(|id| Ok((self.read(id)?, self.graph.value(id).shape.stride())));
        let [(x, x_width), (dt, dt_width), (b_rows, b_width), (c, _)] = [x?, dt?, b_rows?, c?];
        let [a, d, bias] = vectors.map(|id| self.vector(id, weights));
        let (a, d, bias) = (a?, d?, bias?);
        let (groups, columns) = (b.extents()[1], b.columns());
        let rule = ScanRule { least, most, a: &a, d: &d, bias: &bias, groups, columns };
        let (carried, mut result) = (&self.graph.value(carried).name, Vec::with_capacity(x.len()));
        for sequence in self.sequences {
            let rows = sequence.rows.indexes();
            let (mut held, end) = (state.carried(carried, sequence)?, rows.end);
            for (row, position) in rows.zip(sequence.position as usize..) {
                let row_of_each = ScanRow {
                    x: row_of(x, row, x_width),
                    dt: row_of(dt, row, dt_width),
                    b: row_of(b_rows, row, b_width),
                    c: row_of(c, row, b_width),
                };
                result.extend(ssm_scan::define(rule, row_of_each, &mut held));
                if (position + 1).is_multiple_of(BLOCK_POSITIONS) || row + 1 == end {
                    state.carry(carried, sequence, position, &held)?;
                }
            }
        }
        Ok(result)
    }

    /// All numbers of a weight.
    fn vector<'w>(&self, id: ValueId, weights: &'w dyn WeightRows) -> Result<Cow<'w, [f32]>> {
        let value = self.graph.value(id);
        weights.rows(&value.name, 0..value.shape.rows())
    }
}
