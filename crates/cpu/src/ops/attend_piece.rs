//! A piece of attention: some rows with one KV head, chunk after chunk.

use std::array;
use std::ops::Range;

use girih_graph::backend::Sequence;
use girih_graph::{BLOCK_POSITIONS, Span, is_selected};

use super::attend_scratch::{AttendScratch, BATCH_MAX, TILE_QUERIES};
use super::executor::{RowOrigin, StepRows};
use crate::kernels::attend::{
    AttendKernels, CHUNK_POSITIONS, Cells, ChunkWeights, Format, KEY_TILE, KV_GROUP, LANES, MaxSum,
    ValueBlock, WIDTHS, transpose,
};
use crate::kernels::prefetch::prefetch_line;
use crate::pool::OutputTile;
use crate::state::StateTensor;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The blocks of a chunk.
pub(super) const CHUNK_BLOCKS: usize = CHUNK_POSITIONS / BLOCK_POSITIONS;

/// Blocks of a head are prefetched this many bytes before they are read, if [`BLOCKS_AHEAD`] blocks are so large.
/// Measured (`docs/kernels.md`).
const BYTES_AHEAD: usize = 8192;

/// The maximum number of blocks from the one that is read to the one that is prefetched.
pub(super) const BLOCKS_AHEAD: usize = 2;

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
    pub(super) fn sizes(&self) -> [usize; 3] {
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

/// One call of the operator.
#[derive(Clone, Copy)]
pub(super) struct AttendCall<'a> {
    pub(super) table: &'a AttendKernels,
    pub(super) heads: AttentionOperands<'a>,
    pub(super) attention: AttentionParams,
    pub(super) rows: StepRows<'a>,
}

impl<'a> AttendCall<'a> {
    /// The chunks of which at least one row of the sequence sees a position.
    pub(super) fn chunks(&self, sequence: &Sequence<'_>) -> Range<usize> {
        let rows = sequence.rows.indexes();
        let seen = rows.map(|row| self.sees(row)).reduce(union).unwrap_or(0..0);
        seen.start / CHUNK_POSITIONS..seen.end.div_ceil(CHUNK_POSITIONS)
    }

    /// The number of units: rows times chunks.
    pub(super) fn units(&self, sequence: &Sequence<'_>) -> usize {
        self.chunks(sequence).len() * sequence.rows.indexes().len()
    }

    /// The positions that a row sees.
    pub(super) fn sees(&self, row: usize) -> Range<usize> {
        let RowOrigin { sequence, position } = self.rows.origins[row];
        self.rows.sequences[sequence as usize].sees(self.attention.span, position as usize)
    }

    /// The number of blocks from the one that is read to the one that is prefetched.
    fn blocks_ahead(&self) -> usize {
        let bytes = self.heads.keys.format().bytes(BLOCK_POSITIONS, self.attention.size);
        BYTES_AHEAD.div_ceil(bytes).clamp(1, BLOCKS_AHEAD)
    }

    /// The keys of one head in the first blocks of a chunk of the sequence of `row`, which are prefetched before the
    /// chunk; nothing for blocks behind the last position that the row sees.
    pub(super) fn chunk_keys(&self, row: usize, head: usize, chunk: usize) -> [&'a [u8]; BLOCKS_AHEAD] {
        let (first, sees, ahead) = (chunk * CHUNK_BLOCKS, self.sees(row), self.blocks_ahead());
        array::from_fn(|index| match index < ahead && (first + index) * BLOCK_POSITIONS < sees.end {
            true => self.heads.keys.head(self.rows.blocks(row), head, first + index),
            false => &[],
        })
    }
}

/// The rows of a piece: of one sequence, or of several that read the same blocks.
pub(super) struct PieceRows {
    rows: [u32; TILE_QUERIES],
    /// The positions that each row sees.
    sees: [[u32; 2]; TILE_QUERIES],
    count: usize,
}

impl PieceRows {
    pub(super) fn of(call: AttendCall<'_>, rows: impl Iterator<Item = usize>) -> PieceRows {
        let mut all = PieceRows { rows: [0; TILE_QUERIES], sees: [[0; 2]; TILE_QUERIES], count: 0 };
        for row in rows {
            let Range { start, end } = call.sees(row);
            (all.rows[all.count], all.sees[all.count]) = (row as u32, [start as u32, end as u32]);
            all.count += 1;
        }
        all
    }

    fn row(&self, index: usize) -> usize {
        self.rows[index] as usize
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.rows[..self.count].iter().map(|row| *row as usize)
    }

    /// The positions that the row at `index` sees.
    fn sees(&self, index: usize) -> Range<usize> {
        let [start, end] = self.sees[index];
        start as usize..end as usize
    }
}

/// The smallest range that contains both.
fn union(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

/// Positions of a chunk, counted from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChunkPositions {
    start: u16,
    end: u16,
}

impl ChunkPositions {
    const NONE: ChunkPositions = ChunkPositions { start: 0, end: 0 };
    const ALL: ChunkPositions = ChunkPositions { start: 0, end: CHUNK_POSITIONS as u16 };

    /// Those of `positions` that are in the chunk.
    fn of(positions: Range<usize>, chunk: usize) -> ChunkPositions {
        let within = |at: usize| at.saturating_sub(chunk * CHUNK_POSITIONS).min(CHUNK_POSITIONS) as u16;
        ChunkPositions { start: within(positions.start), end: within(positions.end) }
    }

    /// The positions of a block of the chunk.
    fn of_block(block: usize) -> ChunkPositions {
        let start = (block * BLOCK_POSITIONS) as u16;
        ChunkPositions { start, end: start + BLOCK_POSITIONS as u16 }
    }

    fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// As a range that begins at `from`.
    fn from(self, from: usize) -> Range<usize> {
        if self.is_empty() { 0..0 } else { usize::from(self.start) - from..usize::from(self.end) - from }
    }

    fn intersection(self, other: ChunkPositions) -> ChunkPositions {
        ChunkPositions { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The smallest range that contains both. With chosen positions it may also have some that neither reads.
    fn union(self, other: ChunkPositions) -> ChunkPositions {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            _ => ChunkPositions { start: self.start.min(other.start), end: self.end.max(other.end) },
        }
    }
}

/// What the rows of a piece see of a chunk.
pub(super) struct ChunkView {
    rows: [ChunkPositions; TILE_QUERIES],
    /// The positions that some row sees.
    some: ChunkPositions,
    /// Whether all rows see the same positions.
    alike: bool,
}

/// The queries of one kernel call.
struct QueryBatch {
    /// The queries that exist; the kernel computes `width` of them.
    queries: Range<usize>,
    width: usize,
    /// The positions of the chunk that some of their rows see, and those that all of them see.
    some: ChunkPositions,
    all: ChunkPositions,
}

/// Divides weighted sums by the sums of weights.
pub(super) fn finish(
    output: &mut [f32],
    value_size: usize,
    running: &[MaxSum],
    results: &[f32],
    width: usize,
) {
    let sums = running.iter().zip(results.chunks_exact(width));
    for (output, ([_, sum], result)) in output.chunks_exact_mut(value_size).zip(sums) {
        for (output, value) in output.iter_mut().zip(result) {
            *output = value / sum;
        }
    }
}

/// Some rows with one KV head.
pub(super) struct AttendPiece<'a> {
    pub(super) call: AttendCall<'a>,
    pub(super) head: usize,
    pub(super) rows: PieceRows,
}

impl AttendPiece<'_> {
    /// The selection of a row, if it reads the positions of one only.
    fn selection(&self, row: usize) -> Option<&[f32]> {
        self.call.heads.selected.map(|(all, numbers)| &all[row * numbers..][..numbers])
    }

    /// The positions of a chunk that the row at `index` sees, from the first to the last one that it reads.
    fn seen(&self, index: usize, chunk: usize) -> ChunkPositions {
        let seen = ChunkPositions::of(self.rows.sees(index), chunk);
        let Some(selection) = self.selection(self.rows.row(index)) else { return seen };
        let at = chunk * CHUNK_POSITIONS;
        let mut selected = seen.from(0).filter(|position| is_selected(selection, at + position));
        selected.next().map_or(ChunkPositions::NONE, |first| {
            let last = selected.next_back().unwrap_or(first);
            ChunkPositions { start: first as u16, end: last as u16 + 1 }
        })
    }

    fn seen_rows(&self, chunk: usize) -> ChunkView {
        let mut rows = [ChunkPositions::NONE; TILE_QUERIES];
        let (mut some, mut alike) = (ChunkPositions::NONE, true);
        for index in 0..self.rows.count {
            rows[index] = self.seen(index, chunk);
            some = some.union(rows[index]);
            alike &= rows[index] == rows[0];
        }
        ChunkView { rows, some, alike }
    }

    /// Whether the row at `index` sees a position of a chunk.
    pub(super) fn sees_some(&self, index: usize, chunk: usize) -> bool {
        !self.seen(index, chunk).is_empty()
    }

    pub(super) fn queries(&self) -> usize {
        self.rows.count * self.call.attention.shared
    }

    /// Sets the running max and sum of a row's queries to what they are before the first chunk: those of the
    /// sinks, if there are any.
    pub(super) fn begin(&self, running: &mut [MaxSum]) {
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
    fn batches(&self, seen: &ChunkView) -> impl Iterator<Item = QueryBatch> {
        let (count, shared) = (self.queries(), self.call.attention.shared);
        (0..count).step_by(BATCH_MAX).map(move |first| {
            let queries = first..count.min(first + BATCH_MAX);
            let (mut some, mut all) = (seen.some, seen.some);
            if !seen.alike {
                (some, all) = (ChunkPositions::NONE, ChunkPositions::ALL);
                for own in &seen.rows[queries.start / shared..queries.end.div_ceil(shared)] {
                    (some, all) = (some.union(*own), all.intersection(*own));
                }
            }
            QueryBatch { width: width(queries.len()), queries, some, all }
        })
    }

    /// Writes the queries of each batch as `[dim][query]`, times the constant that scales scores to
    /// units of log 2, or to the argument of the cap.
    pub(super) fn pack(&self, queries: &mut [f32]) {
        let AttentionParams { kv_heads, shared, size, scale, softcap, .. } = self.call.attention;
        let factor = match softcap {
            None => f64::from(scale) * std::f64::consts::LOG2_E,
            Some(cap) => 2.0 * f64::from(scale) / f64::from(cap) * std::f64::consts::LOG2_E,
        } as f32;
        let count = self.queries();
        let of = |query: usize| {
            let row = self.rows.row(query / shared);
            &self.call.heads.q[((row * kv_heads + self.head) * shared + query % shared) * size..][..size]
        };
        // Rows of queries lie too far apart for a processor to foresee them.
        let lines = (0..count).flat_map(|query| of(query).chunks(LINE / size_of::<f32>()));
        lines.for_each(|line| prefetch_line(line.as_ptr().addr()));
        for first in (0..count).step_by(BATCH_MAX) {
            let last = count.min(first + BATCH_MAX);
            let width = width(last - first);
            let batch = &mut queries[first * size..(first + width) * size];
            if first + width > last {
                batch.fill(0.0);
            }
            let fours = (last - first) / 4 * 4;
            for four in (0..fours).step_by(4) {
                let at = first + four;
                interleave([of(at), of(at + 1), of(at + 2), of(at + 3)], factor, width, &mut batch[four..]);
            }
            for index in fours..last - first {
                for (into, value) in batch[index..].iter_mut().step_by(width).zip(of(first + index)) {
                    *into = value * factor;
                }
            }
        }
    }

    /// Computes all chunks, and writes the results.
    pub(super) fn attend(&self, tile: &mut OutputTile<'_, f32>, scratch: &mut AttendScratch<'_>) {
        let AttentionParams { shared, value_size, .. } = self.call.attention;
        let width = scratch.width;
        self.pack(scratch.queries);
        let queries = self.queries();
        scratch.running[..queries].chunks_exact_mut(shared).for_each(|running| self.begin(running));
        scratch.results[..queries * width].fill(0.0);
        let sees = (0..self.rows.count).map(|index| self.rows.sees(index)).fold(0..0, union);
        let chunks = sees.start / CHUNK_POSITIONS..sees.end.div_ceil(CHUNK_POSITIONS);
        for chunk in chunks.clone() {
            let ahead = match chunk + 1 < chunks.end {
                true => self.call.chunk_keys(self.rows.row(0), self.head, chunk + 1),
                false => [&[][..]; BLOCKS_AHEAD],
            };
            let seen = self.chunk(chunk, ahead, scratch);
            let unseen = |query: usize| seen.rows[query / shared].is_empty();
            for query in (0..queries).filter(|query| !unseen(*query)) {
                let values = query * width..(query + 1) * width;
                let (result, sums) = (&mut scratch.results[values.clone()], &scratch.sums[values]);
                (self.call.table.join)(&mut scratch.running[query], result, scratch.partial[query], sums);
            }
        }
        for (index, row) in self.rows.iter().enumerate() {
            let running = &scratch.running[index * shared..(index + 1) * shared];
            let results = &scratch.results[index * shared * width..];
            finish(tile.row(row), value_size, running, results, width);
        }
    }

    /// Computes the partial sums of a chunk; returns what rows see of it. `ahead` is what is read next.
    pub(super) fn chunk(
        &self,
        chunk: usize,
        ahead: [&[u8]; BLOCKS_AHEAD],
        scratch: &mut AttendScratch<'_>,
    ) -> ChunkView {
        let seen = self.seen_rows(chunk);
        let some = seen.some.from(0);
        let blocks = some.start / BLOCK_POSITIONS..some.end.div_ceil(BLOCK_POSITIONS);
        let walk = ChunkWalk { piece: self, seen: &seen, first: chunk * CHUNK_BLOCKS, blocks, ahead };
        walk.score(scratch);
        self.weigh(chunk, &seen, scratch);
        walk.blend(scratch);
        seen
    }

    /// Replaces the scores of a chunk by weights. Neighbours that see the same positions are weighed together.
    fn weigh(&self, chunk: usize, seen: &ChunkView, scratch: &mut AttendScratch<'_>) {
        let AttentionParams { shared, softcap, .. } = self.call.attention;
        let cap = softcap.map(|cap| (f64::from(cap) * std::f64::consts::LOG2_E) as f32);
        let mut first = 0;
        for alike in seen.rows[..self.rows.count].chunk_by(|a, b| a == b) {
            let (rows, seen) = (first..first + alike.len(), alike[0]);
            first = rows.end;
            if seen.is_empty() {
                continue;
            }
            let queries = rows.start * shared..rows.end * shared;
            let scores = &mut scratch.scores[queries.clone()];
            for (index, scores) in rows.zip(scores.chunks_exact_mut(shared)) {
                self.hide_unselected(self.rows.row(index), chunk, seen, scores);
            }
            (self.call.table.weigh)(scores, seen.from(0), cap, &mut scratch.partial[queries]);
        }
    }

    /// Lets the positions of a chunk that a row has not selected weigh nothing.
    fn hide_unselected(&self, row: usize, chunk: usize, seen: ChunkPositions, scores: &mut [ChunkWeights]) {
        let Some(selection) = self.selection(row) else { return };
        let at = chunk * CHUNK_POSITIONS;
        for position in seen.from(0).filter(|position| !is_selected(selection, at + position)) {
            scores.iter_mut().for_each(|scores| scores[position] = f32::NEG_INFINITY);
        }
    }
}

/// Writes four queries times `factor`: the numbers of a dim side by side, and dims `width` apart.
fn interleave(queries: [&[f32]; 4], factor: f32, width: usize, into: &mut [f32]) {
    let [a, b, c, d] = queries.map(|query| query.as_chunks::<4>());
    let mut dims = into.chunks_mut(width);
    for (((a, b), c), d) in a.0.iter().zip(b.0).zip(c.0).zip(d.0) {
        let four = [a, b, c, d].map(|query| query.map(|value| value * factor));
        for dim in 0..4 {
            let line = four.map(|query| query[dim]);
            dims.next().expect("a line for each dim")[..4].copy_from_slice(&line);
        }
    }
    for ((((a, b), c), d), dim) in a.1.iter().zip(b.1).zip(c.1).zip(d.1).zip(dims) {
        dim[..4].copy_from_slice(&[*a, *b, *c, *d].map(|value| value * factor));
    }
}

/// The smallest width of the kernels for a number of queries.
fn width(queries: usize) -> usize {
    *WIDTHS.iter().find(|width| **width >= queries).expect("a batch is no wider than the widest")
}

/// The loops over the blocks of a chunk: first over keys, then over values.
struct ChunkWalk<'a> {
    piece: &'a AttendPiece<'a>,
    seen: &'a ChunkView,
    /// The chunk's first block among those of the sequence.
    first: usize,
    /// The blocks with a seen position, counted from the first.
    blocks: Range<usize>,
    /// The blocks that are read after the values of this chunk.
    ahead: [&'a [u8]; BLOCKS_AHEAD],
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

    /// The block to prefetch while the one is read that is at `index` in the order of reading: keys, values, and what
    /// follows the chunk.
    fn soon(&self, index: usize) -> &'a [u8] {
        let (blocks, soon) = (self.blocks.len(), index + self.piece.call.blocks_ahead());
        match soon {
            _ if soon < blocks => self.keys(self.blocks.start + soon),
            _ if soon < 2 * blocks => self.values(self.blocks.start + soon - blocks),
            _ => self.ahead[soon - 2 * blocks],
        }
    }

    /// Whether cells are decoded to memory: if more than one batch reads them.
    fn decodes(&self, format: Format) -> bool {
        self.piece.queries() > BATCH_MAX && format != Format::F32
    }

    /// Computes the scores of all positions that some row sees.
    fn score(&self, scratch: &mut AttendScratch<'_>) {
        let (table, size) = (self.piece.call.table, self.piece.call.attention.size);
        let format = self.piece.call.heads.keys.format();
        let (tile_bytes, tile_len) = (format.bytes(KEY_TILE, size), KEY_TILE * size);
        let decodes = self.decodes(format);
        for block in self.blocks.clone() {
            let at = block * BLOCK_POSITIONS;
            let tiles = |positions: ChunkPositions| {
                let own = positions.intersection(ChunkPositions::of_block(block)).from(at);
                own.start / KEY_TILE..own.end.div_ceil(KEY_TILE)
            };
            let (some, keys) = (tiles(self.seen.some), self.keys(block));
            let next = self.soon(block - self.blocks.start);
            let part = some.start * tile_bytes..some.end * tile_bytes;
            let mut ahead = next.get(part.clone()).unwrap_or(&[]);
            if decodes {
                let into = &mut scratch.keys[some.start * tile_len..some.end * tile_len];
                (table.widen_keys)(format, &keys[part], ahead, into);
                ahead = &[];
            }
            for batch in self.piece.batches(self.seen) {
                let tiles = tiles(batch.some);
                if tiles.is_empty() {
                    continue;
                }
                let cells = match decodes {
                    true => Cells::Decoded(&scratch.keys[tiles.start * tile_len..tiles.end * tile_len]),
                    false => Cells::Stored(format, &keys[tiles.start * tile_bytes..tiles.end * tile_bytes]),
                };
                let Range { start, .. } = batch.queries;
                let queries = &scratch.queries[start * size..(start + batch.width) * size];
                let scores = &mut scratch.scores[start..start + batch.width];
                (table.score)(queries, cells, ahead, scores, at + tiles.start * KEY_TILE);
                ahead = &[];
            }
        }
    }

    /// Adds up the weighted values, block after block.
    fn blend(&self, scratch: &mut AttendScratch<'_>) {
        let format = self.piece.call.heads.values.format();
        let (table, width, decodes) = (self.piece.call.table, scratch.width, self.decodes(format));
        scratch.sums[..self.piece.queries().next_multiple_of(BATCH_MAX) * width].fill(0.0);
        for index in self.blocks.clone() {
            let at = index * BLOCK_POSITIONS;
            let positions = self.seen.some.intersection(ChunkPositions::of_block(index)).from(at);
            let next = self.soon(self.blocks.len() + index - self.blocks.start);
            let cells = Cells::Stored(format, self.values(index));
            let mut block = ValueBlock { cells, positions, width, next };
            if self.piece.call.attention.held == ValuesHeld::InKeys {
                self.values_of_keys(index, format, scratch.keys, scratch.values);
                block.cells = Cells::Decoded(&scratch.values[..BLOCK_POSITIONS * width]);
            } else if decodes {
                (table.widen_values)(block.clone(), scratch.values);
                (block.cells, block.next) = (Cells::Decoded(&scratch.values[..BLOCK_POSITIONS * width]), &[]);
            }
            for batch in self.piece.batches(self.seen) {
                let sums = BlockSums { walk: self, index, weights: scratch.scores, sums: scratch.sums };
                sums.add(&batch, block.clone());
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
}

/// The sums to which the weighted values of a block are added.
struct BlockSums<'a> {
    walk: &'a ChunkWalk<'a>,
    /// The index of the block in the chunk.
    index: usize,
    weights: &'a [ChunkWeights],
    sums: &'a mut [f32],
}

impl BlockSums<'_> {
    /// Adds those of one batch: together for the positions that all rows see, else for each row alone.
    fn add(mut self, batch: &QueryBatch, block: ValueBlock<'_>) {
        let own = ChunkPositions::of_block(self.index);
        let (all, some) = (batch.all.intersection(own), batch.some.intersection(own));
        let together = batch.queries.start..batch.queries.start + batch.width;
        if all == some {
            return self.blend(together, all, block);
        }
        let before = |row: ChunkPositions| match all.is_empty() {
            true => row,
            false => ChunkPositions { start: row.start, end: row.end.min(all.start) },
        };
        self.blend_rows(batch, before, &block);
        if !all.is_empty() {
            self.blend(together, all, block.clone());
            let after = |row: ChunkPositions| ChunkPositions { start: row.start.max(all.end), end: row.end };
            self.blend_rows(batch, after, &block);
        }
    }

    /// Adds `part` of the positions that each row sees.
    fn blend_rows(
        &mut self,
        batch: &QueryBatch,
        part: impl Fn(ChunkPositions) -> ChunkPositions,
        block: &ValueBlock<'_>,
    ) {
        let shared = self.walk.piece.call.attention.shared;
        let Range { mut start, end } = batch.queries;
        while start < end {
            let row = start / shared;
            let own = part(self.walk.seen.rows[row].intersection(ChunkPositions::of_block(self.index)));
            // The most queries of the row that a kernel takes.
            let left = end.min((row + 1) * shared) - start;
            let count = WIDTHS.into_iter().rev().find(|width| *width <= left).expect("one query is a width");
            self.blend(start..start + count, own, block.clone());
            start += count;
        }
    }

    /// Adds the same positions for some queries.
    fn blend(&mut self, queries: Range<usize>, positions: ChunkPositions, block: ValueBlock<'_>) {
        if positions.is_empty() {
            return;
        }
        let at = self.index * BLOCK_POSITIONS;
        let block = ValueBlock { positions: positions.from(at), ..block };
        let sums = &mut self.sums[queries.start * block.width..queries.end * block.width];
        (self.walk.piece.call.table.blend)(&self.weights[queries], at, block, sums);
    }
}
