//! The rotations of RoPE.
//!
//! Sines and cosines depend on positions and frequencies only, which layers share,
//! so a step computes them once: with 512 rows and 32 pairs per head, 16,384 sines
//! and cosines, instead of that number for the queries and for the keys of each
//! layer.

use girih_graph::{Error, Graph, Op, Pairing, ValueId};

use super::executor::{Executor, StepRows};
use crate::memory::Aligned;
use crate::pool::Grid;

/// Pairs in a piece of computing rotations: about 0.1 ms.
const ROTATION_PIECE_PAIRS: usize = 1 << 11;

/// The angles by which the pairs of a head are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// The cosine for each pair.
    pub cosines: &'a [f32],
    /// The sine for each pair.
    pub sines: &'a [f32],
}

/// What the rotations of a step follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RotationTable {
    pub frequencies: ValueId,
    /// Multiplies sines and cosines.
    pub factor: Option<f32>,
    /// The positions of each row, if they are not those of its sequence.
    pub positions: Option<ValueId>,
}

/// How an op rotates heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeParams {
    pub rotations: RotationTable,
    /// The index of the step's rotations among the program's.
    pub table: usize,
    pub pairing: Pairing,
}

impl RopeParams {
    pub fn new(graph: &Graph, pairing: Pairing, rotations: RotationTable) -> RopeParams {
        let table = rotation_tables(graph).iter().position(|table| *table == rotations);
        let table = table.expect("the rotations of every rope are listed");
        RopeParams { rotations, table, pairing }
    }
}

/// What the rotations of a graph follow from, each once.
pub(crate) fn rotation_tables(graph: &Graph) -> Vec<RotationTable> {
    let mut tables = Vec::new();
    for node in &graph.nodes {
        let Op::Rope { pairing: _, factor } = node.op else { continue };
        let positions = node.inputs.get(2).copied();
        let table = RotationTable { frequencies: node.inputs[1], factor, positions };
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables
}

/// The rotations of all rows of a step by one table, in memory for the largest step.
#[derive(Debug)]
pub(crate) struct StepRotations {
    /// For each row, the cosines and then the sines of its pairs.
    values: Aligned<f32>,
    /// Pairs in a head.
    pairs: usize,
    /// Whether the values are those of the current step.
    filled: bool,
}

impl StepRotations {
    /// Allocates memory for the rotations of `rows` rows of `pairs` pairs each.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(rows: usize, pairs: usize) -> Result<StepRotations, Error> {
        let values = Aligned::zeroed(StepRotations::len(rows, pairs), "a table of sines and cosines")?;
        Ok(StepRotations { values, pairs, filled: false })
    }

    /// The bytes that the rotations of `rows` rows of `pairs` pairs take.
    pub fn bytes(rows: usize, pairs: usize) -> u64 {
        Aligned::<f32>::bytes(StepRotations::len(rows, pairs))
    }

    fn len(rows: usize, pairs: usize) -> usize {
        rows.saturating_mul(pairs).saturating_mul(2)
    }

    /// Invalidates the values at the start of a step.
    pub fn clear(&mut self) {
        self.filled = false;
    }

    /// Computes the rotations of a step's rows, once per step.
    ///
    /// The angle is rounded to `f32` before its sine and cosine are computed, as
    /// the operator's definition states; sine and cosine are rounded once, with the factor.
    pub fn fill(
        &mut self,
        executor: &mut Executor<'_>,
        frequencies: &[f32],
        factor: Option<f32>,
        positions: Option<&[f32]>,
        rows: StepRows<'_>,
    ) {
        if self.filled {
            return;
        }
        self.filled = true;
        let count = rows.origins.len();
        let streams = positions.map_or(1, |positions| positions.len() / count.max(1));
        assert_eq!(
            frequencies.len(),
            self.pairs * streams,
            "programs run with the weights that they were compiled for"
        );
        let (width, factor) = (2 * self.pairs, f64::from(factor.unwrap_or(1.0)));
        let values = &mut self.values[..count * width];
        let grid = Grid { width, row_step: (ROTATION_PIECE_PAIRS / self.pairs).max(1), column_step: width };
        executor.pool.tiles(executor.locals, values, grid, |tile, _| {
            for row in tile.rows() {
                let own = [rows.origins[row].position as f32];
                let at = positions.map_or(&own[..], |given| &given[row * streams..(row + 1) * streams]);
                let (cosines, sines) = tile.row(row).split_at_mut(width / 2);
                let pairs = frequencies.chunks_exact(streams);
                for ((sine, cosine), frequencies) in sines.iter_mut().zip(cosines).zip(pairs) {
                    let exact = f64::from(angle(at, frequencies)).sin_cos();
                    (*sine, *cosine) = ((factor * exact.0) as f32, (factor * exact.1) as f32);
                }
            }
        });
    }

    /// Returns the rotations of a row.
    pub fn row(&self, row: usize) -> Rotation<'_> {
        let (cosines, sines) =
            self.values[2 * self.pairs * row..2 * self.pairs * (row + 1)].split_at(self.pairs);
        Rotation { cosines, sines }
    }
}

/// The angle of a pair, each product and each sum rounded to `f32`.
fn angle(positions: &[f32], frequencies: &[f32]) -> f32 {
    let mut sum = positions[0] * frequencies[0];
    for (position, frequency) in positions.iter().zip(frequencies).skip(1) {
        sum += position * frequency;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::executor::RowOrigin;
    use super::*;
    use crate::kernels::tables;
    use crate::pool::ThreadPool;

    /// The rotations after steps of 200 rows that begin at these positions.
    fn rotations_after(steps: &[u32], threads: usize) -> Vec<f32> {
        let (table, pool) = (tables()[0], ThreadPool::new(threads).unwrap());
        let mut locals: Vec<_> = (0..threads).map(|_| Aligned::zeroed(0, "a test").unwrap()).collect();
        let mut executor = Executor {
            table: &table,
            pool: &pool,
            locals: &mut locals,
            partials: &mut [],
            words: &mut [],
            variant: [""; 4],
        };
        let mut rotations = StepRotations::new(200, 33).unwrap();
        let frequencies: Vec<f32> = (0..33).map(|i| 1.0 / (1.0 + i as f32)).collect();
        for first in steps {
            let origins: Vec<_> =
                (0..200).map(|row| RowOrigin { sequence: 0, position: first + row }).collect();
            let rows = StepRows { sequences: &[], origins: &origins, output_rows: &[] };
            rotations.clear();
            rotations.fill(&mut executor, &frequencies, None, None, rows);
            // A second fill would write values that are not finite.
            rotations.fill(&mut executor, &[f32::INFINITY; 33], None, None, rows);
        }
        rotations.values.to_vec()
    }

    #[test]
    fn rotations_are_those_of_the_current_step_and_computed_once() {
        for threads in 1..=3 {
            let rotations = rotations_after(&[0, 131_000, 7], threads);
            assert_eq!(rotations, rotations_after(&[7], 1), "{threads} threads");
            let angle = f64::from(9.0f32 * (1.0 / 6.0));
            assert_eq!(rotations[2 * 66 + 5], angle.cos() as f32);
            assert_eq!(rotations[2 * 66 + 33 + 5], angle.sin() as f32);
        }
    }
}
