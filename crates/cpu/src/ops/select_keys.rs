//! The choice of the positions that a row attends to.
//!
//! ```text
//! for each tile of 32 keys, in 32 lanes:  product = Σ q[dim] · k[dim], dims in order
//!                                         score   = Σ weight · max(product, 0), heads in order
//! least = the score of rank `best`
//! selected: all above it, and of those equal to it the first ones
//! ```
//! Nothing is fused and all sums are in order, so all tables select the same positions, whatever else a step has. A row
//! is one piece of work. Bytes moved: the keys of the positions seen, once for each row.

use girih_graph::{Graph, SELECTION_POSITIONS, Span, ValueId, select};

use super::executor::Executor;
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::CpuKernel;
use crate::kernels::attend::KEY_TILE;
use crate::pool::Grid;

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

/// Selects `best` positions for each row.
pub(crate) fn bind(graph: &Graph, best: usize, [q, weights, keys]: [ValueId; 3], y: ValueId) -> BoundOp {
    let (key, context) = (graph.value(keys).shape, graph.key.context as usize);
    let (size, heads) = (key.columns(), graph.value(weights).shape.columns());
    let tiles = context.next_multiple_of(KEY_TILE);
    let run = BoundOp::new(move |step| {
        let numbers = step.values.stride(y);
        let keys = step.state.tensor(step.values.state(keys));
        let (y, [q, weights]) = step.values.split(y, [q, weights]);
        let rows = step.rows;
        let Executor { table, pool, locals, .. } = &mut step.executor;
        let table = *table;
        let format = keys.format();
        let tile_bytes = format.bytes(KEY_TILE, size);
        pool.tiles(locals, y, Grid { width: numbers, row_step: 1, column_step: numbers }, |tile, scratch| {
            let (decoded, scratch) = scratch.split_at_mut(size * KEY_TILE);
            let (scores, ranked) = scratch.split_at_mut(tiles);
            for row in tile.rows() {
                let sequence = &rows.sequences[rows.origins[row].sequence as usize];
                let seen = sequence.sees(Span::Full, rows.origins[row].position as usize);
                let blocks = rows.blocks(row);
                let q = &q[row * heads * size..][..heads * size];
                let weights = &weights[row * heads..][..heads];
                for (index, scores) in scores[..seen.end].chunks_mut(KEY_TILE).enumerate() {
                    let (block, part) = (index / PER_BLOCK, index % PER_BLOCK);
                    let stored = &keys.head(blocks, 0, block)[part * tile_bytes..][..tile_bytes];
                    (table.attend.widen_keys)(format, stored, decoded);
                    table.run(ScoreTile { q, weights, keys: decoded, scores });
                }
                let selection = tile.row(row);
                selection.fill(0.0);
                take(&scores[seen.clone()], seen.start, best, &mut ranked[..seen.len()], selection);
            }
        });
    });
    let local = size * KEY_TILE + 2 * tiles;
    BoundOp { scratch: OpScratch { local, ..OpScratch::default() }, ..run }
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
