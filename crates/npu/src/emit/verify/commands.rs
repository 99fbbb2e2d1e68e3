//! Checks of `aiex.runtime_sequence`.

use std::collections::{BTreeMap, VecDeque};

use super::declared::{Checked, Declared, direction, number, within};
use crate::emit::mlir::{MlirAttribute, MlirOp, MlirType};
use crate::emit::sequence::{COLUMN_SHIFT, SHIM_DESCRIPTORS, UNUSED_FIELDS};
use crate::form::schedule::{Channel, Tile};

/// The largest stride register: `NpuWriteBdOp::verify`.
const MAX_STRIDE: i64 = 0xf_ffff;

/// The registers of a descriptor as they were last written.
struct WrittenDescriptor {
    /// Sizes and strides of d0, d1 and d2; no size where one word or one run is moved.
    dims: Vec<(i64, i64)>,
    iteration: (i64, i64),
    /// The argument and the byte where it begins.
    address: Option<(i64, i64)>,
}

/// Checks the commands.
///
/// * `NpuWriteBdOp::verify`, `NpuPushQueueOp::verify` of AIEXDialect.cpp;
/// * each push follows the write and the patch of its descriptor, on a channel with a flow;
/// * no queue receives more tasks than it holds, and no descriptor is written while a task has it
///   (notes on `npu.dma_memcpy_nd` in AIEX.td);
/// * each wait has a token to come, and none is left at the end;
/// * no task leaves its argument.
pub(super) fn sequence(op: &MlirOp, declared: &Declared<'_>) -> Checked {
    let [region] = op.regions.as_slice() else { return Err("needs one region".to_owned()) };
    let [block] = region.blocks.as_slice() else { return Err("needs one block".to_owned()) };
    let words = block.arguments.iter().map(|argument| match argument.of {
        MlirType::Words(words) => Ok(i64::try_from(words).unwrap_or(i64::MAX)),
        _ => Err("has an argument that is no buffer".to_owned()),
    });
    let mut check = SequenceCheck {
        declared,
        words: words.collect::<Checked<_>>()?,
        written: BTreeMap::new(),
        open: BTreeMap::new(),
    };
    for op in &block.ops {
        let checked = match op.name {
            "aiex.npu.writebd" => check.write(op),
            "aiex.npu.address_patch" => check.patch(op),
            "aiex.npu.push_queue" => check.push(op),
            "aiex.npu.sync" => check.sync(op),
            _ => Err("is not emitted".to_owned()),
        };
        checked.map_err(|sentence| format!("{} {sentence}", op.name))?;
    }
    let left = check.open.iter().find(|(_, tasks)| tasks.iter().any(|(_, token)| *token));
    left.map_or(Ok(()), |(channel, _)| Err(format!("leaves a token of {channel}")))
}

/// The commands so far.
struct SequenceCheck<'a> {
    declared: &'a Declared<'a>,
    /// The words of each argument.
    words: Vec<i64>,
    /// Descriptors by column and number.
    written: BTreeMap<(i64, i64), WrittenDescriptor>,
    /// The tasks of each channel that may not have ended: the descriptor's number, and whether it
    /// yields a token.
    open: BTreeMap<Channel, VecDeque<(i64, bool)>>,
}

impl SequenceCheck<'_> {
    fn column(&self, op: &MlirOp) -> Checked<i64> {
        within(op, "row", 0..=0)?;
        within(op, "column", 0..=i64::from(self.declared.target.array.shim_columns) - 1)
    }

    fn id(&self, op: &MlirOp) -> Checked<i64> {
        within(op, "bd_id", 0..=i64::from(self.declared.target.shim.dma.descriptors) - 1)
    }

    fn write(&mut self, op: &MlirOp) -> Checked {
        let (column, id) = (self.column(op)?, self.id(op)?);
        let in_use = |(channel, tasks): (&Channel, &VecDeque<(i64, bool)>)| {
            i64::from(channel.tile.column) == column && tasks.iter().any(|(of, _)| *of == id)
        };
        if self.open.iter().any(in_use) {
            return Err(format!("writes descriptor {id} of column {column}, which a task may still use"));
        }
        within(op, "valid_bd", 1..=1)?;
        for name in UNUSED_FIELDS {
            within(op, name, 0..=0)?;
        }
        let length = within(op, "buffer_length", 1..=i64::from(i32::MAX))?;
        let (d0, d1) = (within(op, "d0_size", 0..=1023)?, within(op, "d1_size", 0..=1023)?);
        let stride = |name| Ok::<i64, String>(within(op, name, 0..=MAX_STRIDE)? + 1);
        let [s0, s1, s2] = [stride("d0_stride")?, stride("d1_stride")?, stride("d2_stride")?];
        let iteration = (within(op, "iteration_size", 0..=63)? + 1, stride("iteration_stride")?);
        let dims = match (d0, d1) {
            (0, 0) => vec![(length, 1)],
            (0, _) | (_, 0) => return Err("has one size of 0".to_owned()),
            (d0, d1) if length % (d0 * d1) != 0 => {
                return Err(format!("moves {length} words in {d1} rows of {d0}"));
            }
            (d0, d1) => vec![(d0, s0), (d1, s1), (length / (d0 * d1), s2)],
        };
        self.written.insert((column, id), WrittenDescriptor { dims, iteration, address: None });
        Ok(())
    }

    fn patch(&mut self, op: &MlirOp) -> Checked {
        let (first, bytes, address) = SHIM_DESCRIPTORS;
        let register = number(op, "addr")?;
        let (column, register) = (register >> COLUMN_SHIFT, register & ((1 << COLUMN_SHIFT) - 1));
        let place = register - first - address;
        let written = self.written.get_mut(&(column, place / bytes)).filter(|_| place % bytes == 0);
        let written = written.ok_or("patches no address of a descriptor that is written")?;
        let argument = within(op, "arg_idx", 0..=self.words.len() as i64 - 1)?;
        let start = within(op, "arg_plus", 0..=i64::from(i32::MAX))?;
        if start % 4 != 0 {
            return Err(format!("begins at byte {start}, which is no word"));
        }
        written.address = Some((argument, start));
        Ok(())
    }

    fn push(&mut self, op: &MlirOp) -> Checked {
        let (column, id) = (self.column(op)?, self.id(op)?);
        let repeats = within(op, "repeat_count", 0..=255)? + 1;
        let tile = Tile::new(column as u8, 0);
        let channel = self.declared.channel(tile, direction(op, "direction")?, number(op, "channel")?)?;
        if !self.declared.routed.contains(&channel) {
            return Err(format!("is for {channel}, which has no flow"));
        }
        let Some(MlirAttribute::Bool(token)) = op.attribute("issue_token") else {
            return Err("does not say whether it yields a token".to_owned());
        };
        let written = self.written.get(&(column, id)).ok_or("uses a descriptor that is not written")?;
        self.extent(written, repeats)?;
        let tasks = self.open.entry(channel).or_default();
        let queue = self.declared.target.shim.dma.queue as usize;
        if tasks.len() >= queue {
            return Err(format!("is for {channel}, whose queue of {queue} tasks may be full"));
        }
        tasks.push_back((id, *token));
        Ok(())
    }

    /// Checks that a task stays in its argument.
    fn extent(&self, written: &WrittenDescriptor, repeats: i64) -> Checked {
        let (argument, start) = written.address.ok_or("uses a descriptor whose address is not patched")?;
        let (steps, stride) = written.iteration;
        let within_run = written.dims.iter().map(|(size, stride)| (size - 1).saturating_mul(*stride));
        let last = within_run.fold((steps.min(repeats) - 1) * stride, i64::saturating_add);
        let (end, words) = ((start / 4).saturating_add(last), self.words[argument as usize]);
        if end >= words {
            return Err(format!("moves word {end} of argument {argument}, which has {words}"));
        }
        Ok(())
    }

    fn sync(&mut self, op: &MlirOp) -> Checked {
        within(op, "column_num", 1..=1)?;
        within(op, "row_num", 1..=1)?;
        let tile = Tile::new(self.column(op)? as u8, 0);
        let channel = self.declared.channel(tile, direction(op, "direction")?, number(op, "channel")?)?;
        let tasks = self.open.entry(channel).or_default();
        while let Some((_, token)) = tasks.pop_front() {
            if token {
                return Ok(());
            }
        }
        Err(format!("waits for a token of {channel}, which no task yields"))
    }
}
