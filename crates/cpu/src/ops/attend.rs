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

use std::array;
use std::ops::Range;

use girih_graph::backend::{Block, Sequence};
use girih_graph::{BLOCK_POSITIONS, Graph, Key, Node, Span, ValueId, is_selected};

use super::attend_scratch::{AttendScratch, AttendScratchSizes, BATCH_MAX, TILE_QUERIES, tile_rows};
use super::attend_units::{SumUnit, UnitOrder, list_len, list_units};
use super::executor::{Executor, RowOrigin, StepRows};
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::attend::{
    AttendKernels, CHUNK_POSITIONS, Cells, ChunkWeights, Format, KEY_TILE, KV_GROUP, LANES, MaxSum,
    ValueBlock, WIDTHS, transpose,
};
use crate::pool::{Grid, OutputTile};
use crate::state::{StateTensor, step_indexes};

/// The maximum number of rows of a sequence that is cut by chunks.
const SPLIT_ROWS_MAX: usize = 8;

/// The blocks of a chunk.
const CHUNK_BLOCKS: usize = CHUNK_POSITIONS / BLOCK_POSITIONS;

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

/// The tensor operands of attention.
#[derive(Clone, Copy)]
pub(crate) struct AttentionOperands<'a> {
    pub q: &'a [f32],
    pub keys: &'a StateTensor,
    pub values: &'a StateTensor,
    /// The sink of each query head.
    pub sinks: Option<&'a [f32]>,
    /// The selections of all rows, and the numbers of one.
    pub selected: Option<(&'a [f32], usize)>,
}

/// The constants of [`Op::Attend`](girih_graph::Op::Attend) and the sizes of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionParams {
    /// The number of KV heads.
    pub kv_heads: usize,
    /// Query heads that share one KV head.
    pub shared: usize,
    /// Values in a head of queries and of keys.
    pub size: usize,
    /// Values in a head of values and of results.
    pub value_size: usize,
    /// Where values are.
    pub held: ValuesHeld,
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
}

impl AttentionParams {
    /// The sizes on which scratch memory depends.
    fn sizes(&self) -> [usize; 3] {
        [self.shared, self.size, self.value_size]
    }
}

/// Where values are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValuesHeld {
    /// In a tensor of their own.
    Apart,
    /// They are the first numbers of keys.
    InKeys,
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
        let chunks = call.chunks(sequence).len();
        sequence.rows.indexes().len() <= SPLIT_ROWS_MAX
            && chunks > 1
            && chunks * sequence.rows.indexes().len() <= max_units
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
        call.whole(executor, split, output);
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

/// One call of the operator.
#[derive(Clone, Copy)]
struct AttendCall<'a> {
    table: &'a AttendKernels,
    heads: AttentionOperands<'a>,
    attention: AttentionParams,
    rows: StepRows<'a>,
}

impl<'a> AttendCall<'a> {
    /// The chunks of which at least one row of the sequence sees a position.
    fn chunks(&self, sequence: &Sequence<'_>) -> Range<usize> {
        let rows = sequence.rows.indexes();
        let seen = rows.map(|row| self.sees(row)).reduce(union).unwrap_or(0..0);
        seen.start / CHUNK_POSITIONS..seen.end.div_ceil(CHUNK_POSITIONS)
    }

    /// The number of units: rows times chunks.
    fn units(&self, sequence: &Sequence<'_>) -> usize {
        self.chunks(sequence).len() * sequence.rows.indexes().len()
    }

    /// The positions that a row sees.
    fn sees(&self, row: usize) -> Range<usize> {
        let RowOrigin { sequence, position } = self.rows.origins[row];
        self.rows.sequences[sequence as usize].sees(self.attention.span, position as usize)
    }

    /// The keys of one head in the first block of a chunk of the sequence of `row`.
    fn chunk_keys(&self, row: usize, head: usize, chunk: usize) -> &'a [u8] {
        self.heads.keys.head(self.rows.blocks(row), head, chunk * CHUNK_BLOCKS)
    }

    /// Computes the sequences that are not split, by tiles of rows.
    fn whole(
        &self,
        executor: &mut Executor<'_>,
        split: impl Fn(&Sequence<'_>) -> bool + Sync,
        output: &mut [f32],
    ) {
        let attention = self.attention;
        let column_step = attention.shared * attention.value_size;
        let row_step = tile_rows(attention.shared);
        let grid = Grid { width: attention.kv_heads * column_step, row_step, column_step };
        executor.pool.tiles(executor.locals, output, grid, |tile, scratch| {
            let head = tile.columns().start / column_step;
            let mut row = tile.rows().start;
            while row < tile.rows().end {
                let sequence = &self.rows.sequences[self.rows.origins[row].sequence as usize];
                let part = row..tile.rows().end.min(sequence.rows.end as usize);
                row = part.end;
                if !split(sequence) {
                    let piece = AttendPiece { call: *self, head, rows: PieceRows::of(part) };
                    piece.attend(tile, &mut AttendScratch::of(scratch, attention.sizes()));
                }
            }
        });
    }
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
        let mut packed = PieceRows::of(0..0);
        while let Some(SumUnit { chunk, .. }) = order.run(start..end, 1).next() {
            let run = order.run(start..end, tile_rows(shared)).map(|unit| unit.row);
            let next = start + run.len();
            let piece = AttendPiece { call: self.call, head, rows: PieceRows::of(run) };
            if piece.rows != packed {
                piece.pack(scratch.queries);
                packed = piece.rows;
            }
            let ahead = order.run(next..end, 1).next();
            let ahead =
                ahead.map_or(&[][..], |SumUnit { row, chunk }| self.call.chunk_keys(row, head, chunk));
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
            let piece = AttendPiece { call: self.call, head, rows: PieceRows::of(row..row + 1) };
            let size = partial_len(value_size);
            let running = &mut scratch.running[..shared];
            let result = &mut scratch.results[..shared * scratch.width];
            piece.begin(running);
            result.fill(0.0);
            for (index, chunk) in self.call.chunks(sequence).enumerate() {
                if piece.seen(row, chunk).is_empty() {
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

/// Divides weighted sums by the sums of weights.
fn finish(output: &mut [f32], value_size: usize, running: &[MaxSum], results: &[f32], width: usize) {
    let sums = running.iter().zip(results.chunks_exact(width));
    for (output, ([_, sum], result)) in output.chunks_exact_mut(value_size).zip(sums) {
        for (output, value) in output.iter_mut().zip(result) {
            *output = value / sum;
        }
    }
}

/// The rows of a piece: of one sequence, or of several that read the same blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PieceRows {
    rows: [u32; TILE_QUERIES],
    count: usize,
}

impl PieceRows {
    fn of(rows: impl ExactSizeIterator<Item = usize>) -> PieceRows {
        let count = rows.len();
        let mut all = [0; TILE_QUERIES];
        all[..count].iter_mut().zip(rows).for_each(|(into, row)| *into = row as u32);
        PieceRows { rows: all, count }
    }

    fn row(&self, index: usize) -> usize {
        self.rows[index] as usize
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows[..self.count].iter().map(|row| *row as usize)
    }
}

/// Some rows with one KV head.
struct AttendPiece<'a> {
    call: AttendCall<'a>,
    head: usize,
    rows: PieceRows,
}

/// The smallest range that contains both. With chosen positions it may also have some that neither reads.
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

/// The positions of a chunk that each row of a piece sees, counted from the chunk's beginning.
type SeenPositions = [Range<usize>; TILE_QUERIES];

/// The queries of one kernel call.
#[derive(Clone)]
struct QueryBatch {
    /// The queries that exist; the kernel computes `width` of them.
    queries: Range<usize>,
    width: usize,
    /// The positions of the chunk that some of their rows see, and those that all of them see.
    some: Range<usize>,
    all: Range<usize>,
}

impl AttendPiece<'_> {
    /// The selection of a row, if it reads the positions of one only.
    fn selection(&self, row: usize) -> Option<&[f32]> {
        self.call.heads.selected.map(|(all, numbers)| &all[row * numbers..][..numbers])
    }

    /// The positions of a chunk that a row sees, counted from the chunk's beginning: from the first to the last one that
    /// it reads.
    fn seen(&self, row: usize, chunk: usize) -> Range<usize> {
        let mut part =
            intersection(self.call.sees(row), chunk * CHUNK_POSITIONS..(chunk + 1) * CHUNK_POSITIONS);
        if let Some(selection) = self.selection(row) {
            let mut selected = part.clone().filter(|position| is_selected(selection, *position));
            part = selected.next().map_or(0..0, |first| first..selected.next_back().unwrap_or(first) + 1);
        }
        part.start - (chunk * CHUNK_POSITIONS).min(part.start)
            ..part.end - (chunk * CHUNK_POSITIONS).min(part.end)
    }

    fn queries(&self) -> usize {
        self.rows.count * self.call.attention.shared
    }

    /// Sets the running max and sum of a row's queries to what they are before the first chunk: those of the
    /// sinks, if there are any.
    fn begin(&self, running: &mut [MaxSum]) {
        let shared = self.call.attention.shared;
        match self.call.heads.sinks {
            None => running.fill([f32::NEG_INFINITY, 0.0]),
            Some(sinks) => {
                let sinks = &sinks[self.head * shared..(self.head + 1) * shared];
                for (running, sink) in running.iter_mut().zip(sinks) {
                    *running = [(f64::from(*sink) * std::f64::consts::LOG2_E) as f32, 1.0];
                }
            }
        }
    }

    /// The queries, in batches of one kernel call each.
    fn batches(&self, seen: &SeenPositions) -> impl Iterator<Item = QueryBatch> {
        let (count, shared) = (self.queries(), self.call.attention.shared);
        (0..count).step_by(BATCH_MAX).map(move |first| {
            let queries = first..count.min(first + BATCH_MAX);
            let rows = &seen[queries.start / shared..queries.end.div_ceil(shared)];
            let some = rows.iter().cloned().fold(0..0, union);
            let all = rows.iter().cloned().fold(0..CHUNK_POSITIONS, intersection);
            QueryBatch { width: width(queries.len()), queries, some, all }
        })
    }

    /// Writes the queries of each batch as `[dim][query]`, times the constant that scales scores to
    /// units of log 2, or to the argument of the cap.
    fn pack(&self, queries: &mut [f32]) {
        let AttentionParams { kv_heads, shared, size, scale, softcap, .. } = self.call.attention;
        let factor = match softcap {
            None => f64::from(scale) * std::f64::consts::LOG2_E,
            Some(cap) => 2.0 * f64::from(scale) / f64::from(cap) * std::f64::consts::LOG2_E,
        } as f32;
        let count = self.queries();
        for first in (0..count).step_by(BATCH_MAX) {
            let width = width(BATCH_MAX.min(count - first));
            let batch = &mut queries[first * size..(first + width) * size];
            batch.fill(0.0);
            for query in first..count.min(first + BATCH_MAX) {
                let row = self.rows.row(query / shared);
                let at = ((row * kv_heads + self.head) * shared + query % shared) * size;
                let q = &self.call.heads.q[at..at + size];
                for (into, value) in batch[query - first..].iter_mut().step_by(width).zip(q) {
                    *into = value * factor;
                }
            }
        }
    }

    fn attend(&self, tile: &mut OutputTile<'_, f32>, scratch: &mut AttendScratch<'_>) {
        let AttentionParams { shared, value_size, .. } = self.call.attention;
        let width = scratch.width;
        self.pack(scratch.queries);
        let queries = self.queries();
        scratch.running[..queries].chunks_exact_mut(shared).for_each(|running| self.begin(running));
        scratch.results[..self.queries() * width].fill(0.0);
        let seen = self.rows.iter().map(|row| self.call.sees(row)).fold(0..0, union);
        let chunks = seen.start / CHUNK_POSITIONS..seen.end.div_ceil(CHUNK_POSITIONS);
        for chunk in chunks.clone() {
            let ahead = match chunk + 1 < chunks.end {
                true => self.call.chunk_keys(self.rows.row(0), self.head, chunk + 1),
                false => &[],
            };
            self.chunk(chunk, ahead, scratch);
            for query in 0..self.queries() {
                if !self.seen(self.rows.row(query / shared), chunk).is_empty() {
                    let values = query * width..(query + 1) * width;
                    let (result, sums) = (&mut scratch.results[values.clone()], &scratch.sums[values]);
                    (self.call.table.join)(&mut scratch.running[query], result, scratch.partial[query], sums);
                }
            }
        }
        for (index, row) in self.rows.iter().enumerate() {
            let running = &scratch.running[index * shared..(index + 1) * shared];
            let results = &scratch.results[index * shared * width..];
            finish(tile.row(row), value_size, running, results, width);
        }
    }

    /// Computes the partial sums of a chunk. `ahead` is what is read next.
    fn chunk(&self, chunk: usize, ahead: &[u8], scratch: &mut AttendScratch<'_>) {
        let mut seen: SeenPositions = array::from_fn(|_| 0..0);
        self.rows.iter().zip(&mut seen).for_each(|(row, seen)| *seen = self.seen(row, chunk));
        let some = seen.iter().cloned().fold(0..0, union);
        let blocks = some.start / BLOCK_POSITIONS..some.end.div_ceil(BLOCK_POSITIONS);
        let walk = ChunkWalk { piece: self, first: chunk * CHUNK_BLOCKS, blocks, ahead };
        walk.score(&seen, some.clone(), scratch);
        self.weigh(chunk, &seen[..self.rows.count], scratch);
        walk.blend(&seen, some, scratch);
    }

    /// Replaces the scores of a chunk by weights. Neighbours that see the same positions are weighed together.
    fn weigh(&self, chunk: usize, seen: &[Range<usize>], scratch: &mut AttendScratch<'_>) {
        let AttentionParams { shared, softcap, .. } = self.call.attention;
        let cap = softcap.map(|cap| (f64::from(cap) * std::f64::consts::LOG2_E) as f32);
        let mut first = 0;
        for alike in seen.chunk_by(|a, b| a == b) {
            let (rows, seen) = (first..first + alike.len(), alike[0].clone());
            first = rows.end;
            if seen.is_empty() {
                continue;
            }
            let queries = rows.start * shared..rows.end * shared;
            let scores = &mut scratch.scores[queries.clone()];
            for (row, scores) in rows.zip(scores.chunks_exact_mut(shared)) {
                self.hide_unselected(self.rows.row(row), chunk, seen.clone(), scores);
            }
            (self.call.table.weigh)(scores, seen, cap, &mut scratch.partial[queries]);
        }
    }

    /// Lets the positions of a chunk that a row has not selected weigh nothing.
    fn hide_unselected(&self, row: usize, chunk: usize, seen: Range<usize>, scores: &mut [ChunkWeights]) {
        let Some(selection) = self.selection(row) else { return };
        let at = chunk * CHUNK_POSITIONS;
        for position in seen.filter(|position| !is_selected(selection, at + position)) {
            scores.iter_mut().for_each(|scores| scores[position] = f32::NEG_INFINITY);
        }
    }
}

/// The smallest width of the kernels for a number of queries.
fn width(queries: usize) -> usize {
    *WIDTHS.iter().find(|width| **width >= queries).expect("a batch is no wider than the widest")
}

/// The loops over the blocks of a chunk: first over keys, then over values.
struct ChunkWalk<'a> {
    piece: &'a AttendPiece<'a>,
    /// The chunk's first block among those of the sequence.
    first: usize,
    /// The blocks with a seen position, counted from the first.
    blocks: Range<usize>,
    /// What is read after the values of this chunk.
    ahead: &'a [u8],
}

impl<'a> ChunkWalk<'a> {
    fn keys(&self, block: usize) -> &'a [u8] {
        let AttendPiece { call, head, rows } = self.piece;
        call.heads.keys.head(call.rows.blocks(rows.row(0)), *head, self.first + block)
    }

    fn values(&self, block: usize) -> &'a [u8] {
        let AttendPiece { call, head, rows } = self.piece;
        call.heads.values.head(call.rows.blocks(rows.row(0)), *head, self.first + block)
    }

    /// Whether cells are decoded to memory: if more than one batch reads them.
    fn decodes(&self, format: Format) -> bool {
        self.piece.queries() > BATCH_MAX && format != Format::F32
    }

    /// Computes the scores of all positions that some row sees.
    fn score(&self, seen: &SeenPositions, some: Range<usize>, scratch: &mut AttendScratch<'_>) {
        let (table, size) = (self.piece.call.table, self.piece.call.attention.size);
        let format = self.piece.call.heads.keys.format();
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
                (table.widen_keys)(format, stored, ahead, &mut scratch.keys[..size * KEY_TILE]);
                (cells, ahead) = (Cells::Decoded(&scratch.keys[..size * KEY_TILE]), &[]);
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

    /// Adds up the weighted values, block after block.
    fn blend(&self, seen: &SeenPositions, some: Range<usize>, scratch: &mut AttendScratch<'_>) {
        let format = self.piece.call.heads.values.format();
        let (table, width, decodes) = (self.piece.call.table, scratch.width, self.decodes(format));
        scratch.sums[..self.piece.queries().next_multiple_of(BATCH_MAX) * width].fill(0.0);
        for index in self.blocks.clone() {
            let at = index * BLOCK_POSITIONS;
            let positions = intersection(some.clone(), at..at + BLOCK_POSITIONS);
            let positions = positions.start - at..positions.end - at;
            let ahead = match index + 1 < self.blocks.end {
                true => self.values(index + 1),
                false => self.ahead,
            };
            let cells = Cells::Stored(format, self.values(index));
            let mut block = ValueBlock { cells, positions, width, next: ahead };
            if self.piece.call.attention.held == ValuesHeld::InKeys {
                self.values_of_keys(index, format, scratch.keys, scratch.values);
                block.cells = Cells::Decoded(&scratch.values[..BLOCK_POSITIONS * width]);
            } else if decodes {
                (table.widen_values)(block.clone(), scratch.values);
                (block.cells, block.next) = (Cells::Decoded(&scratch.values[..BLOCK_POSITIONS * width]), &[]);
            }
            for batch in self.piece.batches(seen) {
                self.blend_batch(seen, &batch, at, block.clone(), scratch.scores, scratch.sums);
                block.next = &[];
            }
        }
    }

    /// Decodes the values of a block that are the first numbers of its keys, which lie transposed.
    fn values_of_keys(&self, block: usize, format: Format, keys: &mut [f32], values: &mut [f32]) {
        let AttentionParams { size, value_size, .. } = self.piece.call.attention;
        let (tile_bytes, dims) =
            (format.bytes(KEY_TILE, size), value_size.next_multiple_of(KV_GROUP).min(size));
        let width = value_size.next_multiple_of(LANES);
        let tiles = self.keys(block).chunks_exact(tile_bytes);
        for (tile, values) in tiles.zip(values.chunks_exact_mut(KEY_TILE * width)) {
            let keys = &mut keys[..dims * KEY_TILE];
            (self.piece.call.table.widen_keys)(format, &tile[..format.bytes(KEY_TILE, dims)], &[], keys);
            transpose(keys.as_chunks().0, width, values);
        }
    }

    /// Adds up the weighted values of one batch over one block: together for the positions that
    /// all rows see, else for each query alone.
    fn blend_batch(
        &self,
        seen: &SeenPositions,
        batch: &QueryBatch,
        at: usize,
        block: ValueBlock<'_>,
        weights: &[ChunkWeights],
        sums: &mut [f32],
    ) {
        let (table, shared, width) = (self.piece.call.table, self.piece.call.attention.shared, block.width);
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
