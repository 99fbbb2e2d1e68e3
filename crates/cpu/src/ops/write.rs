//! Keys and values put into state, block by block and head by head: keys that
//! are turned are so on their way, in the first cache, and not stored before.
//!
//! Bytes moved: the rows once, and the state's cells once.

use girih_graph::backend::Sequence;
use girih_graph::{BLOCK_POSITIONS, Graph, GroupId, Pairing};

use super::rope::StepTurns;
use super::{Executor, Rows};
use crate::kernels::Table;
use crate::memory::Aligned;
use crate::pool::{Grid, Tile};
use crate::state::{Layout, StateTensor};

/// State values that one task writes, at the most: keys and values.
pub(crate) const MOST_WRITES: usize = 2;

/// Values of a piece: fewer are written sooner than a second thread is told.
const PIECE: usize = 1 << 12;

/// Rows for one state value.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub x: &'a [f32],
    /// The turns of the rows' heads, if those are turned before they are stored.
    pub turns: Option<(&'a StepTurns, Pairing)>,
}

/// The blocks that a step writes to, in memory that was made for the largest step.
#[derive(Debug)]
pub(crate) struct Written {
    /// Which they are, ascending.
    blocks: Vec<usize>,
    /// The sequence of each, and its index among the sequence's blocks.
    owners: Vec<(usize, usize)>,
}

impl Written {
    /// Room for the blocks of any step of `graph`.
    pub fn new(graph: &Graph) -> Written {
        let most = Written::most(graph);
        Written { blocks: Vec::with_capacity(most), owners: Vec::with_capacity(most) }
    }

    /// The bytes that it takes.
    pub fn bytes(graph: &Graph) -> u64 {
        (Written::most(graph) * (size_of::<usize>() + size_of::<(usize, usize)>())) as u64
    }

    /// A sequence's rows may begin and end within a block.
    fn most(graph: &Graph) -> usize {
        graph.key.rows as usize / BLOCK_POSITIONS + 2 * graph.key.sequences as usize
    }

    /// Lists the blocks of a group that the sequences' rows are in.
    fn list(&mut self, sequences: &[Sequence<'_>], group: GroupId) {
        let touched = |sequence: &Sequence<'_>| {
            let (first, count) = (sequence.position as usize, sequence.rows.indexes().len());
            first / BLOCK_POSITIONS..(first + count).div_ceil(BLOCK_POSITIONS)
        };
        let block = |(sequence, index): (usize, usize)| {
            sequences[sequence].blocks[group.0 as usize][index].0 as usize
        };
        self.owners.clear();
        for (sequence, of_lane) in
            sequences.iter().enumerate().filter(|(_, sequence)| !sequence.rows.indexes().is_empty())
        {
            self.owners.extend(touched(of_lane).map(|index| (sequence, index)));
        }
        self.owners.sort_unstable_by_key(|&owner| block(owner));
        self.blocks.clear();
        self.blocks.extend(self.owners.iter().map(|&owner| block(owner)));
    }

    /// The sequence of a block that was listed, and its index there.
    fn owner(&self, block: usize) -> (usize, usize) {
        self.owners[self.blocks.binary_search(&block).expect("only listed blocks are cut")]
    }
}

/// Numbers of a thread's scratch for heads of this size.
pub(crate) fn local_size(size: usize) -> usize {
    BLOCK_POSITIONS * size
}

/// Puts rows where their sequences' state has their positions, in state values of
/// one group.
///
/// # Panics
/// When sequences write to one block, which the contract of steps rules out.
pub(crate) fn write<const N: usize>(
    executor: &mut Executor<'_>,
    sources: [Source<'_>; N],
    states: [&mut StateTensor; N],
    rows: Rows<'_>,
    written: &mut Written,
) {
    written.list(rows.sequences, states[0].group());
    let written = &*written;
    let each = rows.origins.len().div_ceil(written.blocks.len().max(1)).max(1);
    let blocks = states.map(StateTensor::blocks_mut);
    let layouts = blocks.each_ref().map(|(layout, _)| *layout);
    let outputs = blocks.map(|(layout, bytes)| {
        let heads = PIECE.div_ceil(each * layout.size);
        let column_step = heads * layout.head_bytes();
        (bytes, Grid { width: layout.block_bytes(), row_step: 1, column_step })
    });
    let Executor { table, pool, locals, .. } = executor;
    let body = |index: usize, tile: &mut Tile<'_, u8>, scratch: &mut Aligned<f32>| {
        let (sequence, block) = written.owner(tile.rows().start);
        let part = Part { table, source: sources[index], layout: layouts[index] };
        part.put(&rows.sequences[sequence], block, tile, scratch);
    };
    if rows.origins.len() > 1 {
        return pool.tiles_of_rows(locals, &written.blocks, outputs, body);
    }
    // One row is put sooner than a second thread is told.
    for (index, output) in outputs.into_iter().enumerate() {
        pool.tiles_of_rows(locals, &written.blocks, [output], |_, tile, scratch| body(index, tile, scratch));
    }
}

/// What one state value receives, and how it lies there.
struct Part<'a> {
    table: &'a Table,
    source: Source<'a>,
    layout: Layout,
}

impl Part<'_> {
    /// Puts the rows of a sequence that belong to its block `index` into heads of it.
    fn put(&self, sequence: &Sequence<'_>, index: usize, tile: &mut Tile<'_, u8>, scratch: &mut [f32]) {
        let (Source { x, turns }, Layout { heads, size, .. }) = (self.source, self.layout);
        let (position, rows) = (sequence.position as usize, sequence.rows.indexes());
        let start = position.max(index * BLOCK_POSITIONS);
        let count = (position + rows.len()).min((index + 1) * BLOCK_POSITIONS) - start;
        let (first, at) = (rows.start + start - position, start % BLOCK_POSITIONS);
        let (stride, head_bytes) = (heads * size, self.layout.head_bytes());
        let head = tile.columns().start / head_bytes;
        let bytes = tile.row(tile.rows().start).chunks_exact_mut(head_bytes);
        for (head, bytes) in (head..).zip(bytes) {
            let x = &x[first * stride + head * size..][..(count - 1) * stride + size];
            let Some((turns, pairing)) = turns else {
                self.layout.put(self.table, x, stride, at, bytes);
                continue;
            };
            let turned = &mut scratch[..count * size];
            for (row, (x, turned)) in x.chunks(stride).zip(turned.chunks_exact_mut(size)).enumerate() {
                (self.table.rotate)(&x[..size], turns.row(first + row), pairing, turned);
            }
            self.layout.put(self.table, turned, size, at, bytes);
        }
    }
}
