//! State on the host: keys and values of all sequences, position-major, so that
//! a smaller context is a prefix of a larger one.
//!
//! ```text
//! tensor = block 0 | block 1 | …            the engine assigns blocks to sequences
//! block  = position 0 | … | position 63
//! position = head 0 | head 1 | …
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use girih_graph::backend::{Block, Sequence, State};
use girih_graph::{BLOCK_POSITIONS, Graph, GroupId, Role, Value};
use girih_tensor::{DType, Error, Result};

/// The state tensors of a graph.
#[derive(Debug)]
pub struct NpuState {
    tensors: Vec<StateTensor>,
}

/// One state tensor, with all blocks of its group.
#[derive(Debug)]
pub(super) struct StateTensor {
    name: String,
    group: GroupId,
    dtype: DType,
    /// The number of elements of one position.
    pub inner: usize,
    bytes: Vec<u8>,
    /// The stamp of the last write of each block; 0 if never written.
    stamps: Vec<u64>,
}

/// Returns a stamp that has not been used before, in any state.
fn next_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl NpuState {
    /// The bytes of `blocks` blocks per group.
    pub fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let sizes = values(graph).map(|(group, value)| {
            let blocks = blocks.get(group.0 as usize).copied().unwrap_or(0);
            tensor_bytes(value, blocks).map_or(u64::MAX, |bytes| bytes as u64)
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Creates zeroed state with `blocks` blocks per group.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(graph: &Graph, blocks: &[u32]) -> Result<NpuState> {
        let tensors = values(graph).map(|(group, value)| {
            let blocks = blocks.get(group.0 as usize).copied().unwrap_or(0);
            let short = || Error::new(format!("not enough memory for {blocks} blocks of '{}'", value.name));
            let size = tensor_bytes(value, blocks).ok_or_else(short)?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(size).map_err(|_| short())?;
            bytes.resize(size, 0);
            let inner = value.shape.stride();
            let stamps = vec![0; blocks as usize];
            Ok(StateTensor { name: value.name.clone(), group, dtype: value.dtype, inner, bytes, stamps })
        });
        Ok(NpuState { tensors: tensors.collect::<Result<_>>()? })
    }

    /// The rows of the state tensor of this name at some positions of a
    /// sequence.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub fn rows(&self, name: &str, sequence: &Sequence<'_>, positions: Range<usize>) -> Result<Vec<f32>> {
        Ok(self.tensor(name)?.read(sequence, positions))
    }

    /// The stamp of the last write to the block of positions `index` · 64 and
    /// following of a sequence. While it is unchanged, so are the contents of
    /// the block.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub fn stamp(&self, name: &str, sequence: &Sequence<'_>, index: usize) -> Result<u64> {
        let tensor = self.tensor(name)?;
        let block = sequence.blocks[tensor.group.0 as usize][index];
        Ok(tensor.stamps[block.0 as usize])
    }

    /// The state tensor of this name.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub(super) fn tensor(&self, name: &str) -> Result<&StateTensor> {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| Error::new(format!("the state has no '{name}'; it belongs to another graph")))
    }

    /// Same as [`NpuState::tensor`], mutable.
    pub(super) fn tensor_mut(&mut self, name: &str) -> Result<&mut StateTensor> {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.ok_or_else(|| Error::new(format!("the state has no '{name}'; it belongs to another graph")))
    }
}

fn values(graph: &Graph) -> impl Iterator<Item = (GroupId, &Value)> {
    graph.values.iter().filter_map(|value| match value.role {
        Role::State(group) => Some((group, value)),
        _ => None,
    })
}

fn tensor_bytes(value: &Value, blocks: u32) -> Option<usize> {
    let position = value.shape.stride().checked_mul(value.dtype.block_bytes())?;
    position.checked_mul(BLOCK_POSITIONS)?.checked_mul(blocks as usize)
}

impl StateTensor {
    fn block(&self, block: Block) -> Range<usize> {
        let bytes = BLOCK_POSITIONS * self.inner * self.dtype.block_bytes();
        block.0 as usize * bytes..(block.0 as usize + 1) * bytes
    }

    /// The byte range of a position of a sequence.
    fn row(&self, sequence: &Sequence<'_>, position: usize) -> Range<usize> {
        let block = sequence.blocks[self.group.0 as usize][position / BLOCK_POSITIONS];
        let row = block.0 as usize * BLOCK_POSITIONS + position % BLOCK_POSITIONS;
        let bytes = self.inner * self.dtype.block_bytes();
        row * bytes..(row + 1) * bytes
    }

    /// Decodes the rows at `positions`, one after another.
    pub fn read(&self, sequence: &Sequence<'_>, positions: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; positions.len() * self.inner];
        for (position, row) in positions.zip(values.chunks_exact_mut(self.inner.max(1))) {
            self.dtype.unpack(&self.bytes[self.row(sequence, position)], row);
        }
        values
    }

    /// Stores a row, rounded to the type of the state.
    pub fn write(&mut self, sequence: &Sequence<'_>, position: usize, row: &[f32]) {
        let range = self.row(sequence, position);
        self.dtype.pack(row, &mut self.bytes[range]);
        let block = sequence.blocks[self.group.0 as usize][position / BLOCK_POSITIONS];
        self.stamps[block.0 as usize] = next_stamp();
    }
}

impl State for NpuState {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<()> {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.group == group) {
            let (from, to_bytes) = (tensor.block(from), tensor.block(to).start);
            tensor.bytes.copy_within(from, to_bytes);
            tensor.stamps[to.0 as usize] = next_stamp();
        }
        Ok(())
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<()> {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.group == group) {
            let range = tensor.block(block);
            tensor.bytes[range].fill(0);
            tensor.stamps[block.0 as usize] = next_stamp();
        }
        Ok(())
    }

    fn export(&self, group: GroupId, block: Block) -> Result<Vec<u8>> {
        let tensors = self.tensors.iter().filter(|tensor| tensor.group == group);
        Ok(tensors.flat_map(|tensor| &tensor.bytes[tensor.block(block)]).copied().collect())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<()> {
        let tensors = || self.tensors.iter().filter(|tensor| tensor.group == group);
        let need: usize = tensors().map(|tensor| tensor.block(block).len()).sum();
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of state needs {need} bytes; {have} were given")));
        }
        let mut rest = bytes;
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.group == group) {
            let range = tensor.block(block);
            let (own, others) = rest.split_at(range.len());
            tensor.bytes[range].copy_from_slice(own);
            tensor.stamps[block.0 as usize] = next_stamp();
            rest = others;
        }
        Ok(())
    }
}
