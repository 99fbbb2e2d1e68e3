//! State on the device: keys and values in blocks of 64 positions, and carried values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use girih_graph::backend::{BLOCK_POSITIONS, Block, State};
use girih_graph::{Graph, GroupId, Op, RangeFault, Role, StateKind, Value, ValueId};
use girih_tensor::{DType, Error, Result};

use crate::device::GpuDevice;
use crate::driver::GpuBuffer;
use crate::step_table::group_of;

/// Numbers that share a scale in Q8_0.
pub(crate) const Q8_0_GROUP: u32 = 32;

/// How a state value lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldLayout {
    pub dtype: DType,
    pub heads: u32,
    /// Numbers of a head at a position.
    pub size: u32,
    /// Whether the words of a head lie with the positions side by side, as those of keys.
    pub is_transposed: bool,
}

impl HeldLayout {
    /// The layout of a value with this inner shape.
    pub fn new(dtype: DType, value: &Value, is_transposed: bool) -> HeldLayout {
        let size = value.shape.columns();
        let heads = value.shape.stride() / size.max(1);
        HeldLayout { dtype, heads: heads as u32, size: size as u32, is_transposed }
    }

    /// Words of a head at a position. Those of Q8_0 end with the scales, two in a word.
    pub fn words(&self) -> u32 {
        match self.dtype {
            DType::F16 | DType::BF16 => self.size.div_ceil(2),
            DType::Q8_0 => self.size / 4 + self.size.div_ceil(2 * Q8_0_GROUP),
            _ => self.size,
        }
    }

    /// The invocations that write a head at a position: one a word, or one for two groups of Q8_0.
    pub fn write_units(&self) -> u32 {
        match self.dtype {
            DType::Q8_0 => self.size.div_ceil(2 * Q8_0_GROUP),
            _ => self.words(),
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.words()) * BLOCK_POSITIONS as u64 * 4
    }
}

/// Whether nodes read a state value as keys.
pub(crate) fn is_keys(graph: &Graph, id: ValueId) -> bool {
    graph.nodes.iter().any(|node| match node.op {
        Op::Attend { .. } | Op::AttendLatent { .. } => node.inputs.get(1) == Some(&id),
        Op::SelectKeys { .. } => node.inputs.get(2) == Some(&id),
        _ => false,
    })
}

/// The bytes of a block of a state value.
fn block_bytes(graph: &Graph, id: ValueId) -> u64 {
    let value = graph.value(id);
    match group_of(graph, id) {
        Some((_, StateKind::Carried)) => value.shape.elements() as u64 * 4,
        _ => HeldLayout::new(value.dtype, value, is_keys(graph, id)).block_bytes(),
    }
}

/// All state of a model.
#[derive(Debug)]
pub struct GpuState {
    id: u64,
    device: Arc<GpuDevice>,
    tensors: Vec<StateTensor>,
    faults: Vec<RangeFault>,
}

/// One state value, with all blocks of its group.
#[derive(Debug)]
struct StateTensor {
    name: String,
    group: GroupId,
    block_bytes: u64,
    buffer: GpuBuffer,
}

impl GpuState {
    /// The bytes of `blocks[g]` blocks for each group `g`.
    pub(crate) fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let sizes = graph.ids().filter_map(|(id, value)| match value.role {
            Role::State(group) => {
                Some(block_bytes(graph, id).saturating_mul(u64::from(blocks[group.0 as usize])))
            }
            _ => None,
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Makes zeroed state.
    pub(crate) fn new(device: &Arc<GpuDevice>, graph: &Graph, blocks: &[u32]) -> Result<GpuState> {
        let mut tensors = Vec::new();
        for (id, value) in graph.ids() {
            let Role::State(group) = value.role else {
                continue;
            };
            let block_bytes = block_bytes(graph, id);
            let bytes = block_bytes.saturating_mul(u64::from(blocks[group.0 as usize]));
            let what = format!("the state '{}'", value.name);
            let buffer = device.buffer(&what, bytes)?;
            tensors.push(StateTensor { name: value.name.clone(), group, block_bytes, buffer });
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(GpuState { id, device: Arc::clone(device), tensors, faults: Vec::new() })
    }

    /// The buffer of a state value, by its number among those of the graph.
    pub(crate) fn buffer(&self, index: usize) -> &GpuBuffer {
        &self.tensors[index].buffer
    }

    /// The name of the state value of this number.
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.tensors[index].name
    }

    /// A number that no other state of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Keeps what a step could not store.
    pub(crate) fn note(&mut self, faults: Vec<RangeFault>) {
        self.faults.extend(faults);
    }

    fn of(&self, group: GroupId) -> impl Iterator<Item = &StateTensor> {
        self.tensors.iter().filter(move |tensor| tensor.group == group)
    }
}

impl StateTensor {
    /// The offset of a block.
    fn offset(&self, block: Block) -> u64 {
        u64::from(block.0) * self.block_bytes
    }
}

impl State for GpuState {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let mut commands = self.device.commands();
        // A buffer is not copied within itself, so that the block goes by way of another one.
        let between: u64 = self.of(group).map(|tensor| tensor.block_bytes).max().unwrap_or(0);
        let between = self.device.buffer("a copied block", between)?;
        for tensor in self.of(group) {
            let (from, to) = (tensor.offset(from), tensor.offset(to));
            commands.copy(&tensor.buffer, from, &between, 0, tensor.block_bytes);
            commands.copy(&between, 0, &tensor.buffer, to, tensor.block_bytes);
        }
        self.device.submit(commands)
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<()> {
        let mut commands = self.device.commands();
        for tensor in self.of(group) {
            commands.clear(&tensor.buffer, tensor.offset(block), tensor.block_bytes);
        }
        self.device.submit(commands)
    }

    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>> {
        let bytes: u64 = self.of(group).map(|tensor| tensor.block_bytes).sum();
        let staging = self.device.staging(bytes)?;
        let mut commands = self.device.commands();
        let mut at = 0;
        for tensor in self.of(group) {
            commands.copy(&tensor.buffer, tensor.offset(block), &staging, at, tensor.block_bytes);
            at += tensor.block_bytes;
        }
        self.device.submit_and_read(commands, &staging, bytes, |read| read[..bytes as usize].to_vec())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<()> {
        let need: u64 = self.of(group).map(|tensor| tensor.block_bytes).sum();
        if bytes.len() as u64 != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of state has {need} bytes; got {have}")));
        }
        let mut rest = bytes;
        for tensor in self.of(group) {
            let (own, others) = rest.split_at(tensor.block_bytes as usize);
            self.device.write(&tensor.buffer, tensor.offset(block), own);
            rest = others;
        }
        self.device.submit(self.device.commands())
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        std::mem::take(&mut self.faults)
    }
}
