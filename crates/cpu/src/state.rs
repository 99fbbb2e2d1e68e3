//! State: keys and values of all sequences, block by block, and what sequences carry.
//!
//! A tensor holds one block of [`StateLayout`] after another; the engine assigns blocks to
//! sequences. Attention without state reads rows of its step in the same layout, from tensors that
//! the program owns.

use std::ops::Range;

use girih_graph::backend::{self, Block, Sequence};
use girih_graph::{
    BLOCK_POSITIONS, Error, Graph, GroupId, Node, RangeFault, Role, StateKind, Value, ValueId,
};

use crate::carried::Carried;
use crate::kernels::attend::Format;
use crate::memory::Aligned;
use crate::os::PageUse;
use crate::state_layout::StateLayout;

/// The state values of a graph, in the order of the graph.
#[derive(Debug)]
pub struct CpuState {
    tensors: Vec<StateTensor>,
    carried: Vec<Carried>,
    faults: Vec<RangeFault>,
}

/// Keys or values in blocks: one state value, or rows that attention reads in the step that computes
/// them.
#[derive(Debug)]
pub(crate) struct StateTensor {
    name: String,
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

impl CpuState {
    /// The bytes that these numbers of blocks per group take.
    pub(crate) fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let sizes = values(graph).map(|(id, group, value)| {
            let blocks = blocks.get(group.0 as usize).copied().unwrap_or(0) as usize;
            let bytes = StateLayout::of(graph, id, value).ok().and_then(|layout| layout.bytes(blocks));
            Aligned::<u8>::bytes(bytes.unwrap_or(usize::MAX))
        });
        let carried = carried(graph).map(|(_, group, value)| {
            Carried::plan(value, blocks.get(group.0 as usize).copied().unwrap_or(0) as usize)
        });
        sizes.chain(carried).fold(0, u64::saturating_add)
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
            Ok(StateTensor { name: value.name.clone(), owner: BlockOwner::Group(group), layout, bytes })
        });
        let carried = carried(graph).map(|(_, group, value)| {
            Carried::new(value, group, blocks.get(group.0 as usize).copied().unwrap_or(0) as usize)
        });
        let (tensors, carried) =
            (tensors.collect::<Result<_, Error>>()?, carried.collect::<Result<_, Error>>()?);
        Ok(CpuState { tensors, carried, faults: Vec::new() })
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
            let name = "the keys and values of a step".to_owned();
            let bytes = Aligned::zeroed(bytes, &name)?;
            Ok(StateTensor { name, owner: BlockOwner::Step, layout, bytes })
        });
        let (tensors, carried) = (tensors.collect::<Result<_, Error>>()?, Vec::new());
        Ok(CpuState { tensors, carried, faults: Vec::new() })
    }

    /// The value at `index` among those of the graph with rows by position.
    pub(crate) fn tensor(&self, index: usize) -> &StateTensor {
        &self.tensors[index]
    }

    /// The carried value at `index` among those of the graph.
    pub(crate) fn carried(&self, index: usize) -> &Carried {
        &self.carried[index]
    }

    /// As [`CpuState::carried`], to be replaced.
    pub(crate) fn carried_mut(&mut self, index: usize) -> &mut Carried {
        &mut self.carried[index]
    }

    /// Several state values, to be written.
    ///
    /// # Panics
    /// If two of them are the same.
    pub(crate) fn tensors_mut<const N: usize>(&mut self, indexes: [usize; N]) -> [&mut StateTensor; N] {
        self.tensors.get_disjoint_mut(indexes).expect("a task writes each state value once")
    }

    /// Adds the fault of a value in this row of the step for the state value at `index`.
    pub(crate) fn add_fault(&mut self, index: usize, row: u32, value: f32) {
        let StateTensor { name, layout, .. } = &self.tensors[index];
        let (name, dtype) = (name.clone(), layout.format.dtype());
        self.faults.push(RangeFault { row, name, dtype, value });
    }

    fn carried_of_mut(&mut self, group: GroupId) -> impl Iterator<Item = &mut Carried> {
        self.carried.iter_mut().filter(move |carried| carried.group == group)
    }

    fn of_group(&self, group: GroupId) -> impl Iterator<Item = &StateTensor> {
        self.tensors.iter().filter(move |tensor| tensor.owner == BlockOwner::Group(group))
    }

    fn of_group_mut(&mut self, group: GroupId) -> impl Iterator<Item = &mut StateTensor> {
        self.tensors.iter_mut().filter(move |tensor| tensor.owner == BlockOwner::Group(group))
    }
}

/// The state values of a graph with rows by position, and their groups.
fn values(graph: &Graph) -> impl Iterator<Item = (ValueId, GroupId, &Value)> {
    all_values(graph).filter(|(_, _, value)| graph.state_kind(value) != Some(StateKind::Carried))
}

/// The carried values of a graph, and their groups.
fn carried(graph: &Graph) -> impl Iterator<Item = (ValueId, GroupId, &Value)> {
    all_values(graph).filter(|(_, _, value)| graph.state_kind(value) == Some(StateKind::Carried))
}

fn all_values(graph: &Graph) -> impl Iterator<Item = (ValueId, GroupId, &Value)> {
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

    /// Some blocks of a sequence, as far as it has them.
    ///
    /// # Panics
    /// For a tensor of the step, which has no tables.
    pub fn blocks_of<'a>(&self, blocks: SequenceBlocks<'a>, indexes: Range<usize>) -> &'a [Block] {
        match self.owner {
            BlockOwner::Group(group) => {
                let blocks = blocks.groups[group.0 as usize];
                &blocks[indexes.start.min(blocks.len())..indexes.end.min(blocks.len())]
            }
            BlockOwner::Step => unreachable!("sequences have no tables of blocks in a tensor of the step"),
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
        self.carried_of_mut(group).for_each(|carried| carried.copy(from, to));
        Ok(())
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<(), Error> {
        for tensor in self.of_group_mut(group) {
            let range = tensor.block(block);
            tensor.bytes[range].fill(0);
        }
        self.carried_of_mut(group).for_each(|carried| carried.zero(block));
        Ok(())
    }

    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>, Error> {
        let blocks = self.of_group(group).map(|tensor| &tensor.bytes[tensor.block(block)]);
        let carried = self.carried.iter().filter(|carried| carried.group == group);
        Ok(blocks.flatten().copied().chain(carried.flat_map(|carried| carried.export(block))).collect())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error> {
        let need: usize = self.of_group(group).map(|tensor| tensor.block(block).len()).sum();
        let need = need + self.carried_of_mut(group).map(|carried| carried.block_bytes()).sum::<usize>();
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
        for carried in self.carried_of_mut(group) {
            let (own, others) = rest.split_at(carried.block_bytes());
            carried.import(block, own);
            rest = others;
        }
        Ok(())
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        std::mem::take(&mut self.faults)
    }
}
