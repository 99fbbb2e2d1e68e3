//! Attention: partial sums over chunks that lie at fixed places, joined in order.
//!
//! ```text
//! for each chunk of 256 positions that the row sees some of, in order:
//!     scores  = cap(scale · q·k)           of the positions seen
//!     top     = the largest score
//!     weights = exp(scores − top)
//!     partial = (top, Σ weights, Σ weights · v)
//!     running = running joined with partial
//! result = running's Σ weights · v / running's Σ weights
//! ```
//! Chunks begin at multiples of [`CHUNK_POSITIONS`] of the absolute position, and a row
//! sees in a chunk what its own position says, so its sums are the same however
//! a prompt is cut into steps and whatever else a step holds. Nothing of a
//! position that is not seen comes into a sum, and blocks of which nothing is
//! seen are not read.
//!
//! There are two ways to cut the work, with equal results. A sequence of many rows
//! is cut into tiles of rows with one head of keys and values each, which run
//! through their chunks. A sequence of few rows is cut by chunks as well, so that
//! all threads share one sequence; its partial sums go to memory, from where a
//! second pass joins them. Either way all query heads that share a head of keys
//! and values go together, and cells are decoded in registers where they meet
//! up to eight queries, else once for all queries of the piece.
//!
//! Bytes moved: keys and values of the positions seen, once for a tile of rows.

#[cfg(test)]
mod speed;

use std::array;
use std::ops::Range;

use girih_graph::backend::Sequence;
use girih_graph::{BLOCK_POSITIONS, Graph, Node};

use super::{Executor, Rows};
use crate::kernels::attend::{
    AttendKernels, CHUNK_POSITIONS, Cells, ChunkWeights, Format, KEY_TILE, LANES, MaxSum, ValueBlock, WIDTHS,
};
use crate::lower::Attention;
use crate::pool::{Grid, Tile};
use crate::state::StateTensor;

/// Queries of a tile of rows: enough that decoding keys and values costs
/// little beside them, few enough that their scores stay in the second cache.
const QUERIES: usize = 64;

/// The most queries that a kernel takes at once.
const WIDEST: usize = WIDTHS[WIDTHS.len() - 1];

/// Rows of a sequence that may be cut by chunks.
const FEW: usize = 8;

/// Pieces for each thread, so that the last ones are shared evenly.
const PIECES: usize = 16;

/// The largest number of chunks in a piece: each tells the caches of the next.
const RUN: usize = 16;

/// Rows of a tile.
fn tile_rows(shared: usize) -> usize {
    (QUERIES / shared).max(1)
}

/// Queries of a tile, filled up to whole calls of kernels.
fn tile_queries(shared: usize) -> usize {
    (tile_rows(shared) * shared).next_multiple_of(WIDEST)
}

/// Numbers of a thread's scratch for heads of these sizes.
pub(crate) fn local_size(shared: usize, size: usize, value_size: usize) -> usize {
    Sizes::of(shared, size, value_size.next_multiple_of(LANES)).total()
}

/// Numbers of memory for the partial sums of a step.
pub(crate) fn partials_size(graph: &Graph, node: &Node) -> usize {
    let [q, keys, values] = [0, 1, 2].map(|index| graph.value(node.inputs[index]).shape);
    let (groups, shared) = (keys.extents()[1], q.extents()[1] / keys.extents()[1]);
    units_at_once(graph) * groups * shared * partial_size(values.columns())
}

/// Rows times chunks whose partial sums are kept at once: those of two rows at
/// the end of the context, or of many that are not as far.
fn units_at_once(graph: &Graph) -> usize {
    2 * (graph.key.context as usize).div_ceil(CHUNK_POSITIONS) + graph.key.sequences as usize
}

/// Numbers of one partial sum: the values, the largest score, the sum of weights.
fn partial_size(value_size: usize) -> usize {
    value_size.next_multiple_of(LANES) + 2
}

/// The operands of attention besides the rows.
#[derive(Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub q: &'a [f32],
    pub keys: &'a StateTensor,
    pub values: &'a StateTensor,
}

/// Attends with every head of every row, each within its sequence.
pub(crate) fn attend(
    executor: &mut Executor<'_>,
    heads: Heads<'_>,
    attention: Attention,
    rows: Rows<'_>,
    output: &mut [f32],
) {
    let attending = Attending { table: &executor.table.attend, heads, attention, rows };
    let width = attention.groups * attention.shared * partial_size(attention.value_size);
    let most = executor.partials.len() / width;
    let split = |sequence: &Sequence<'_>| {
        let chunks = attending.chunks(sequence).len();
        sequence.rows.indexes().len() <= FEW && chunks > 1 && chunks * sequence.rows.indexes().len() <= most
    };
    let whole = rows.sequences.iter().any(|sequence| !split(sequence));
    let parts = rows.sequences.iter().any(split);
    let way = match (whole, parts) {
        (true, true) => "whole and split",
        (true, false) => "whole",
        _ => "split",
    };
    executor.variant = [way, executor.table.name, heads.keys.format().name(), ""];
    if whole {
        attending.whole(executor, split, output);
    }
    let mut sequences = rows.sequences;
    while let Some(first) = sequences.iter().position(split) {
        let mut units = 0;
        let count = sequences[first..].iter().take_while(|sequence| {
            let own = if split(sequence) { attending.units(sequence) } else { 0 };
            units += own;
            units <= most
        });
        let (round, others) = sequences.split_at(first + count.count());
        let round = Round { attending, sequences: &round[first..], split: &split };
        round.run(executor, output);
        sequences = others;
    }
}

/// One call of the operator.
#[derive(Clone, Copy)]
struct Attending<'a> {
    table: &'a AttendKernels,
    heads: Heads<'a>,
    attention: Attention,
    rows: Rows<'a>,
}

impl<'a> Attending<'a> {
    /// The chunks of which some row of the sequence sees something.
    fn chunks(&self, sequence: &Sequence<'_>) -> Range<usize> {
        let rows = sequence.rows.indexes();
        let seen = rows.map(|row| sees(self.attention, sequence, row)).reduce(union).unwrap_or(0..0);
        seen.start / CHUNK_POSITIONS..seen.end.div_ceil(CHUNK_POSITIONS)
    }

    /// Rows times chunks.
    fn units(&self, sequence: &Sequence<'_>) -> usize {
        self.chunks(sequence).len() * sequence.rows.indexes().len()
    }

    fn piece(&self, sequence: &'a Sequence<'a>, head: usize, rows: Range<usize>) -> Piece<'a> {
        let Attending { table, heads, attention, .. } = *self;
        Piece { table, heads, attention, head, sequence, rows }
    }

    /// Attends with the sequences that are not split, by tiles of rows.
    fn whole(
        &self,
        executor: &mut Executor<'_>,
        split: impl Fn(&Sequence<'_>) -> bool + Sync,
        output: &mut [f32],
    ) {
        let attention = self.attention;
        let column_step = attention.shared * attention.value_size;
        let row_step = tile_rows(attention.shared);
        let grid = Grid { width: attention.groups * column_step, row_step, column_step };
        executor.pool.tiles(executor.locals, output, grid, |tile, scratch| {
            let head = tile.columns().start / column_step;
            let mut row = tile.rows().start;
            while row < tile.rows().end {
                let sequence = &self.rows.sequences[self.rows.origins[row].sequence as usize];
                let part = row..tile.rows().end.min(sequence.rows.end as usize);
                row = part.end;
                if !split(sequence) {
                    self.piece(sequence, head, part).attend(tile, &mut Scratch::of(scratch, attention));
                }
            }
        });
    }
}

/// Some sequences that are cut by chunks, as many as there is memory for.
struct Round<'a, S> {
    attending: Attending<'a>,
    sequences: &'a [Sequence<'a>],
    /// Whether a sequence is one of them.
    split: &'a S,
}

impl<'a, S: Fn(&Sequence<'_>) -> bool + Sync> Round<'a, S> {
    fn sequences(&self) -> impl Iterator<Item = &'a Sequence<'a>> {
        self.sequences.iter().filter(|sequence| (self.split)(sequence))
    }

    /// Forms the partial sums, then joins them.
    fn run(&self, executor: &mut Executor<'_>, output: &mut [f32]) {
        let attention = self.attending.attention;
        let units = self.sequences().map(|sequence| self.attending.units(sequence)).sum::<usize>();
        let column_step = attention.shared * partial_size(attention.value_size);
        let width = attention.groups * column_step;
        let row_step = (units * attention.groups / (executor.pool.threads() * PIECES)).clamp(1, RUN);
        let grid = Grid { width, row_step, column_step };
        let partials = &mut executor.partials[..units * width];
        executor.pool.tiles(executor.locals, partials, grid, |tile, scratch| {
            self.partials(tile, tile.columns().start / column_step, Scratch::of(scratch, attention));
        });
        let partials = &executor.partials[..units * width];
        let column_step = attention.shared * attention.value_size;
        let grid = Grid { width: attention.groups * column_step, row_step: 1, column_step };
        executor.pool.tiles(executor.locals, output, grid, |tile, scratch| {
            let head = tile.columns().start / column_step;
            for row in tile.rows() {
                self.join(tile.row(row), row, head, partials, Scratch::of(scratch, attention));
            }
        });
    }

    /// Where a unit stands: its sequence, the chunk, and the row within the sequence.
    fn unit(&self, mut index: usize) -> (&'a Sequence<'a>, usize, usize) {
        for sequence in self.sequences() {
            let units = self.attending.units(sequence);
            if index < units {
                let rows = sequence.rows.indexes().len();
                return (sequence, self.attending.chunks(sequence).start + index / rows, index % rows);
            }
            index -= units;
        }
        unreachable!("there are as many units as the sequences have")
    }

    /// Forms the partial sums of some units with one head.
    fn partials(&self, tile: &mut Tile<'_, f32>, head: usize, mut scratch: Scratch<'_>) {
        let attention = self.attending.attention;
        let units = tile.rows();
        let mut index = units.start;
        while index < units.end {
            let (sequence, chunk, first) = self.unit(index);
            let rows = sequence.rows.indexes();
            let count = (rows.len() - first).min(units.end - index).min(tile_rows(attention.shared));
            let part = rows.start + first..rows.start + first + count;
            let piece = self.attending.piece(sequence, head, part);
            piece.pack(scratch.queries);
            let more = index + rows.len() < units.end && chunk + 1 < self.attending.chunks(sequence).end;
            piece.chunk(chunk, more, &mut scratch);
            for row in 0..count {
                let into = tile.row(index + row).chunks_exact_mut(partial_size(attention.value_size));
                for (query, into) in into.enumerate() {
                    let query = row * attention.shared + query;
                    let (sums, ends) = into.split_at_mut(scratch.width);
                    sums.copy_from_slice(&scratch.sums[query * scratch.width..][..scratch.width]);
                    ends.copy_from_slice(&scratch.partial[query]);
                }
            }
            index += count;
        }
    }

    /// Joins the partial sums of one row with one head, if its sequence is split.
    fn join(&self, output: &mut [f32], row: usize, head: usize, partials: &[f32], scratch: Scratch<'_>) {
        let Attention { groups, shared, value_size, .. } = self.attending.attention;
        let mut base = 0;
        for sequence in self.sequences() {
            let rows = sequence.rows.indexes();
            if !rows.contains(&row) {
                base += self.attending.units(sequence);
                continue;
            }
            let piece = self.attending.piece(sequence, head, row..row + 1);
            let size = partial_size(value_size);
            let running = &mut scratch.running[..shared];
            let result = &mut scratch.results[..shared * scratch.width];
            running.fill([f32::NEG_INFINITY, 0.0]);
            result.fill(0.0);
            for (index, chunk) in self.attending.chunks(sequence).enumerate() {
                if piece.seen(row, chunk).is_empty() {
                    continue;
                }
                let unit = base + index * rows.len() + row - rows.start;
                let partials = &partials[((unit * groups + head) * shared) * size..][..shared * size];
                let results = result.chunks_exact_mut(scratch.width);
                for ((partial, running), result) in
                    partials.chunks_exact(size).zip(&mut *running).zip(results)
                {
                    let (sums, ends) = partial.split_at(scratch.width);
                    (self.attending.table.join)(running, result, [ends[0], ends[1]], sums);
                }
            }
            finish(output, value_size, running, result, scratch.width);
            return;
        }
    }
}

/// Divides weighted sums by the sums of weights.
fn finish(output: &mut [f32], value_size: usize, running: &[MaxSum], results: &[f32], width: usize) {
    let sums = running.iter().zip(results.chunks_exact(width));
    for (output, ([_, sum], result)) in output.chunks_exact_mut(value_size).zip(sums) {
        for (output, value) in output.iter_mut().zip(result) {
            *output = value / sum;
        }
    }
}

/// Some rows of one sequence with one head of keys and values.
struct Piece<'a> {
    table: &'a AttendKernels,
    heads: Heads<'a>,
    attention: Attention,
    head: usize,
    sequence: &'a Sequence<'a>,
    rows: Range<usize>,
}

/// How many numbers each part of a thread's memory has.
#[derive(Clone, Copy)]
struct Sizes {
    queries: usize,
    keys: usize,
    values: usize,
    scores: usize,
    sums: usize,
    ends: usize,
}

impl Sizes {
    /// For values filled up to `width`.
    fn of(shared: usize, size: usize, width: usize) -> Sizes {
        let count = tile_queries(shared);
        Sizes {
            queries: (count * size).next_multiple_of(LANES),
            keys: size * KEY_TILE,
            values: BLOCK_POSITIONS * width,
            scores: count * CHUNK_POSITIONS,
            sums: count * width,
            ends: count * 2,
        }
    }

    fn total(self) -> usize {
        let Sizes { queries, keys, values, scores, sums, ends } = self;
        queries + keys + values + scores + 2 * sums + 2 * ends
    }
}

/// A thread's memory, divided.
struct Scratch<'a> {
    /// Values of a row, filled up to whole vectors.
    width: usize,
    /// The queries, in the order of kernels.
    queries: &'a mut [f32],
    /// A tile of keys.
    keys: &'a mut [f32],
    /// A block of values.
    values: &'a mut [f32],
    /// Scores, then weights, of each query over a chunk.
    scores: &'a mut [ChunkWeights],
    /// The weighted sums of a chunk, for each query.
    sums: &'a mut [f32],
    /// What ran up before, for each query.
    results: &'a mut [f32],
    /// The largest score and the sum of weights of a chunk, for each query.
    partial: &'a mut [MaxSum],
    /// The same of what ran up before.
    running: &'a mut [MaxSum],
}

impl<'a> Scratch<'a> {
    fn of(scratch: &'a mut [f32], attention: Attention) -> Scratch<'a> {
        let width = attention.value_size.next_multiple_of(LANES);
        let sizes = Sizes::of(attention.shared, attention.size, width);
        let (queries, rest) = scratch.split_at_mut(sizes.queries);
        let (keys, rest) = rest.split_at_mut(sizes.keys);
        let (values, rest) = rest.split_at_mut(sizes.values);
        let (scores, rest) = rest.split_at_mut(sizes.scores);
        let (sums, rest) = rest.split_at_mut(sizes.sums);
        let (results, rest) = rest.split_at_mut(sizes.sums);
        let (partial, rest) = rest.split_at_mut(sizes.ends);
        let (scores, partial) = (scores.as_chunks_mut().0, partial.as_chunks_mut().0);
        let running = rest[..sizes.ends].as_chunks_mut().0;
        Scratch { width, queries, keys, values, scores, sums, results, partial, running }
    }
}

/// The positions that a row sees; rows count in the step.
fn sees(attention: Attention, sequence: &Sequence<'_>, row: usize) -> Range<usize> {
    let position = sequence.position as usize + row - sequence.rows.start as usize;
    sequence.sees(attention.span, position)
}

/// The smallest range that holds both; rows that follow each other see ranges
/// with no gap between them.
fn union(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

fn intersection(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// What each row of a piece sees of a chunk, counted from its beginning.
type Seen = [Range<usize>; QUERIES];

/// Queries that a kernel takes at once.
#[derive(Clone)]
struct Batch {
    /// Those there are; the kernel may take more.
    queries: Range<usize>,
    width: usize,
    /// What some of their rows see of the chunk, and what all of them see.
    some: Range<usize>,
    all: Range<usize>,
}

impl Piece<'_> {
    /// What a row sees of a chunk, counted from its beginning.
    fn seen(&self, row: usize, chunk: usize) -> Range<usize> {
        let seen = sees(self.attention, self.sequence, row);
        let part = intersection(seen, chunk * CHUNK_POSITIONS..(chunk + 1) * CHUNK_POSITIONS);
        part.start - (chunk * CHUNK_POSITIONS).min(part.start)
            ..part.end - (chunk * CHUNK_POSITIONS).min(part.end)
    }

    fn queries(&self) -> usize {
        self.rows.len() * self.attention.shared
    }

    /// The queries in the batches of kernels.
    fn batches(&self, seen: &Seen) -> impl Iterator<Item = Batch> {
        let (count, shared) = (self.queries(), self.attention.shared);
        (0..count).step_by(WIDEST).map(move |first| {
            let queries = first..count.min(first + WIDEST);
            let rows = &seen[queries.start / shared..queries.end.div_ceil(shared)];
            let some = rows.iter().cloned().fold(0..0, union);
            let all = rows.iter().cloned().fold(0..CHUNK_POSITIONS, intersection);
            Batch { width: width(queries.len()), queries, some, all }
        })
    }

    /// Lays out the queries of each batch `[dim][query]`, times the constant
    /// that brings scores to units of log 2, or to what the cap begins with.
    fn pack(&self, queries: &mut [f32]) {
        let Attention { groups, shared, size, scale, softcap, .. } = self.attention;
        let factor = match softcap {
            None => f64::from(scale) * std::f64::consts::LOG2_E,
            Some(cap) => 2.0 * f64::from(scale) / f64::from(cap) * std::f64::consts::LOG2_E,
        } as f32;
        let count = self.queries();
        for first in (0..count).step_by(WIDEST) {
            let width = width(WIDEST.min(count - first));
            let batch = &mut queries[first * size..(first + width) * size];
            batch.fill(0.0);
            for query in first..count.min(first + WIDEST) {
                let row = self.rows.start + query / shared;
                let at = ((row * groups + self.head) * shared + query % shared) * size;
                let q = &self.heads.q[at..at + size];
                for (into, value) in batch[query - first..].iter_mut().step_by(width).zip(q) {
                    *into = value * factor;
                }
            }
        }
    }

    fn attend(&self, tile: &mut Tile<'_, f32>, scratch: &mut Scratch<'_>) {
        let Attention { shared, value_size, .. } = self.attention;
        let width = scratch.width;
        self.pack(scratch.queries);
        scratch.running[..self.queries()].fill([f32::NEG_INFINITY, 0.0]);
        scratch.results[..self.queries() * width].fill(0.0);
        let seen = self.rows.clone().map(|row| sees(self.attention, self.sequence, row)).fold(0..0, union);
        let chunks = seen.start / CHUNK_POSITIONS..seen.end.div_ceil(CHUNK_POSITIONS);
        for chunk in chunks.clone() {
            self.chunk(chunk, chunk + 1 < chunks.end, scratch);
            for query in 0..self.queries() {
                if !self.seen(self.rows.start + query / shared, chunk).is_empty() {
                    let values = query * width..(query + 1) * width;
                    let (result, sums) = (&mut scratch.results[values.clone()], &scratch.sums[values]);
                    (self.table.join)(&mut scratch.running[query], result, scratch.partial[query], sums);
                }
            }
        }
        for (index, row) in self.rows.clone().enumerate() {
            let running = &scratch.running[index * shared..(index + 1) * shared];
            let results = &scratch.results[index * shared * width..];
            finish(tile.row(row), value_size, running, results, width);
        }
    }

    /// Forms the partial sums of a chunk. `more` says that the next one follows.
    fn chunk(&self, chunk: usize, more: bool, scratch: &mut Scratch<'_>) {
        let first = self.rows.start;
        let seen: Seen = array::from_fn(|row| match row < self.rows.len() {
            true => self.seen(first + row, chunk),
            false => 0..0,
        });
        let some = seen.iter().cloned().fold(0..0, union);
        let blocks = some.start / BLOCK_POSITIONS..some.end.div_ceil(BLOCK_POSITIONS);
        let walk = Walk { piece: self, first: chunk * (CHUNK_POSITIONS / BLOCK_POSITIONS), blocks, more };
        walk.score(&seen, some.clone(), scratch);
        let cap = self.attention.softcap.map(|cap| (f64::from(cap) * std::f64::consts::LOG2_E) as f32);
        for query in 0..self.queries() {
            let seen = seen[query / self.attention.shared].clone();
            if !seen.is_empty() {
                scratch.partial[query] = (self.table.weigh)(&mut scratch.scores[query], seen, cap);
            }
        }
        walk.blend(&seen, some, scratch);
    }
}

/// The least of the kernels' widths that holds so many queries.
fn width(queries: usize) -> usize {
    *WIDTHS.iter().find(|width| **width >= queries).expect("a batch is no wider than the widest")
}

/// The way through the blocks of a chunk: first their keys, then their values.
struct Walk<'a> {
    piece: &'a Piece<'a>,
    /// The chunk's first block among those of the sequence.
    first: usize,
    /// The blocks of which something is seen, counted from the first.
    blocks: Range<usize>,
    /// Whether the keys of the next chunk come after the values of this one.
    more: bool,
}

impl<'a> Walk<'a> {
    fn keys(&self, block: usize) -> &'a [u8] {
        self.piece.heads.keys.head(self.piece.sequence, self.piece.head, self.first + block)
    }

    fn values(&self, block: usize) -> &'a [u8] {
        self.piece.heads.values.head(self.piece.sequence, self.piece.head, self.first + block)
    }

    /// Whether cells are decoded apart: where more than one batch meets them.
    fn decodes(&self, format: Format) -> bool {
        self.piece.queries() > WIDEST && format != Format::F32
    }

    /// The scores of all positions of which some row sees.
    fn score(&self, seen: &Seen, some: Range<usize>, scratch: &mut Scratch<'_>) {
        let (table, size) = (self.piece.table, self.piece.attention.size);
        let format = self.piece.heads.keys.format();
        let tile_bytes = format.bytes(KEY_TILE, size);
        let decodes = self.decodes(format);
        for tile in some.start / KEY_TILE..some.end.div_ceil(KEY_TILE) {
            let block = tile * KEY_TILE / BLOCK_POSITIONS;
            let part = tile * KEY_TILE % BLOCK_POSITIONS / KEY_TILE * tile_bytes;
            let part = part..part + tile_bytes;
            let stored = &self.keys(block)[part.clone()];
            let next = match block + 1 < self.blocks.end {
                true => self.keys(block + 1),
                false => self.values(self.blocks.start),
            };
            let mut ahead = next.get(part).unwrap_or(&[]);
            let mut cells = Cells::Stored(format, stored);
            if decodes {
                (table.widen_keys)(format, stored, &mut scratch.keys[..size * KEY_TILE]);
                cells = Cells::Decoded(&scratch.keys[..size * KEY_TILE]);
            }
            let positions = tile * KEY_TILE..(tile + 1) * KEY_TILE;
            for batch in self.piece.batches(seen) {
                if intersection(batch.some, positions.clone()).is_empty() {
                    continue;
                }
                let Range { start, .. } = batch.queries;
                let queries = &scratch.queries[start * size..(start + batch.width) * size];
                let scores = &mut scratch.scores[start..start + batch.width];
                (table.score)(queries, cells, ahead, scores, positions.start);
                ahead = &[];
            }
        }
    }

    /// The weighted sums, block after block.
    fn blend(&self, seen: &Seen, some: Range<usize>, scratch: &mut Scratch<'_>) {
        let format = self.piece.heads.values.format();
        let (table, width, decodes) = (self.piece.table, scratch.width, self.decodes(format));
        scratch.sums[..self.piece.queries().next_multiple_of(WIDEST) * width].fill(0.0);
        for index in self.blocks.clone() {
            let at = index * BLOCK_POSITIONS;
            let positions = intersection(some.clone(), at..at + BLOCK_POSITIONS);
            let positions = positions.start - at..positions.end - at;
            let ahead = match index + 1 < self.blocks.end {
                true => self.values(index + 1),
                false if self.more => self.keys(CHUNK_POSITIONS / BLOCK_POSITIONS),
                false => &[],
            };
            let cells = Cells::Stored(format, self.values(index));
            let mut block = ValueBlock { cells, positions, width, next: ahead };
            if decodes {
                (table.widen_values)(block.clone(), scratch.values);
                block.cells = Cells::Decoded(&scratch.values[..BLOCK_POSITIONS * width]);
            }
            for batch in self.piece.batches(seen) {
                self.blend_batch(seen, &batch, at, block.clone(), scratch.scores, scratch.sums);
                block.next = &[];
            }
        }
    }

    /// The weighted sums of one batch over one block: together where all of
    /// its rows see, else each query by itself.
    fn blend_batch(
        &self,
        seen: &Seen,
        batch: &Batch,
        at: usize,
        block: ValueBlock<'_>,
        weights: &[ChunkWeights],
        sums: &mut [f32],
    ) {
        let (table, shared, width) = (self.piece.table, self.piece.attention.shared, block.width);
        let in_block = |range: Range<usize>| {
            let range = intersection(range, at..at + BLOCK_POSITIONS);
            range.start - at.min(range.start)..range.end - at.min(range.end)
        };
        let all = in_block(batch.all.clone());
        let alone = |positions: &dyn Fn(Range<usize>) -> Range<usize>, sums: &mut [f32]| {
            for query in batch.queries.clone() {
                let positions = positions(in_block(seen[query / shared].clone()));
                if !positions.is_empty() {
                    let block = ValueBlock { positions, ..block.clone() };
                    let sums = &mut sums[query * width..(query + 1) * width];
                    (table.blend)(&weights[query..query + 1], at, block, sums);
                }
            }
        };
        if all.is_empty() {
            return alone(&|own| own, sums);
        }
        alone(&|own| own.start..all.start, sums);
        let together = batch.queries.start..batch.queries.start + batch.width;
        let block = ValueBlock { positions: all.clone(), ..block.clone() };
        (table.blend)(
            &weights[together.clone()],
            at,
            block,
            &mut sums[together.start * width..together.end * width],
        );
        alone(&|own| all.end..own.end, sums);
    }
}
