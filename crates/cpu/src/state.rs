//! State: keys and values of all sequences, block by block.
//!
//! ```text
//! tensor = block 0 | block 1 | …            blocks belong to whom the engine says
//! block  = head 0 | head 1 | …
//! head   = position 0 | … | position 63     a row of the head's size each
//! ```
//! So what one head reads over the positions of a block lies in one piece.

use std::ops::Range;

use girih_graph::backend::{self, Block, Lane};
use girih_graph::{BLOCK_POSITIONS, Error, Graph, GroupId, Role, Value};
use girih_tensor::DType;

use crate::kernels::Table;
use crate::memory::Aligned;

/// The state values of a graph, in the order in which they stand in it.
#[derive(Debug)]
pub struct Cache {
    tensors: Vec<StateTensor>,
}

/// One state value, for all blocks of its group.
#[derive(Debug)]
pub(crate) struct StateTensor {
    group: GroupId,
    dtype: DType,
    heads: usize,
    /// Values of one head at one position.
    size: usize,
    bytes: Aligned<u8>,
}

impl Cache {
    /// The bytes that so many blocks per group take.
    pub(crate) fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let sizes = values(graph).map(|(group, value)| {
            let blocks = blocks.get(group.0 as usize).copied().unwrap_or(0) as usize;
            Aligned::<u8>::bytes(tensor_bytes(value, blocks).unwrap_or(usize::MAX))
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Zeroed state of so many blocks per group.
    pub(crate) fn new(graph: &Graph, blocks: &[u32]) -> Result<Cache, Error> {
        let tensors = values(graph).map(|(group, value)| {
            let blocks = blocks.get(group.0 as usize).copied().unwrap_or(0);
            let too_many = || Error::new(format!("{blocks} blocks of '{}' are more than memory", value.name));
            let bytes = tensor_bytes(value, blocks as usize).ok_or_else(too_many)?;
            let (heads, size) = heads(value);
            let bytes = Aligned::zeroed(bytes, &value.name)?;
            Ok(StateTensor { group, dtype: value.dtype, heads, size, bytes })
        });
        Ok(Cache { tensors: tensors.collect::<Result<_, Error>>()? })
    }

    /// The state value that stands at `index` among those of the graph.
    pub(crate) fn tensor(&self, index: usize) -> &StateTensor {
        &self.tensors[index]
    }

    /// As [`Cache::tensor`], to be written to.
    pub(crate) fn tensor_mut(&mut self, index: usize) -> &mut StateTensor {
        &mut self.tensors[index]
    }

    fn of_group(&self, group: GroupId) -> impl Iterator<Item = &StateTensor> {
        self.tensors.iter().filter(move |tensor| tensor.group == group)
    }

    fn of_group_mut(&mut self, group: GroupId) -> impl Iterator<Item = &mut StateTensor> {
        self.tensors.iter_mut().filter(move |tensor| tensor.group == group)
    }
}

/// The state values of a graph, with their groups.
fn values(graph: &Graph) -> impl Iterator<Item = (GroupId, &Value)> {
    graph.values.iter().filter_map(|value| match value.role {
        Role::State(group) => Some((group, value)),
        _ => None,
    })
}

/// The heads of a state value and the size of each.
fn heads(value: &Value) -> (usize, usize) {
    let size = value.shape.columns();
    (value.shape.stride() / size, size)
}

fn tensor_bytes(value: &Value, blocks: usize) -> Option<usize> {
    let position = value.shape.stride().checked_mul(value.dtype.block_bytes())?;
    position.checked_mul(BLOCK_POSITIONS)?.checked_mul(blocks)
}

impl StateTensor {
    /// The bytes of a block.
    fn block(&self, block: Block) -> Range<usize> {
        let bytes = self.heads * BLOCK_POSITIONS * self.size * self.dtype.block_bytes();
        block.0 as usize * bytes..(block.0 as usize + 1) * bytes
    }

    /// The bytes of `positions` of one head; they lie in one block of the lane.
    fn run(&self, lane: &Lane<'_>, head: usize, positions: Range<usize>) -> Range<usize> {
        let block = lane.blocks[self.group.0 as usize][positions.start / BLOCK_POSITIONS];
        let first =
            (block.0 as usize * self.heads + head) * BLOCK_POSITIONS + positions.start % BLOCK_POSITIONS;
        let row_bytes = self.size * self.dtype.block_bytes();
        first * row_bytes..(first + positions.len()) * row_bytes
    }

    /// Decodes one head's rows at `positions`, one after another.
    pub fn read(
        &self,
        table: &Table,
        lane: &Lane<'_>,
        head: usize,
        positions: Range<usize>,
        values: &mut [f32],
    ) {
        let mut position = positions.start;
        while position < positions.end {
            let end = positions.end.min((position / BLOCK_POSITIONS + 1) * BLOCK_POSITIONS);
            let into = (position - positions.start) * self.size..(end - positions.start) * self.size;
            let bytes = &self.bytes[self.run(lane, head, position..end)];
            table.unpack(self.dtype, bytes, &mut values[into]);
            position = end;
        }
    }

    /// Stores a row of all heads, rounded to the state's type.
    pub fn write(&mut self, lane: &Lane<'_>, position: usize, row: &[f32]) {
        for (head, values) in row.chunks_exact(self.size).enumerate() {
            let run = self.run(lane, head, position..position + 1);
            self.dtype.pack(values, &mut self.bytes[run]);
        }
    }
}

impl backend::State for Cache {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) {
        for tensor in self.of_group_mut(group) {
            let (from, to) = (tensor.block(from), tensor.block(to).start);
            tensor.bytes.copy_within(from, to);
        }
    }

    fn zero(&mut self, group: GroupId, block: Block) {
        for tensor in self.of_group_mut(group) {
            let range = tensor.block(block);
            tensor.bytes[range].fill(0);
        }
    }

    fn export(&self, group: GroupId, block: Block) -> Vec<u8> {
        let blocks = self.of_group(group).map(|tensor| &tensor.bytes[tensor.block(block)]);
        blocks.flatten().copied().collect()
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error> {
        let need: usize = self.of_group(group).map(|tensor| tensor.block(block).len()).sum();
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of state is {need} bytes; {have} were given")));
        }
        let mut rest = bytes;
        for tensor in self.of_group_mut(group) {
            let range = tensor.block(block);
            let (own, others) = rest.split_at(range.len());
            tensor.bytes[range].copy_from_slice(own);
            rest = others;
        }
        Ok(())
    }
}
