//! Rotary positions: the turns of a step's rows, and their heads turned.
//!
//! The turns follow from the positions and the frequencies, which many layers
//! share: they are computed once in a step. A step of 512 rows and 32 pairs of
//! a head needs 16 384 sines and cosines instead of as many for each layer's
//! queries and again for its keys.

use girih_graph::{Error, Pairing};

use super::rows::by_rows;
use super::{Executor, Rows};
use crate::kernels::Rotation;
use crate::memory::Aligned;
use crate::pool::Grid;

/// Pairs of a piece when turns are computed: about 0.1 ms of sines and cosines.
const PIECE: usize = 1 << 11;

/// The turns of all rows of a step by one weight of frequencies, in memory that
/// was made for the largest step.
#[derive(Debug)]
pub(crate) struct StepTurns {
    /// For each row the cosines and then the sines of its pairs.
    values: Aligned<f32>,
    /// Pairs of a head.
    pairs: usize,
    /// Whether they are those of the present step.
    fresh: bool,
}

impl StepTurns {
    /// Room for the turns of so many rows.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(rows: usize, pairs: usize) -> Result<StepTurns, Error> {
        let values = Aligned::zeroed(StepTurns::len(rows, pairs), "a table of sines and cosines")?;
        Ok(StepTurns { values, pairs, fresh: false })
    }

    /// The bytes that the turns of so many rows take.
    pub fn bytes(rows: usize, pairs: usize) -> u64 {
        Aligned::<f32>::bytes(StepTurns::len(rows, pairs))
    }

    fn len(rows: usize, pairs: usize) -> usize {
        rows.saturating_mul(pairs).saturating_mul(2)
    }

    /// Begins a step: what was computed for the one before counts no longer.
    pub fn forget(&mut self) {
        self.fresh = false;
    }

    /// Computes the turns of a step's rows, unless that was done in this step.
    ///
    /// The angle is rounded to `f32` before its sine and cosine are taken, as
    /// the definition of the operator says.
    pub fn fill(&mut self, executor: &mut Executor<'_>, frequencies: &[f32], rows: Rows<'_>) {
        if self.fresh {
            return;
        }
        self.fresh = true;
        assert_eq!(
            frequencies.len(),
            self.pairs,
            "programs run with the weights that they were compiled for"
        );
        let width = 2 * self.pairs;
        let values = &mut self.values[..rows.origins.len() * width];
        let grid = Grid { width, row_step: (PIECE / self.pairs).max(1), column_step: width };
        executor.pool.tiles(executor.locals, values, grid, |tile, _| {
            for row in tile.rows() {
                let position = rows.origins[row].position as f32;
                let (cosines, sines) = tile.row(row).split_at_mut(frequencies.len());
                for ((sine, cosine), frequency) in sines.iter_mut().zip(cosines).zip(frequencies) {
                    let exact = f64::from(position * frequency).sin_cos();
                    (*sine, *cosine) = (exact.0 as f32, exact.1 as f32);
                }
            }
        });
    }

    /// The turns of a row.
    pub fn row(&self, row: usize) -> Rotation<'_> {
        let (cosines, sines) =
            self.values[2 * self.pairs * row..2 * self.pairs * (row + 1)].split_at(self.pairs);
        Rotation { cosines, sines }
    }
}

/// Rotation every head of every row; `stride` values a row. The step's turns have
/// been filled.
pub(crate) fn rope(
    executor: &mut Executor<'_>,
    x: &[f32],
    stride: usize,
    turns: &StepTurns,
    pairing: Pairing,
    output: &mut [f32],
) {
    let kernels = executor.table;
    executor.pool.tiles(executor.locals, output, by_rows(stride), |tile, _| {
        for row in tile.rows() {
            let x = &x[row * stride..(row + 1) * stride];
            (kernels.rotate)(x, turns.row(row), pairing, tile.row(row));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;
    use crate::kernels::tables;
    use crate::pool::Pool;

    /// The turns after steps at these first positions, of 200 rows each.
    fn turns_after(steps: &[u32], threads: usize) -> Vec<f32> {
        let (table, pool) = (tables()[0], Pool::new(threads).unwrap());
        let mut locals: Vec<_> = (0..threads).map(|_| Aligned::zeroed(0, "a test").unwrap()).collect();
        let mut executor =
            Executor { table: &table, pool: &pool, locals: &mut locals, partials: &mut [], variant: [""; 4] };
        let mut turns = StepTurns::new(200, 33).unwrap();
        let frequencies: Vec<f32> = (0..33).map(|i| 1.0 / (1.0 + i as f32)).collect();
        for first in steps {
            let origins: Vec<_> = (0..200).map(|row| Origin { sequence: 0, position: first + row }).collect();
            let rows = Rows { sequences: &[], origins: &origins, output_rows: &[] };
            turns.forget();
            turns.fill(&mut executor, &frequencies, rows);
            // Filled once in a step: these would not be finite.
            turns.fill(&mut executor, &[f32::INFINITY; 33], rows);
        }
        turns.values.to_vec()
    }

    #[test]
    fn turns_are_those_of_the_present_step_and_computed_once_in_it() {
        for threads in 1..=3 {
            let turns = turns_after(&[0, 131_000, 7], threads);
            assert_eq!(turns, turns_after(&[7], 1), "{threads} threads");
            let angle = f64::from(9.0f32 * (1.0 / 6.0));
            assert_eq!(turns[2 * 66 + 5], angle.cos() as f32);
            assert_eq!(turns[2 * 66 + 33 + 5], angle.sin() as f32);
        }
    }
}
