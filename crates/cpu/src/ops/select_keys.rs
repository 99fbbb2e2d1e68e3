//! The choice of the positions that a row attends to.
//!
//! ```text
//! for each tile of 32 keys, in 32 lanes:  product = Σ q[dim] · k[dim], dims in order
//!                                         score   = Σ weight · max(product, 0), heads in order
//! least = the score of rank `best`
//! selected: all above it, and of those equal to it the first ones
//! ```
//! Nothing is fused and all sums are in order, so all tables select the same positions, whatever else a step has. A row
//! is one piece of work. In a step of few rows, scores are computed first, in pieces of 128 positions, and each row chooses
//! then: by the same sums. Bytes moved: the keys of the positions seen, once for each row.

use std::ops::Range;

use girih_graph::{Graph, SELECTION_POSITIONS, Span, ValueId, select};

use super::executor::{Executor, StepRows};
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::attend::KEY_TILE;
use crate::kernels::{CpuKernel, Table};
use crate::pool::Grid;
use crate::state::StateTensor;

/// `scores` = those of a tile of decoded keys, `[dim][KEY_TILE]`. Bytes: the tile, from L1 for each head.
pub struct ScoreTile<'a> {
    pub q: &'a [f32],
    pub weights: &'a [f32],
    pub keys: &'a [f32],
    pub scores: &'a mut [f32],
}

impl CpuKernel for ScoreTile<'_> {
    #[inline(always)]
    fn run(self) {
        let ScoreTile { q, weights, keys, scores } = self;
        let (keys, mut sums) = (keys.as_chunks::<KEY_TILE>().0, [0.0; KEY_TILE]);
        for (weight, q) in weights.iter().zip(q.chunks_exact(keys.len().max(1))) {
            let mut products = [0.0; KEY_TILE];
            for (q, keys) in q.iter().zip(keys) {
                products.iter_mut().zip(keys).for_each(|(product, key)| *product += q * key);
            }
            for (sum, product) in sums.iter_mut().zip(products) {
                // A comparison that lets NaN pass.
                *sum += weight * if product < 0.0 { 0.0 } else { product };
            }
        }
        scores.copy_from_slice(&sums[..scores.len()]);
    }
}

/// The number of rows up to which the scores of a row are pieces of work of their own.
const FEW_ROWS: usize = 8;

/// The positions of such a piece.
const PIECE_POSITIONS: usize = 4 * KEY_TILE;

/// What the scores of a row are computed of.
struct Scorer<'a> {
    rows: StepRows<'a>,
    q: &'a [f32],
    weights: &'a [f32],
    keys: &'a StateTensor,
    heads: usize,
    size: usize,
    table: &'a Table,
}

impl Scorer<'_> {
    /// The positions that a row sees.
    fn seen(&self, row: usize) -> Range<usize> {
        let origin = &self.rows.origins[row];
        self.rows.sequences[origin.sequence as usize].sees(Span::Full, origin.position as usize)
    }

    /// Fills `scores`, of positions from `first` on, which begins a tile, with those of a row. `decoded` is room for a
    /// tile of keys.
    fn fill(&self, row: usize, first: usize, scores: &mut [f32], decoded: &mut [f32]) {
        let format = self.keys.format();
        let tile_bytes = format.bytes(KEY_TILE, self.size);
        let blocks = self.rows.blocks(row);
        let q = &self.q[row * self.heads * self.size..][..self.heads * self.size];
        let weights = &self.weights[row * self.heads..][..self.heads];
        for (index, scores) in (first / KEY_TILE..).zip(scores.chunks_mut(KEY_TILE)) {
            let (block, part) = (index / PER_BLOCK, index % PER_BLOCK);
            let stored = &self.keys.head(blocks, 0, block)[part * tile_bytes..][..tile_bytes];
            (self.table.attend.widen_keys)(format, stored, &[], decoded);
            self.table.run(ScoreTile { q, weights, keys: decoded, scores });
        }
    }
}

/// Selects `best` positions for each row.
pub(crate) fn bind(graph: &Graph, best: usize, [q, weights, keys]: [ValueId; 3], y: ValueId) -> BoundOp {
    let (key, context) = (graph.value(keys).shape, graph.key.context as usize);
    let (size, heads) = (key.columns(), graph.value(weights).shape.columns());
    let tiles = context.next_multiple_of(KEY_TILE);
    let run = BoundOp::new(move |step| {
        let numbers = step.values.stride(y);
        let keys = step.state.tensor(step.values.state(keys));
        let (y, [q, weights]) = step.values.split(y, [q, weights]);
        let Executor { table, pool, locals, partials, .. } = &mut step.executor;
        let scorer = Scorer { rows: step.rows, q, weights, keys, heads, size, table };
        let count = y.len() / numbers.max(1);
        let few = (count <= FEW_ROWS).then(|| &mut partials[..count * tiles]);
        let scored: Option<&[f32]> = few.map(|scores| {
            let grid = Grid { width: tiles, row_step: 1, column_step: PIECE_POSITIONS };
            pool.tiles(locals, scores, grid, |tile, scratch| {
                for row in tile.rows() {
                    let (first, end) = (tile.columns().start, scorer.seen(row).end.min(tile.columns().end));
                    let scores = &mut tile.row(row)[..end.saturating_sub(first)];
                    scorer.fill(row, first, scores, &mut scratch[..size * KEY_TILE]);
                }
            });
            &*scores
        });
        pool.tiles(locals, y, Grid { width: numbers, row_step: 1, column_step: numbers }, |tile, scratch| {
            let (decoded, scratch) = scratch.split_at_mut(size * KEY_TILE);
            let (own, ranked) = scratch.split_at_mut(tiles);
            for row in tile.rows() {
                let seen = scorer.seen(row);
                let scores = match scored {
                    Some(scored) => &scored[row * tiles..][..tiles],
                    None => {
                        scorer.fill(row, 0, &mut own[..seen.end], decoded);
                        &*own
                    }
                };
                let selection = tile.row(row);
                selection.fill(0.0);
                take(&scores[seen.clone()], seen.start, best, &mut ranked[..seen.len()], selection);
            }
        });
    });
    let local = size * KEY_TILE + 2 * tiles;
    let partials = FEW_ROWS.min(graph.key.rows as usize) * tiles;
    BoundOp { scratch: OpScratch { local, partials, ..OpScratch::default() }, ..run }
}

/// Tiles of keys in a block of state.
const PER_BLOCK: usize = girih_graph::BLOCK_POSITIONS / KEY_TILE;

/// Selects the `best` of `scores`, of equal ones the first; the first score is that of the position `first`.
fn take(scores: &[f32], first: usize, best: usize, ranked: &mut [f32], selection: &mut [f32]) {
    debug_assert!((first + scores.len()).div_ceil(SELECTION_POSITIONS) <= selection.len());
    if scores.len() <= best {
        (0..scores.len()).for_each(|index| select(selection, first + index));
        return;
    }
    ranked.copy_from_slice(scores);
    let (above, least, _) = ranked.select_nth_unstable_by(best - 1, |a, b| b.total_cmp(a));
    let mut equal = 1 + above.iter().filter(|score| score.total_cmp(least).is_eq()).count();
    for (index, score) in scores.iter().enumerate() {
        let order = score.total_cmp(least);
        if order.is_gt() || order.is_eq() && equal > 0 {
            equal -= usize::from(order.is_eq());
            select(selection, first + index);
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::is_selected;

    use super::*;

    #[test]
    fn of_equal_scores_the_first_are_taken() {
        let taken = |scores: &[f32], best: usize| {
            let mut selection = [0.0; 2];
            take(scores, 12, best, &mut vec![0.0; scores.len()], &mut selection);
            (0..32).filter(|position| is_selected(&selection, *position)).collect::<Vec<usize>>()
        };
        assert_eq!(taken(&[1.0, 2.0, 1.0, 3.0, 1.0], 3), [12, 13, 15]);
        assert_eq!(taken(&[1.0, 2.0, 1.0, 3.0, 1.0], 4), [12, 13, 14, 15]);
        assert_eq!(taken(&[0.0; 5], 2), [12, 13]);
        assert_eq!(taken(&[1.0, 2.0], 3), [12, 13]);
        assert_eq!(taken(&[f32::NAN, 2.0, f32::INFINITY], 1), [12]);
    }
}
