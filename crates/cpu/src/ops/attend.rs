//! Attention: partial sums over chunks at fixed positions, joined in order.
//!
//! ```text
//! for each chunk of 256 positions that the row attends to, in order:
//!     scores  = cap(scale · q·k)           of the positions seen
//!     top     = the largest score
//!     weights = exp(scores − top)
//!     partial = (top, Σ weights, Σ weights · v)
//!     running = running joined with partial
//! result = running's Σ weights · v / running's Σ weights
//! ```
//! A sink is what a head's running sums begin with: one score, whose value is 0.
//!
//! Chunks begin at absolute positions that are multiples of [`CHUNK_POSITIONS`], and the
//! positions that a row sees in a chunk depend on its own position only. So its sums do not
//! depend on how a prompt is cut into steps, or on the other rows of a step. Positions that a row
//! does not see are in no sum; blocks without a seen position are not read.
//!
//! The work is cut in one of two ways, with equal results. A sequence of many rows is cut into
//! tiles of rows with one KV head each; a tile runs through its chunks. A sequence of few rows is
//! cut by chunks, too, so that all threads share it: partial sums go to memory, and a second pass
//! joins them. Rows of split sequences that read the same blocks of a chunk, as after a shared prefix, are
//! computed together. Either way all query heads that share a KV head are computed together. Cells of
//! the KV cache are decoded in registers if at most eight queries read them, otherwise once for
//! all queries of the piece.
//!
//! Values that are the first numbers of keys (`attend_latent`) are decoded and transposed block by block for all
//! queries of the piece, and are then added up as others are.
//!
//! Bytes moved: keys and values of the positions seen, once for a tile of rows; whole chunks that
//! split sequences share, once for 64 of their queries.

#[cfg(test)]
mod speed;

use std::ops::Range;

use girih_graph::backend::{Block, Sequence};
use girih_graph::{Graph, Key, Node, Span, ValueId};

use super::attend_piece::{
    AttendCall, AttendPiece, AttentionOperands, AttentionParams, BLOCKS_AHEAD, CHUNK_BLOCKS, PieceRows,
    ValuesHeld, finish,
};
use super::attend_scratch::{AttendScratch, AttendScratchSizes, tile_rows};
use super::attend_units::{SumUnit, UnitOrder, list_len, list_units};
use super::executor::{Executor, StepRows};
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::attend::{CHUNK_POSITIONS, LANES};
use crate::pool::{Grid, OutputTile};
use crate::state::step_indexes;

/// The maximum number of rows of a sequence that is cut by chunks.
const SPLIT_ROWS_MAX: usize = 8;

/// The number of pieces per thread, so that the last ones are shared evenly.
const ATTEND_PIECES_PER_THREAD: usize = 16;

/// The maximum number of chunks in a piece; within a piece each chunk prefetches the next.
const PIECE_CHUNKS_MAX: usize = 16;

/// Rows at the end of the context whose partial sums are kept at once, if there are as many sequences: they read a
/// shared prefix together. In a model of 16 layers, they take a hundredth of the bytes of a sequence's keys and values.
const ROWS_AT_ONCE: usize = 8;

/// The memory of attention. Attention to rows of the step has no partial sums: a sequence short enough to be split
/// has one chunk.
pub(crate) fn scratch(key: Key, attention: AttentionParams) -> OpScratch {
    let AttentionParams { kv_heads, shared, size, value_size, span, .. } = attention;
    let local = AttendScratchSizes::of(shared, size, value_size.next_multiple_of(LANES)).total();
    let units = if span.is_of_step() { 0 } else { units_at_once(key) };
    OpScratch { local, partials: units * kv_heads * shared * partial_len(value_size), words: list_len(units) }
}

/// The maximum number of units (a row and a chunk) whose partial sums are kept at once: two to eight rows
/// at the end of the context, or more rows at lower positions.
fn units_at_once(key: Key) -> usize {
    let (sequences, chunks) = (key.sequences as usize, (key.context as usize).div_ceil(CHUNK_POSITIONS));
    sequences.clamp(2, ROWS_AT_ONCE) * chunks + sequences
}

/// The length of a partial sum: the weighted values, the largest score, the sum of weights.
fn partial_len(value_size: usize) -> usize {
    value_size.next_multiple_of(LANES) + 2
}

/// Binds the `node` with these constants and operands.
pub(crate) fn bind(
    graph: &Graph,
    node: &Node,
    (scale, span, softcap): (f32, Span, Option<f32>),
    [q, keys, values]: [ValueId; 3],
    sinks: Option<ValueId>,
) -> BoundOp {
    let [queries, held, read] = [q, keys, values].map(|id| graph.value(id).shape);
    let kv_heads = held.extents()[1];
    let (shared, size, value_size) = (queries.extents()[1] / kv_heads, queries.columns(), read.columns());
    let held = ValuesHeld::Apart;
    let attention = AttentionParams { kv_heads, shared, size, value_size, held, scale, span, softcap };
    let (of_step, y) = (step_indexes(graph, node), node.output);
    let run = BoundOp::new(move |step| {
        let (held, [keys, values]) = match of_step {
            Some(indexes) => (&*step.step_state, indexes),
            None => (&*step.state, [keys, values].map(|id| step.values.state(id))),
        };
        let (y, [q]) = step.values.split(y, [q]);
        let sinks = sinks.map(|sinks| step.weights.vector(sinks));
        let heads = AttentionOperands {
            q,
            keys: held.tensor(keys),
            values: held.tensor(values),
            sinks,
            selected: None,
        };
        attend(&mut step.executor, heads, attention, step.rows, y);
    });
    BoundOp { scratch: scratch(graph.key, attention), ..run }
}

/// Binds attention to `latents` at the positions that rows have selected. The first numbers of a latent are its value.
pub(crate) fn bind_latent(
    graph: &Graph,
    (scale, span, value_size): (f32, Span, usize),
    [q, latents]: [ValueId; 2],
    selected: Option<ValueId>,
    y: ValueId,
) -> BoundOp {
    let [queries, keys] = [q, latents].map(|id| graph.value(id).shape);
    let (kv_heads, size, held) = (keys.extents()[1], queries.columns(), ValuesHeld::InKeys);
    let shared = queries.extents()[1] / kv_heads;
    let attention = AttentionParams { kv_heads, shared, size, value_size, held, scale, span, softcap: None };
    let run = BoundOp::new(move |step| {
        let latents = step.state.tensor(step.values.state(latents));
        let numbers = selected.map(|selected| step.values.stride(selected));
        // Without a selection, the queries stand for it.
        let (y, [q, all]) = step.values.split(y, [q, selected.unwrap_or(q)]);
        let selected = numbers.map(|numbers| (all, numbers));
        let heads = AttentionOperands { q, keys: latents, values: latents, sinks: None, selected };
        attend(&mut step.executor, heads, attention, step.rows, y);
    });
    BoundOp { scratch: scratch(graph.key, attention), ..run }
}

/// Computes attention for every head of every row, each within its sequence.
pub(crate) fn attend(
    executor: &mut Executor<'_>,
    heads: AttentionOperands<'_>,
    attention: AttentionParams,
    rows: StepRows<'_>,
    output: &mut [f32],
) {
    let call = AttendCall { table: &executor.table.attend, heads, attention, rows };
    let width = attention.kv_heads * attention.shared * partial_len(attention.value_size);
    // The memory is that of the op that needs most.
    let max_units = (executor.partials.len() / width).min(list_units(executor.words.len()));
    let split = |sequence: &Sequence<'_>| {
        // The chunks of long sequences are not counted, as this is asked for each piece.
        sequence.rows.indexes().len() <= SPLIT_ROWS_MAX
            && call.chunks(sequence).len() > 1
            && call.units(sequence) <= max_units
    };
    let whole = rows.sequences.iter().any(|sequence| !split(sequence));
    let parts = rows.sequences.iter().any(split);
    let cut = match (whole, parts) {
        (true, true) => "whole and split",
        (true, false) => "whole",
        _ => "split",
    };
    executor.variant = [cut, executor.table.name, heads.keys.format().name(), ""];
    if whole {
        attend_whole(call, executor, split, output);
    }
    let mut sequences = rows.sequences;
    while let Some(first) = sequences.iter().position(split) {
        let mut units = 0;
        let count = sequences[first..].iter().take_while(|sequence| {
            let own = if split(sequence) { call.units(sequence) } else { 0 };
            units += own;
            units <= max_units
        });
        let (round, others) = sequences.split_at(first + count.count());
        let round = SplitRound { call, sequences: &round[first..], split: &split };
        round.run(executor, output);
        sequences = others;
    }
}

/// Computes the sequences that are not split, by tiles of rows.
fn attend_whole(
    call: AttendCall<'_>,
    executor: &mut Executor<'_>,
    split: impl Fn(&Sequence<'_>) -> bool + Sync,
    output: &mut [f32],
) {
    let AttendCall { attention, rows, .. } = call;
    let column_step = attention.shared * attention.value_size;
    let row_step = tile_rows(attention.shared);
    let grid = Grid { width: attention.kv_heads * column_step, row_step, column_step };
    executor.pool.tiles(executor.locals, output, grid, |tile, scratch| {
        let head = tile.columns().start / column_step;
        let mut row = tile.rows().start;
        while row < tile.rows().end {
            let sequence = &rows.sequences[rows.origins[row].sequence as usize];
            let part = row..tile.rows().end.min(sequence.rows.end as usize);
            row = part.end;
            if !split(sequence) {
                let piece = AttendPiece { call, head, rows: PieceRows::of(call, part) };
                piece.attend(tile, &mut AttendScratch::of(scratch, attention.sizes()));
            }
        }
    });
}

/// The split sequences whose partial sums fit into memory together.
struct SplitRound<'a, S> {
    call: AttendCall<'a>,
    sequences: &'a [Sequence<'a>],
    /// Whether a sequence is split.
    split: &'a S,
}

impl<'a, S: Fn(&Sequence<'_>) -> bool + Sync> SplitRound<'a, S> {
    fn sequences(&self) -> impl Iterator<Item = &'a Sequence<'a>> {
        self.sequences.iter().filter(|sequence| (self.split)(sequence))
    }

    /// Computes the partial sums, then joins them.
    fn run(&self, executor: &mut Executor<'_>, output: &mut [f32]) {
        let attention = self.call.attention;
        let Executor { pool, locals, partials, words, .. } = executor;
        let each = pool.threads() * ATTEND_PIECES_PER_THREAD;
        let piece_groups = |groups: usize| (groups * attention.kv_heads / each).clamp(1, PIECE_CHUNKS_MAX);
        let order = UnitOrder::list(
            self.sequences().map(|sequence| (sequence.rows.indexes(), self.call.chunks(sequence))),
            |unit| self.blocks(unit),
            piece_groups,
            words,
        );
        let column_step = attention.shared * partial_len(attention.value_size);
        let width = attention.kv_heads * column_step;
        let partials = &mut partials[..order.len() * width];
        let grid = Grid { width, row_step: 1, column_step };
        pool.tiles_of_groups(locals, order.ends(), [(&mut *partials, grid)], |_, tile, scratch| {
            let head = tile.columns().start / column_step;
            self.partials(&order, tile, head, AttendScratch::of(scratch, attention.sizes()));
        });
        let partials = &*partials;
        let column_step = attention.shared * attention.value_size;
        let grid = Grid { width: attention.kv_heads * column_step, row_step: 1, column_step };
        pool.tiles(locals, output, grid, |tile, scratch| {
            let head = tile.columns().start / column_step;
            for row in tile.rows() {
                let scratch = AttendScratch::of(scratch, attention.sizes());
                self.join(tile.row(row), row, head, (&order, partials), scratch);
            }
        });
    }

    /// The blocks of a unit. Keys and values are of one group.
    fn blocks(&self, SumUnit { row, chunk }: SumUnit) -> &'a [Block] {
        let AttendCall { heads, rows, .. } = self.call;
        heads.keys.blocks_of(rows.blocks(row), chunk * CHUNK_BLOCKS..(chunk + 1) * CHUNK_BLOCKS)
    }

    /// Computes the partial sums of some units with one head.
    fn partials(
        &self,
        order: &UnitOrder<'_>,
        tile: &mut OutputTile<'_, f32>,
        head: usize,
        mut scratch: AttendScratch<'_>,
    ) {
        let AttentionParams { shared, value_size, .. } = self.call.attention;
        let Range { mut start, end } = tile.rows();
        let mut piece = AttendPiece { call: self.call, head, rows: PieceRows::of(self.call, 0..0) };
        while let Some(SumUnit { chunk, .. }) = order.run(start..end, 1).next() {
            let run = || order.run(start..end, tile_rows(shared)).map(|unit| unit.row);
            let next = start + run().len();
            if !piece.rows.iter().eq(run()) {
                piece.rows = PieceRows::of(self.call, run());
                piece.pack(scratch.queries);
            }
            let ahead = order.run(next..end, 1).next();
            let ahead = ahead.map_or([&[][..]; BLOCKS_AHEAD], |SumUnit { row, chunk }| {
                self.call.chunk_keys(row, head, chunk)
            });
            piece.chunk(chunk, ahead, &mut scratch);
            let queries = scratch.sums.chunks_exact(scratch.width).zip(&*scratch.partial);
            let mut queries = queries.take(piece.queries());
            for place in start..next {
                for into in tile.row(place).chunks_exact_mut(partial_len(value_size)) {
                    let (of_query, ends) = queries.next().expect("each row has its queries");
                    into[..scratch.width].copy_from_slice(of_query);
                    into[scratch.width..].copy_from_slice(ends);
                }
            }
            start = next;
        }
    }

    /// Joins the partial sums of one row with one head, if its sequence is split.
    fn join(
        &self,
        output: &mut [f32],
        row: usize,
        head: usize,
        (order, partials): (&UnitOrder<'_>, &[f32]),
        scratch: AttendScratch<'_>,
    ) {
        let AttentionParams { kv_heads, shared, value_size, .. } = self.call.attention;
        let mut base = 0;
        for sequence in self.sequences() {
            let rows = sequence.rows.indexes();
            if !rows.contains(&row) {
                base += self.call.units(sequence);
                continue;
            }
            let piece = AttendPiece { call: self.call, head, rows: PieceRows::of(self.call, row..row + 1) };
            let size = partial_len(value_size);
            let running = &mut scratch.running[..shared];
            let result = &mut scratch.results[..shared * scratch.width];
            piece.begin(running);
            result.fill(0.0);
            for (index, chunk) in self.call.chunks(sequence).enumerate() {
                if !piece.sees_some(0, chunk) {
                    continue;
                }
                let unit = order.place(base + index * rows.len() + row - rows.start);
                let partials = &partials[((unit * kv_heads + head) * shared) * size..][..shared * size];
                let results = result.chunks_exact_mut(scratch.width);
                for ((partial, running), result) in
                    partials.chunks_exact(size).zip(&mut *running).zip(results)
                {
                    let (sums, ends) = partial.split_at(scratch.width);
                    (self.call.table.join)(running, result, [ends[0], ends[1]], sums);
                }
            }
            finish(output, value_size, running, result, scratch.width);
            return;
        }
    }
}
