//! Attention: one pass over the positions, in chunks that lie at fixed places.
//!
//! ```text
//! for each chunk of 256 positions that the row sees some of, in order:
//!     scores  = cap(scale · q·k)           of the positions seen, no others
//!     top     = the largest score
//!     weights = exp(scores − top)
//!     partial = (top, Σ weights, Σ weights · v)
//!     running = running joined with partial
//! result = running's Σ weights · v / running's Σ weights
//! ```
//! Chunks begin at multiples of [`CHUNK`] of the absolute position, and a row
//! sees in a chunk what its own position says, so its sums are the same however
//! a prompt is cut into steps and whatever else a step holds. Positions that
//! are not seen are not read at all.
//!
//! A piece is one head of keys and values with a few rows of the step, so that
//! a chunk is decoded once for all of these rows and all query heads that share
//! it. Bytes moved: keys and values of the positions seen, once for
//! [`ROWS`] rows.

use std::ops::Range;

use girih_graph::BLOCK_POSITIONS;
use girih_graph::backend::Lane;

use super::{Executor, Rows};
use crate::kernels::{QUAD, Table};
use crate::lower::Attention;
use crate::pool::{Grid, Tile};
use crate::state::StateTensor;

/// Positions over which a partial sum is formed.
const CHUNK: usize = 4 * BLOCK_POSITIONS;

/// Rows of a piece.
const ROWS: usize = 8;

/// Numbers of scratch for pieces of heads of these sizes.
pub(crate) fn local_size(shared: usize, size: usize, value_size: usize) -> usize {
    CHUNK * (size + value_size) + CHUNK + value_size + 2 * ROWS * shared
}

/// The operands of attention besides the rows.
#[derive(Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub q: &'a [f32],
    pub keys: &'a StateTensor,
    pub values: &'a StateTensor,
}

/// Attends with every head of every row, each within its lane.
pub(crate) fn attend(
    executor: &mut Executor<'_>,
    heads: Heads<'_>,
    attention: Attention,
    rows: Rows<'_>,
    output: &mut [f32],
) {
    let table = executor.table;
    let column_step = attention.shared * attention.value_size;
    let grid = Grid { width: attention.groups * column_step, row_step: ROWS, column_step };
    executor.pool.tiles(executor.locals, output, grid, |tile, scratch| {
        let head = tile.columns().start / column_step;
        let mut row = tile.rows().start;
        while row < tile.rows().end {
            let lane = &rows.lanes[rows.origins[row].lane as usize];
            let part = row..tile.rows().end.min(lane.rows.end as usize);
            row = part.end;
            let piece = Piece { table, heads, attention, head, lane, rows: part };
            piece.attend(tile, Scratch::of(scratch, attention));
        }
    });
}

/// Some rows of one lane with one head of keys and values.
struct Piece<'a> {
    table: &'a Table,
    heads: Heads<'a>,
    attention: Attention,
    head: usize,
    lane: &'a Lane<'a>,
    rows: Range<usize>,
}

/// A thread's memory, divided.
struct Scratch<'a> {
    /// [`CHUNK`] keys.
    keys: &'a mut [f32],
    /// [`CHUNK`] values.
    values: &'a mut [f32],
    /// One number for each position of a chunk.
    scores: &'a mut [f32],
    /// A partial sum of values.
    blended: &'a mut [f32],
    /// The largest score and the sum of weights, for each query head of each row.
    running: &'a mut [[f32; 2]],
}

impl<'a> Scratch<'a> {
    fn of(scratch: &'a mut [f32], attention: Attention) -> Scratch<'a> {
        let (keys, rest) = scratch.split_at_mut(CHUNK * attention.size);
        let (values, rest) = rest.split_at_mut(CHUNK * attention.value_size);
        let (scores, rest) = rest.split_at_mut(CHUNK);
        let (blended, rest) = rest.split_at_mut(attention.value_size);
        let running = &mut rest.as_chunks_mut::<2>().0[..ROWS * attention.shared];
        Scratch { keys, values, scores, blended, running }
    }
}

impl Piece<'_> {
    /// The positions that a row sees.
    fn sees(&self, row: usize) -> Range<usize> {
        let position = self.lane.position as usize + row - self.lane.rows.start as usize;
        self.lane.sees(self.attention.span, position)
    }

    fn attend(&self, tile: &mut Tile<'_, f32>, mut scratch: Scratch<'_>) {
        scratch.running.fill([f32::NEG_INFINITY, 0.0]);
        self.rows.clone().for_each(|row| tile.row(row).fill(0.0));
        let seen = self.rows.clone().map(|row| self.sees(row)).reduce(union).unwrap_or(0..0);
        for start in (seen.start / CHUNK * CHUNK..seen.end).step_by(CHUNK) {
            let chunk = seen.start.max(start)..seen.end.min(start + CHUNK);
            self.heads.keys.read(self.table, self.lane, self.head, chunk.clone(), scratch.keys);
            self.heads.values.read(self.table, self.lane, self.head, chunk.clone(), scratch.values);
            self.chunk(chunk, tile, &mut scratch);
        }
        let shared = self.attention.shared;
        for (row, sums) in self.rows.clone().zip(scratch.running.chunks_exact(shared)) {
            let results = tile.row(row).chunks_exact_mut(self.attention.value_size);
            for (result, [_, sum]) in results.zip(sums) {
                result.iter_mut().for_each(|value| *value /= sum);
            }
        }
    }

    /// Joins what each row sees of a decoded chunk to what it saw before.
    fn chunk(&self, chunk: Range<usize>, tile: &mut Tile<'_, f32>, scratch: &mut Scratch<'_>) {
        let Attention { shared, size, value_size, .. } = self.attention;
        for (row, running) in self.rows.clone().zip(scratch.running.chunks_exact_mut(shared)) {
            let seen = self.sees(row);
            let part = seen.start.max(chunk.start)..seen.end.min(chunk.end);
            if part.is_empty() {
                continue;
            }
            let part = part.start - chunk.start..part.end - chunk.start;
            let keys = &scratch.keys[part.start * size..part.end * size];
            let values = &scratch.values[part.start * value_size..part.end * value_size];
            let scores = &mut scratch.scores[..part.len()];
            let results = tile.row(row).chunks_exact_mut(value_size);
            for (head, (running, result)) in running.iter_mut().zip(results).enumerate() {
                let partial = self.partial(row, head, keys, values, scores, scratch.blended);
                join(running, result, partial, scratch.blended);
            }
        }
    }

    /// Attends over some positions: the largest score, the sum of weights, and
    /// in `blended` the weighted sum of values.
    fn partial(
        &self,
        row: usize,
        head: usize,
        keys: &[f32],
        values: &[f32],
        scores: &mut [f32],
        blended: &mut [f32],
    ) -> [f32; 2] {
        let Attention { groups, shared, size, scale, softcap, .. } = self.attention;
        let at = ((row * groups + self.head) * shared + head) * size;
        let q = &self.heads.q[at..at + size];
        for (keys, scores) in keys.chunks(QUAD * size).zip(scores.chunks_mut(QUAD)) {
            products(self.table, keys, q, scores);
        }
        scores.iter_mut().for_each(|score| *score *= scale);
        if let Some(cap) = softcap {
            (self.table.softcap)(scores, cap);
        }
        let (top, sum) = (self.table.weigh)(scores);
        blended.fill(0.0);
        (self.table.blend)(scores, values, blended);
        [top, sum]
    }
}

/// The smallest range that holds both; rows that follow each other see ranges
/// with no gap between them.
fn union(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}

/// Joins a partial sum to what ran up before it: both are brought to the larger
/// of their largest scores.
fn join(running: &mut [f32; 2], result: &mut [f32], [top, sum]: [f32; 2], blended: &[f32]) {
    let larger = running[0].max(top);
    let (before, now) = ((running[0] - larger).exp(), (top - larger).exp());
    *running = [larger, running[1] * before + sum * now];
    for (result, value) in result.iter_mut().zip(blended) {
        *result = *result * before + value * now;
    }
}

/// The dot products of `x` with up to [`QUAD`] rows.
fn products(table: &Table, rows: &[f32], x: &[f32], results: &mut [f32]) {
    if results.len() == QUAD {
        results.copy_from_slice(&(table.dots)(rows, x));
        return;
    }
    for (result, row) in results.iter_mut().zip(rows.chunks_exact(x.len())) {
        *result = (table.dot)(row, x);
    }
}
