//! Writes keys and values to state, or to tensors of the step, block by block and head by head.
//!
//! Bytes moved: the rows once, and the state's cells once.

use std::sync::{Mutex, PoisonError};

use girih_graph::backend::Sequence;
use girih_graph::{BLOCK_POSITIONS, Graph, out_of_range};

use super::executor::{Executor, StepRows};
use crate::kernels::Table;
use crate::pool::{Grid, OutputTile};
use crate::state::{SequenceBlocks, StateTensor};
use crate::state_layout::StateLayout;

/// The maximum number of state values that a task writes: keys and values.
pub(crate) const MAX_WRITES: usize = 2;

/// The number of values in a piece; for fewer, starting a second thread takes longer than
/// writing them.
const WRITE_PIECE_VALUES: usize = 1 << 12;

/// A value that the type of its state cannot hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LostValue {
    /// Its row among the rows of the step.
    pub row: u32,
    /// The index of its state value among those that the task writes.
    pub part: usize,
    head: usize,
    pub value: f32,
}

/// The blocks that a step writes, in memory for the largest step.
#[derive(Debug)]
pub(crate) struct WrittenBlocks {
    /// The blocks, in ascending order.
    blocks: Vec<usize>,
    /// The sequence of each block, and the block's index in that sequence.
    owners: Vec<(usize, usize)>,
}

impl WrittenBlocks {
    /// Allocates memory for the blocks of any step of `graph`.
    pub fn new(graph: &Graph) -> WrittenBlocks {
        let max = WrittenBlocks::max(graph);
        WrittenBlocks { blocks: Vec::with_capacity(max), owners: Vec::with_capacity(max) }
    }

    /// The bytes of that memory.
    pub fn bytes(graph: &Graph) -> u64 {
        (WrittenBlocks::max(graph) * (size_of::<usize>() + size_of::<(usize, usize)>())) as u64
    }

    /// The maximum number of blocks; a sequence's rows may begin and end within a block.
    fn max(graph: &Graph) -> usize {
        graph.key.rows as usize / BLOCK_POSITIONS + 2 * graph.key.sequences as usize
    }

    /// Lists the blocks of a tensor that contain the sequences' rows.
    fn list(&mut self, sequences: &[Sequence<'_>], tensor: &StateTensor) {
        let touched = |sequence: &Sequence<'_>| {
            let (first, count) = (sequence.position as usize, sequence.rows.indexes().len());
            first / BLOCK_POSITIONS..(first + count).div_ceil(BLOCK_POSITIONS)
        };
        let block = |(sequence, index): (usize, usize)| {
            tensor.block_of(SequenceBlocks::of(&sequences[sequence], sequence), index)
        };
        self.owners.clear();
        let written =
            sequences.iter().enumerate().filter(|(_, sequence)| !sequence.rows.indexes().is_empty());
        for (index, sequence) in written {
            self.owners.extend(touched(sequence).map(|block| (index, block)));
        }
        self.owners.sort_unstable_by_key(|&owner| block(owner));
        self.blocks.clear();
        self.blocks.extend(self.owners.iter().map(|&owner| block(owner)));
    }

    /// The sequence of a listed block, and the block's index in that sequence.
    fn owner(&self, block: usize) -> (usize, usize) {
        self.owners[self.blocks.binary_search(&block).expect("only listed blocks are cut")]
    }
}

/// Writes rows to their positions in state values of one group, or in tensors of the step. Returns the
/// values that the state cannot hold, at most one for each head of a row, in the order of rows and then of states.
///
/// # Panics
/// If two sequences write to one block, which [`Runner`](girih_graph::Runner) does not
/// allow.
pub(crate) fn write<const N: usize>(
    executor: &mut Executor<'_>,
    sources: [&[f32]; N],
    states: [&mut StateTensor; N],
    rows: StepRows<'_>,
    written: &mut WrittenBlocks,
) -> Vec<LostValue> {
    written.list(rows.sequences, states[0]);
    let written = &*written;
    let each = rows.origins.len().div_ceil(written.blocks.len().max(1)).max(1);
    let blocks = states.map(StateTensor::blocks_mut);
    let layouts = blocks.each_ref().map(|(layout, _)| *layout);
    let outputs = blocks.map(|(layout, bytes)| {
        let heads = WRITE_PIECE_VALUES.div_ceil(each * layout.size);
        let column_step = heads * layout.head_bytes();
        (bytes, Grid { width: layout.block_bytes(), row_step: 1, column_step })
    });
    let Executor { table, pool, locals, .. } = executor;
    let lost = Mutex::new(Vec::new());
    let body = |part: usize, tile: &mut OutputTile<'_, u8>| {
        let (sequence, block) = written.owner(tile.rows().start);
        let write = WritePart { table, x: sources[part], layout: layouts[part], part, lost: &lost };
        write.write(&rows.sequences[sequence], block, tile);
    };
    if rows.origins.len() > 1 {
        pool.tiles_of_rows(locals, &written.blocks, outputs, |part, tile, _| body(part, tile));
    } else {
        // Writing one row takes less time than starting a second thread.
        for (part, output) in outputs.into_iter().enumerate() {
            pool.tiles_of_rows(locals, &written.blocks, [output], |_, tile, _| body(part, tile));
        }
    }
    let mut lost = lost.into_inner().unwrap_or_else(PoisonError::into_inner);
    lost.sort_unstable_by_key(|&LostValue { row, part, head, .. }| (row, part, head));
    lost
}

/// The rows for one state value, and its layout.
struct WritePart<'a> {
    table: &'a Table,
    x: &'a [f32],
    layout: StateLayout,
    /// The index of the state value among those that the task writes.
    part: usize,
    /// The values that the state cannot hold.
    lost: &'a Mutex<Vec<LostValue>>,
}

impl WritePart<'_> {
    /// Writes the rows of a sequence that belong to its block `index` to the tile's heads.
    fn write(&self, sequence: &Sequence<'_>, index: usize, tile: &mut OutputTile<'_, u8>) {
        let StateLayout { heads, size, .. } = self.layout;
        let (position, rows) = (sequence.position as usize, sequence.rows.indexes());
        let start = position.max(index * BLOCK_POSITIONS);
        let count = (position + rows.len()).min((index + 1) * BLOCK_POSITIONS) - start;
        let (first, at) = (rows.start + start - position, start % BLOCK_POSITIONS);
        let (stride, head_bytes) = (heads * size, self.layout.head_bytes());
        let head = tile.columns().start / head_bytes;
        let bytes = tile.row(tile.rows().start).chunks_exact_mut(head_bytes);
        for (head, bytes) in (head..).zip(bytes) {
            let x = &self.x[first * stride + head * size..][..(count - 1) * stride + size];
            if self.layout.put(self.table, x, stride, at, bytes) {
                self.find_lost(x, stride, first, head);
            }
        }
    }

    /// Lists the values of a head that the state cannot hold, in rows of the step from `first` on, which are
    /// `stride` values apart.
    #[cold]
    fn find_lost(&self, rows: &[f32], stride: usize, first: usize, head: usize) {
        let (size, dtype) = (self.layout.size, self.layout.format.dtype());
        for (row, values) in (first as u32..).zip(rows.chunks(stride)) {
            if let Some(value) = out_of_range(dtype, &values[..size]) {
                let lost = LostValue { row, part: self.part, head, value };
                self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(lost);
            }
        }
    }
}
