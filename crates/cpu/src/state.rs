//! State: keys and values of all sequences, block by block.
//!
//! ```text
//! tensor = block 0 | block 1 | …            the engine assigns blocks to sequences
//! block  = head 0 | head 1 | …
//! head   = tile 0 | tile 1                  of keys: 32 positions each, transposed
//!        | position 0 | … | position 63     of values: a row each, padded to a multiple of 16
//! ```
//! So the cells of one head over the positions of a block are contiguous, as [the
//! kernels](crate::kernels::attend) need them. Attention without state reads rows of its step in the
//! same layout, from tensors that the program owns.

use std::ops::Range;

use girih_graph::backend::{self, Block, Sequence};
use girih_graph::{BLOCK_POSITIONS, Error, Graph, GroupId, Node, Op, Role, Value, ValueId};
use girih_tensor::{DType, Shape};

use crate::kernels::Table;
use crate::kernels::attend::{Format, KEY_TILE, KV_GROUP, LANES, Q8_0_GROUP};
use crate::memory::Aligned;
use crate::os::PageUse;

/// The number of head dimensions that are rounded in one call.
const ROUNDED_DIMS: usize = 64;

/// The state values of a graph, in the order of the graph.
#[derive(Debug)]
pub struct CpuState {
    tensors: Vec<StateTensor>,
}

/// Keys or values in blocks: one state value, or rows that attention reads in the step that computes
/// them.
#[derive(Debug)]
pub(crate) struct StateTensor {
    owner: BlockOwner,
    layout: StateLayout,
    bytes: Aligned<u8>,
}

/// What assigns blocks of a tensor to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockOwner {
    /// The engine, for this group of state.
    Group(GroupId),
    /// The step: see [`SequenceBlocks::first`].
    Step,
}

/// Where keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvStore {
    /// In state, which outlives the step.
    State,
    /// In memory of the program, which the next attention overwrites.
    Step,
}

/// The blocks of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct SequenceBlocks<'a> {
    /// Its blocks of each group of state.
    groups: &'a [&'a [Block]],
    /// The first of its consecutive blocks in tensors of the step.
    first: usize,
}

impl<'a> SequenceBlocks<'a> {
    /// The blocks of the sequence of this index in its step.
    pub fn of(sequence: &Sequence<'a>, index: usize) -> SequenceBlocks<'a> {
        // Each sequence begins a block, so those before it have at most this many.
        let first = sequence.rows.start as usize / BLOCK_POSITIONS + index;
        SequenceBlocks { groups: sequence.blocks, first }
    }
}

/// The number of blocks that the sequences of any step of `graph` have in tensors of the step.
fn step_blocks(graph: &Graph) -> usize {
    graph.key.rows as usize / BLOCK_POSITIONS + graph.key.sequences as usize
}

/// The layout of a block of one state value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateLayout {
    format: Format,
    role: StateRole,
    pub heads: usize,
    /// Values of one head at one position.
    pub size: usize,
    /// The same with padding.
    width: usize,
}

/// How attention uses a state value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateRole {
    Keys,
    Values,
}

impl CpuState {
    /// The bytes that these numbers of blocks per group take.
    pub(crate) fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let sizes = values(graph).map(|(id, group, value)| {
            let blocks = blocks.get(group.0 as usize).copied().unwrap_or(0) as usize;
            let bytes = StateLayout::of(graph, id, value).ok().and_then(|layout| layout.bytes(blocks));
            Aligned::<u8>::bytes(bytes.unwrap_or(usize::MAX))
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Allocates zeroed state with these numbers of blocks per group.
    ///
    /// # Errors
    /// If there is not enough memory, or the type of a value is not supported for state.
    pub(crate) fn new(graph: &Graph, blocks: &[u32]) -> Result<CpuState, Error> {
        let tensors = values(graph).map(|(id, group, value)| {
            let blocks = blocks.get(group.0 as usize).copied().unwrap_or(0);
            let too_many =
                || Error::new(format!("{blocks} blocks of '{}' exceed the address space", value.name));
            let layout = StateLayout::of(graph, id, value).map_err(|reason| {
                Error::new(format!("the cpu backend cannot store '{}': {reason}", value.name))
            })?;
            let bytes = layout.bytes(blocks as usize).ok_or_else(too_many)?;
            let bytes = Aligned::zeroed_for(bytes, &value.name, PageUse::Start)?;
            Ok(StateTensor { owner: BlockOwner::Group(group), layout, bytes })
        });
        Ok(CpuState { tensors: tensors.collect::<Result<_, Error>>()? })
    }

    /// The bytes of [`CpuState::of_step`].
    pub(crate) fn step_plan(graph: &Graph) -> u64 {
        let sizes = step_layouts(graph).into_iter().map(|layout| layout.bytes(step_blocks(graph)));
        sizes.map(|bytes| Aligned::<u8>::bytes(bytes.unwrap_or(usize::MAX))).fold(0, u64::saturating_add)
    }

    /// Allocates the tensors for keys and values that attention reads from rows of the step. All
    /// attention of the graph shares them, as each writes what it reads.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn of_step(graph: &Graph) -> Result<CpuState, Error> {
        let tensors = step_layouts(graph).into_iter().map(|layout| {
            let bytes = layout.bytes(step_blocks(graph)).unwrap_or(usize::MAX);
            let bytes = Aligned::zeroed(bytes, "the keys and values of a step")?;
            Ok(StateTensor { owner: BlockOwner::Step, layout, bytes })
        });
        Ok(CpuState { tensors: tensors.collect::<Result<_, Error>>()? })
    }

    /// The state value at `index` among those of the graph.
    pub(crate) fn tensor(&self, index: usize) -> &StateTensor {
        &self.tensors[index]
    }

    /// Several state values, to be written.
    ///
    /// # Panics
    /// If two of them are the same.
    pub(crate) fn tensors_mut<const N: usize>(&mut self, indexes: [usize; N]) -> [&mut StateTensor; N] {
        self.tensors.get_disjoint_mut(indexes).expect("a task writes each state value once")
    }

    fn of_group(&self, group: GroupId) -> impl Iterator<Item = &StateTensor> {
        self.tensors.iter().filter(move |tensor| tensor.owner == BlockOwner::Group(group))
    }

    fn of_group_mut(&mut self, group: GroupId) -> impl Iterator<Item = &mut StateTensor> {
        self.tensors.iter_mut().filter(move |tensor| tensor.owner == BlockOwner::Group(group))
    }
}

/// The state values of a graph, with their groups.
fn values(graph: &Graph) -> impl Iterator<Item = (ValueId, GroupId, &Value)> {
    graph.ids().filter_map(|(id, value)| match value.role {
        Role::State(group) => Some((id, group, value)),
        _ => None,
    })
}

/// The layouts of the tensors of a step, each once.
fn step_layouts(graph: &Graph) -> Vec<StateLayout> {
    let mut layouts = Vec::new();
    for layout in graph.nodes.iter().filter_map(|node| StateLayout::of_rows(graph, node)).flatten() {
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    layouts
}

/// The indexes of the keys and of the values of `node` among the tensors of a step, if it attends to
/// rows of the step.
pub(crate) fn step_indexes(graph: &Graph, node: &Node) -> Option<[usize; 2]> {
    let layouts = step_layouts(graph);
    let index = |layout| layouts.iter().position(|other| *other == layout).expect("each layout is listed");
    Some(StateLayout::of_rows(graph, node)?.map(index))
}

/// Why this state value cannot be stored, if it cannot.
pub(crate) fn objection(graph: &Graph, id: ValueId) -> Option<String> {
    StateLayout::of(graph, id, graph.value(id)).err()
}

impl StateLayout {
    /// The layout of a state value, or why it has none.
    fn of(graph: &Graph, id: ValueId, value: &Value) -> Result<StateLayout, String> {
        let read_as = |index: usize| {
            let mut nodes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Attend { .. }));
            nodes.any(|node| node.inputs.get(index) == Some(&id))
        };
        let role = match (read_as(1), read_as(2)) {
            (true, true) => return Err("it is read as keys and as values".to_owned()),
            (true, false) => StateRole::Keys,
            (false, _) => StateRole::Values,
        };
        let dtype = value.dtype;
        let format = Format::of(dtype)
            .ok_or_else(|| format!("its type is {dtype}; state can be f32, f16, bf16 or q8_0"))?;
        let size = value.shape.columns();
        if format == Format::Q8_0 && !size.is_multiple_of(KV_GROUP) {
            return Err(format!("q8_0 needs a head size divisible by {KV_GROUP}; this one is {size}"));
        }
        Ok(StateLayout::new(format, role, &value.shape))
    }

    /// The layouts of the keys and of the values of `node`, if it attends to rows of the step.
    fn of_rows(graph: &Graph, node: &Node) -> Option<[StateLayout; 2]> {
        let (Op::Attend { .. }, [_, keys, values]) = (node.op, &node.inputs[..]) else { return None };
        let layout = |id: &ValueId, role| StateLayout::new(Format::F32, role, &graph.value(*id).shape);
        let is_state = matches!(graph.value(*keys).role, Role::State(_));
        (!is_state).then(|| [layout(keys, StateRole::Keys), layout(values, StateRole::Values)])
    }

    fn new(format: Format, role: StateRole, shape: &Shape) -> StateLayout {
        let size = shape.columns();
        let width = match role {
            StateRole::Keys => size,
            StateRole::Values => size.next_multiple_of(LANES),
        };
        StateLayout { format, role, heads: shape.stride() / size, size, width }
    }

    /// The bytes of `blocks` blocks; `None` if they exceed `usize`.
    fn bytes(&self, blocks: usize) -> Option<usize> {
        // Checks for the largest type, `f32`: sizes from a graph can overflow.
        let row = self.heads.checked_mul(self.width)?.checked_mul(size_of::<f32>())?;
        row.checked_mul(BLOCK_POSITIONS)?.checked_mul(blocks)?;
        Some(blocks * self.block_bytes())
    }

    /// The bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.heads * self.head_bytes()
    }

    /// The bytes of one head in a block.
    pub fn head_bytes(&self) -> usize {
        self.format.bytes(BLOCK_POSITIONS, self.width)
    }

    /// Writes rows of one head to the head's bytes in a block, from position `at` on. The rows are
    /// `stride` values apart.
    pub fn put(&self, table: &Table, rows: &[f32], stride: usize, at: usize, bytes: &mut [u8]) {
        if self.role == StateRole::Keys && self.format != Format::Q8_0 {
            return self.put_keys(table, rows, stride, at, bytes);
        }
        for (index, row) in rows.chunks(stride).enumerate() {
            for (part, values) in row[..self.size].chunks(ROUNDED_DIMS).enumerate() {
                let mut rounded = [0; ROUNDED_DIMS * 4];
                let rounded = &mut rounded[..self.format.bytes(1, values.len())];
                self.round(table, values, rounded);
                let (first, at) = (part * ROUNDED_DIMS, at + index);
                if self.format == Format::Q8_0 {
                    self.put_groups(rounded, first / KV_GROUP, at, bytes);
                } else {
                    let each = self.format.bytes(1, 1);
                    bytes[(at * self.width + first) * each..][..rounded.len()].copy_from_slice(rounded);
                }
            }
        }
    }

    /// As [`StateLayout::put`], for keys, whose lines hold one dimension of the head
    /// each: the rows of a tile are rounded first, so that each line is visited once.
    fn put_keys(&self, table: &Table, rows: &[f32], stride: usize, at: usize, bytes: &mut [u8]) {
        let mut rounded = [0; KEY_TILE * ROUNDED_DIMS * 4];
        let (mut rest, mut at) = (rows, at);
        while !rest.is_empty() {
            let count = (KEY_TILE - at % KEY_TILE).min(rest.len().div_ceil(stride));
            let (some, others) = rest.split_at(rest.len().min(count * stride));
            let tile = &mut bytes[at / KEY_TILE * self.format.bytes(KEY_TILE, self.size)..];
            for first in (0..self.size).step_by(ROUNDED_DIMS) {
                let dims = ROUNDED_DIMS.min(self.size - first);
                let row_bytes = self.format.bytes(1, dims);
                for (row, rounded) in some.chunks(stride).zip(rounded.chunks_exact_mut(row_bytes)) {
                    self.round(table, &row[first..first + dims], rounded);
                }
                let lines =
                    &mut tile[self.format.bytes(KEY_TILE, first)..][..self.format.bytes(KEY_TILE, dims)];
                let rounded = &rounded[..count * row_bytes];
                match self.format {
                    Format::F32 => put_columns::<4>(rounded, dims, at % KEY_TILE, lines),
                    _ => put_columns::<2>(rounded, dims, at % KEY_TILE, lines),
                }
            }
            (rest, at) = (others, at + count);
        }
    }

    /// Rounds values to the state's type.
    fn round(&self, table: &Table, values: &[f32], rounded: &mut [u8]) {
        match self.format {
            Format::F32 => DType::F32.pack(values, rounded),
            Format::F16 => (table.attend.halve)(values, rounded),
            Format::BF16 => DType::BF16.pack(values, rounded),
            Format::Q8_0 => DType::Q8_0.pack(values, rounded),
        }
    }

    /// Writes blocks of Q8_0 at one position, from group `first` of one head on.
    fn put_groups(&self, blocks: &[u8], first: usize, at: usize, bytes: &mut [u8]) {
        let groups = self.width / KV_GROUP;
        for (group, block) in blocks.chunks_exact(2 + KV_GROUP).enumerate() {
            let (scale, integers) = block.split_at(2);
            let group = first + group;
            match self.role {
                StateRole::Keys => {
                    let (scales, lines) = bytes[(at / KEY_TILE * groups + group) * Q8_0_GROUP..]
                        [..Q8_0_GROUP]
                        .split_at_mut(2 * KEY_TILE);
                    scales[at % KEY_TILE * 2..][..2].copy_from_slice(scale);
                    for (line, &integer) in lines.chunks_exact_mut(KEY_TILE).zip(integers) {
                        line[at % KEY_TILE] = integer;
                    }
                }
                StateRole::Values => {
                    let (lines, scales) = bytes.split_at_mut(BLOCK_POSITIONS * self.width);
                    lines[at * self.width + group * KV_GROUP..][..KV_GROUP].copy_from_slice(integers);
                    scales[(group * BLOCK_POSITIONS + at) * 2..][..2].copy_from_slice(scale);
                }
            }
        }
    }
}

/// Writes rows of `dims` values of `BYTES` bytes each to the columns of `dims` lines, from column
/// `at` on.
fn put_columns<const BYTES: usize>(rows: &[u8], dims: usize, at: usize, lines: &mut [u8]) {
    let rows = rows.as_chunks::<BYTES>().0;
    for (dim, line) in lines.chunks_exact_mut(KEY_TILE * BYTES).enumerate() {
        let columns = line.as_chunks_mut::<BYTES>().0[at..].iter_mut();
        columns.zip(rows.chunks_exact(dims)).for_each(|(column, row)| *column = row[dim]);
    }
}

impl StateTensor {
    /// The format of its values.
    pub fn format(&self) -> Format {
        self.layout.format
    }

    /// The bytes of all blocks.
    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of all heads at one position.
    pub fn position_bytes(&self) -> u64 {
        (self.layout.block_bytes() / BLOCK_POSITIONS) as u64
    }

    /// The range of a block's bytes.
    fn block(&self, block: Block) -> Range<usize> {
        let bytes = self.layout.block_bytes();
        block.0 as usize * bytes..(block.0 as usize + 1) * bytes
    }

    /// Block `index` of a sequence.
    pub fn block_of(&self, blocks: SequenceBlocks<'_>, index: usize) -> usize {
        match self.owner {
            BlockOwner::Group(group) => blocks.groups[group.0 as usize][index].0 as usize,
            BlockOwner::Step => blocks.first + index,
        }
    }

    /// The bytes of one head in block `index` of a sequence.
    pub fn head(&self, blocks: SequenceBlocks<'_>, head: usize, index: usize) -> &[u8] {
        let bytes = self.layout.head_bytes();
        let start = (self.block_of(blocks, index) * self.layout.heads + head) * bytes;
        &self.bytes[start..start + bytes]
    }

    /// The layout of a block, and the bytes of all blocks.
    pub fn blocks_mut(&mut self) -> (StateLayout, &mut [u8]) {
        (self.layout, &mut self.bytes)
    }
}

impl backend::State for CpuState {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<(), Error> {
        for tensor in self.of_group_mut(group) {
            let (from, to) = (tensor.block(from), tensor.block(to).start);
            tensor.bytes.copy_within(from, to);
        }
        Ok(())
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<(), Error> {
        for tensor in self.of_group_mut(group) {
            let range = tensor.block(block);
            tensor.bytes[range].fill(0);
        }
        Ok(())
    }

    fn export(&self, group: GroupId, block: Block) -> Result<Vec<u8>, Error> {
        let blocks = self.of_group(group).map(|tensor| &tensor.bytes[tensor.block(block)]);
        Ok(blocks.flatten().copied().collect())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error> {
        let need: usize = self.of_group(group).map(|tensor| tensor.block(block).len()).sum();
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of state has {need} bytes; got {have}")));
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
