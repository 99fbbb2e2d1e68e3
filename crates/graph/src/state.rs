//! State in the host's memory: keys and values of all sequences, position by position, and carried
//! values.
//!
//! ```text
//! tensor   = block 0 | block 1 | …          the engine assigns blocks to sequences
//! block    = position 0 | … | position 63   or one carried value
//! position = head 0 | head 1 | …
//! ```
//!
//! The numbers are packed in the state's type. The size of the context is not part of the
//! layout, so programs of all keys share it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use girih_tensor::{DType, Error, Result};

use crate::backend::{BLOCK_POSITIONS, Block, Sequence, State};
use crate::graph::Graph;
use crate::memory::zeroed;
use crate::range_fault::{RangeFault, out_of_range};
use crate::state_kind::{STATE_TYPES, StateKind};
use crate::value::{GroupId, Role, Value};

/// The state tensors of a graph.
#[derive(Debug)]
pub struct PositionMajor {
    tensors: Vec<StateTensor>,
    faults: Vec<RangeFault>,
}

/// One state tensor, with all blocks of its group.
#[derive(Debug)]
struct StateTensor {
    name: String,
    group: GroupId,
    kind: StateKind,
    dtype: DType,
    /// Values of one position, or of a carried value.
    inner: usize,
    bytes: Vec<u8>,
    /// The stamp of the last write of each block; 0 if never written.
    stamps: Vec<u64>,
}

/// Rounds the numbers of a row to the type of its state, whole blocks. A block with NaN gets NaN as its scale, because
/// codes have none: a row that reads it has NaN, as with other types.
///
/// # Panics
/// When `dtype` is none of [`STATE_TYPES`], or the lengths are not the same number of whole blocks.
pub fn pack_state(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    assert!(STATE_TYPES.contains(&dtype), "state has no type {dtype}");
    dtype.pack(values, bytes);
    let columns = dtype.tile().1;
    if columns > 1 && values.iter().any(|value| value.is_nan()) {
        for (values, block) in values.chunks(columns).zip(bytes.chunks_mut(dtype.block_bytes())) {
            if values.iter().any(|value| value.is_nan()) {
                block[..2].copy_from_slice(&F16_NAN);
            }
        }
    }
}

/// The bytes of a NaN in f16, with which blocks of state begin.
const F16_NAN: [u8; 2] = 0x7e00u16.to_le_bytes();

/// Returns a stamp that has not been used before, in any state.
fn next_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl PositionMajor {
    /// The bytes of `blocks[g]` blocks for each group `g`.
    pub fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let sizes = values(graph, blocks).map(|(value, group, blocks)| {
            StateTensor::size(value, kind_of(graph, group), blocks).map_or(u64::MAX, |bytes| bytes as u64)
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Makes zeroed state with `blocks[g]` blocks for each group `g`.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(graph: &Graph, blocks: &[u32]) -> Result<PositionMajor> {
        let tensors = values(graph, blocks).map(|(value, group, blocks)| {
            let kind = kind_of(graph, group);
            let bytes = zeroed(&value.name, StateTensor::size(value, kind, blocks))?;
            let stamps = zeroed(&value.name, Some(blocks as usize))?;
            let (name, dtype, inner) = (value.name.clone(), value.dtype, value.row_len());
            Ok(StateTensor { name, group, kind, dtype, inner, bytes, stamps })
        });
        Ok(PositionMajor { tensors: tensors.collect::<Result<_>>()?, faults: Vec::new() })
    }

    /// Returns the rows of a state tensor at some positions of a sequence, one after another.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub fn rows(&self, name: &str, sequence: &Sequence<'_>, positions: Range<usize>) -> Result<Vec<f32>> {
        let index = self.index(name)?;
        let tensor = &self.tensors[index];
        let mut rows = vec![0.0; positions.len() * tensor.inner];
        for (position, row) in positions.zip(rows.chunks_exact_mut(tensor.inner.max(1))) {
            tensor.dtype.unpack(&tensor.bytes[tensor.slot(sequence, position)], row);
        }
        Ok(rows)
    }

    /// Stores the rows of a sequence in this step at their positions, rounded to the type of the
    /// state. `rows` has those of the sequence only. A row that the type cannot hold is a fault,
    /// which [`State::take_range_faults`] returns.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub fn write(&mut self, name: &str, sequence: &Sequence<'_>, rows: &[f32]) -> Result<()> {
        let index = self.index(name)?;
        let tensor = &mut self.tensors[index];
        for (values, row) in rows.chunks_exact(tensor.inner.max(1)).zip(sequence.rows.start..) {
            let position = (sequence.position + row - sequence.rows.start) as usize;
            let slot = tensor.slot(sequence, position);
            pack_state(tensor.dtype, values, &mut tensor.bytes[slot]);
            tensor.touch(tensor.block_of(sequence, position));
            if let Some(value) = out_of_range(tensor.dtype, values) {
                self.faults.push(RangeFault { row, name: tensor.name.clone(), dtype: tensor.dtype, value });
            }
        }
        Ok(())
    }

    /// The carried value of a sequence before its first row in this step.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub fn carried(&self, name: &str, sequence: &Sequence<'_>) -> Result<Vec<f32>> {
        let tensor = &self.tensors[self.index(name)?];
        let mut value = vec![0.0; tensor.inner];
        if let Some(last) = (sequence.position as usize).checked_sub(1) {
            tensor.dtype.unpack(&tensor.bytes[tensor.range(tensor.block_of(sequence, last))], &mut value);
        }
        Ok(value)
    }

    /// Stores the carried value of a sequence after its row at `position`.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub fn carry(
        &mut self,
        name: &str,
        sequence: &Sequence<'_>,
        position: usize,
        value: &[f32],
    ) -> Result<()> {
        let index = self.index(name)?;
        let tensor = &mut self.tensors[index];
        let block = tensor.block_of(sequence, position);
        let range = tensor.range(block);
        tensor.dtype.pack(value, &mut tensor.bytes[range]);
        tensor.touch(block);
        Ok(())
    }

    /// The stamp of the last write to block `index` of a sequence, which holds the positions from
    /// 64 · `index` on. Equal stamps mean equal contents.
    ///
    /// # Errors
    /// When the state belongs to another graph.
    pub fn stamp(&self, name: &str, sequence: &Sequence<'_>, index: usize) -> Result<u64> {
        let tensor = &self.tensors[self.index(name)?];
        Ok(tensor.stamps[tensor.block_of(sequence, index * BLOCK_POSITIONS).0 as usize])
    }

    /// The index of the tensor of this name.
    fn index(&self, name: &str) -> Result<usize> {
        let index = self.tensors.iter().position(|tensor| tensor.name == name);
        index.ok_or_else(|| Error::new(format!("the state has no '{name}'; it belongs to another graph")))
    }

    /// The tensors of a group.
    fn of(&self, group: GroupId) -> impl Iterator<Item = &StateTensor> {
        self.tensors.iter().filter(move |tensor| tensor.group == group)
    }

    /// As [`PositionMajor::of`], mutable.
    fn of_mut(&mut self, group: GroupId) -> impl Iterator<Item = &mut StateTensor> {
        self.tensors.iter_mut().filter(move |tensor| tensor.group == group)
    }
}

/// The state values of a graph, with their groups and numbers of blocks.
fn values<'a>(graph: &'a Graph, blocks: &'a [u32]) -> impl Iterator<Item = (&'a Value, GroupId, u32)> {
    graph.values.iter().filter_map(|value| match value.role {
        Role::State(group) => Some((value, group, blocks[group.0 as usize])),
        _ => None,
    })
}

/// What the blocks of a group hold.
fn kind_of(graph: &Graph, group: GroupId) -> StateKind {
    graph.groups[group.0 as usize].kind
}

/// The bytes of one position of `inner` values.
fn position_bytes(dtype: DType, inner: usize) -> Option<usize> {
    (inner / dtype.tile().1).checked_mul(dtype.block_bytes())
}

impl StateTensor {
    /// The bytes of a tensor, unless they overflow.
    fn size(value: &Value, kind: StateKind, blocks: u32) -> Option<usize> {
        let row = position_bytes(value.dtype, value.row_len())?;
        row.checked_mul(kind.rows_per_block())?.checked_mul(blocks as usize)
    }

    /// The bytes of one position.
    fn stride(&self) -> usize {
        position_bytes(self.dtype, self.inner).expect("the whole tensor is in memory")
    }

    /// The byte range of a block.
    fn range(&self, block: Block) -> Range<usize> {
        let bytes = self.kind.rows_per_block() * self.stride();
        block.0 as usize * bytes..(block.0 as usize + 1) * bytes
    }

    /// Gives a block whose contents change a new stamp.
    fn touch(&mut self, block: Block) {
        self.stamps[block.0 as usize] = next_stamp();
    }

    /// The block of a position of a sequence.
    fn block_of(&self, sequence: &Sequence<'_>, position: usize) -> Block {
        sequence.blocks[self.group.0 as usize][position / BLOCK_POSITIONS]
    }

    /// The byte range of a position of a sequence.
    fn slot(&self, sequence: &Sequence<'_>, position: usize) -> Range<usize> {
        let block = self.block_of(sequence, position);
        let start = self.range(block).start + position % BLOCK_POSITIONS * self.stride();
        start..start + self.stride()
    }
}

impl State for PositionMajor {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<()> {
        for tensor in self.of_mut(group) {
            let (from, start) = (tensor.range(from), tensor.range(to).start);
            tensor.bytes.copy_within(from, start);
            tensor.touch(to);
        }
        Ok(())
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<()> {
        for tensor in self.of_mut(group) {
            let range = tensor.range(block);
            tensor.bytes[range].fill(0);
            tensor.touch(block);
        }
        Ok(())
    }

    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>> {
        Ok(self.of(group).flat_map(|tensor| &tensor.bytes[tensor.range(block)]).copied().collect())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<()> {
        let need: usize = self.of(group).map(|tensor| tensor.range(block).len()).sum();
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of state is {need} bytes; {have} were given")));
        }
        let mut rest = bytes;
        for tensor in self.of_mut(group) {
            let range = tensor.range(block);
            let (own, others) = rest.split_at(range.len());
            tensor.bytes[range].copy_from_slice(own);
            tensor.touch(block);
            rest = others;
        }
        Ok(())
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        std::mem::take(&mut self.faults)
    }
}
