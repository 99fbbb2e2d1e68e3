//! The interpreter's state: one `f32` matrix per state value, in blocks.

use std::ops::Range;

use girih_tensor::{DType, Error};

use super::memory::zeroed;
use crate::backend::{BLOCK_POSITIONS, Block, Sequence, State};
use crate::graph::Graph;
use crate::value::{GroupId, Role, Value};

/// Every state value, as `f32` numbers that its own type can represent.
#[derive(Debug)]
pub struct InterpreterState {
    pub(super) values: Vec<StateValue>,
}

/// One state value: `blocks` × [`BLOCK_POSITIONS`] × `inner` numbers.
#[derive(Debug)]
pub(super) struct StateValue {
    pub name: String,
    group: GroupId,
    dtype: DType,
    /// Numbers of one position.
    pub inner: usize,
    data: Vec<f32>,
}

impl StateValue {
    fn new(value: &Value, group: GroupId, blocks: u32) -> Result<StateValue, Error> {
        let inner = value.shape.stride();
        let count = (blocks as usize * BLOCK_POSITIONS).checked_mul(inner);
        let data = zeroed(&value.name, count)?;
        Ok(StateValue { name: value.name.clone(), group, dtype: value.dtype, inner, data })
    }

    fn block(&self, block: Block) -> Range<usize> {
        let length = self.inner * BLOCK_POSITIONS;
        block.0 as usize * length..(block.0 as usize + 1) * length
    }

    /// The indexes of a position's numbers.
    fn slot(&self, sequence: &Sequence<'_>, position: usize) -> Range<usize> {
        let block = sequence.blocks[self.group.0 as usize][position / BLOCK_POSITIONS];
        let start = (block.0 as usize * BLOCK_POSITIONS + position % BLOCK_POSITIONS) * self.inner;
        start..start + self.inner
    }

    pub fn row(&self, sequence: &Sequence<'_>, position: usize) -> &[f32] {
        &self.data[self.slot(sequence, position)]
    }

    /// Stores a row, rounded to the state's type.
    pub fn put(&mut self, sequence: &Sequence<'_>, position: usize, row: &[f32]) {
        let mut bytes = vec![0; self.inner / self.dtype.tile().1 * self.dtype.block_bytes()];
        self.dtype.pack(row, &mut bytes);
        let slot = self.slot(sequence, position);
        self.dtype.unpack(&bytes, &mut self.data[slot]);
    }
}

impl InterpreterState {
    /// Zeroed state of the graph, `blocks[g]` blocks for group `g`.
    pub(super) fn new(graph: &Graph, blocks: &[u32]) -> Result<InterpreterState, Error> {
        let values = graph.values.iter().filter_map(|value| {
            let Role::State(group) = value.role else { return None };
            Some(StateValue::new(value, group, blocks[group.0 as usize]))
        });
        Ok(InterpreterState { values: values.collect::<Result<_, _>>()? })
    }
}

impl State for InterpreterState {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<(), Error> {
        for value in self.values.iter_mut().filter(|value| value.group == group) {
            let (from, to) = (value.block(from), value.block(to).start);
            value.data.copy_within(from, to);
        }
        Ok(())
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<(), Error> {
        for value in self.values.iter_mut().filter(|value| value.group == group) {
            let range = value.block(block);
            value.data[range].fill(0.0);
        }
        Ok(())
    }

    fn export(&self, group: GroupId, block: Block) -> Result<Vec<u8>, Error> {
        let values = self.values.iter().filter(|value| value.group == group);
        Ok(values
            .flat_map(|value| value.data[value.block(block)].iter().flat_map(|x| x.to_le_bytes()))
            .collect())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error> {
        let values = || self.values.iter().filter(|value| value.group == group);
        let need: usize = values().map(|value| value.block(block).len() * size_of::<f32>()).sum();
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of state is {need} bytes; {have} were given")));
        }
        let mut numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        for value in self.values.iter_mut().filter(|value| value.group == group) {
            let range = value.block(block);
            value.data[range].iter_mut().zip(&mut numbers).for_each(|(slot, x)| *slot = x);
        }
        Ok(())
    }
}
