//! The commands of a launch: `aiex.runtime_sequence`.
//!
//! A push becomes the three operations that mlir-aie makes of `aiex.npu.dma_memcpy_nd`: the
//! registers of the descriptor, the address that is patched, the push to the queue. A wait
//! becomes `aiex.npu.sync`. A write to a full queue is lost on the device, so that the sequence
//! waits for the oldest task of a channel before it pushes one more than the queue holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use girih_tensor::{Error, Result};

use super::dma::{direction, is_contiguous};
use super::mlir::{MlirAttribute, MlirBlock, MlirOp, MlirRegion, MlirType};
use super::resources::Numbering;
use crate::form::schedule::{
    Argument, Channel, Descriptor, Dim, DmaAddress, Launch, ProcessorCommand, Push, TileKind,
};

/// The symbol of a device's only sequence.
pub(super) const SEQUENCE: &str = "sequence";

/// The most buffers of a kernel in an xclbin: aiecc declares `bo0` to `bo4`.
const MAX_ARGUMENTS: usize = 5;

/// The most commands of a launch that are emitted.
const MAX_COMMANDS: usize = 1 << 17;

/// A step of a sequence.
enum SequenceStep<'a> {
    /// A task, the bytes that are added to its address, and whether it yields a token.
    Push { push: &'a Push, offset: i64, token: bool },
    /// A wait for a token of the channel.
    Sync(Channel),
}

/// A sequence, and the numbers of the program's arguments that it has, in order.
pub(super) struct EmittedSequence {
    pub op: MlirOp,
    pub arguments: Vec<u32>,
}

/// Returns the sequence of a launch.
///
/// # Errors
/// When the dialect cannot express a command.
pub(super) fn sequence(
    launch: &Launch,
    arguments: &[Argument],
    queue: u32,
    numbering: &mut Numbering,
) -> Result<EmittedSequence> {
    let used: BTreeSet<u32> = launch.descriptors.iter().filter_map(argument_of).collect();
    let used: Vec<u32> = used.into_iter().collect();
    if used.len() > MAX_ARGUMENTS {
        let count = used.len();
        return Err(Error::new(format!(
            "has {count} buffers in DRAM; the kernel of an xclbin has at most {MAX_ARGUMENTS}"
        )));
    }
    let values = used.iter().map(|&argument| {
        let bytes = arguments.get(argument as usize).map_or(0, |argument| argument.bytes);
        numbering.value(MlirType::Words(bytes.div_ceil(4)))
    });
    let mut block = MlirBlock { arguments: values.collect(), ops: Vec::new() };
    let mut descriptors = BTreeMap::new();
    for descriptor in launch.descriptors.iter().filter(|of| of.tile.kind() == TileKind::Shim) {
        descriptors.insert((descriptor.tile, descriptor.id), descriptor);
    }
    let mut list = StepList::default();
    list.add(&launch.commands, &mut Vec::new(), queue as usize)?;
    for step in list.steps {
        match step {
            SequenceStep::Sync(channel) => block.ops.push(sync(channel)),
            SequenceStep::Push { push, offset, token } => {
                let found = descriptors.get(&(push.channel.tile, push.descriptor)).copied();
                let missing = || Error::new(format!("{} pushes a descriptor that no shim has", push.channel));
                let descriptor = found.ok_or_else(missing)?;
                block.ops.extend(pushed(push, (descriptor, offset, token), &used)?);
            }
        }
    }
    let op = MlirOp::new("aiex.runtime_sequence").region(MlirRegion::of(block));
    let op = op.with("sym_name", MlirAttribute::Text(SEQUENCE.to_owned()));
    Ok(EmittedSequence { op, arguments: used })
}

fn argument_of(descriptor: &Descriptor) -> Option<u32> {
    match descriptor.address {
        DmaAddress::Argument(argument, _) => Some(argument),
        DmaAddress::Buffer(..) => None,
    }
}

/// The tasks of a channel that may not have ended.
#[derive(Default)]
struct OpenTasks {
    /// The steps that pushed them, oldest first.
    steps: VecDeque<usize>,
    /// The tokens that were taken to have room in the queue, before the program waits for them.
    taken: usize,
}

/// The steps of a launch, without loops.
#[derive(Default)]
struct StepList<'a> {
    steps: Vec<SequenceStep<'a>>,
    open: BTreeMap<Channel, OpenTasks>,
    /// The commands and turns of loops so far.
    visited: usize,
}

impl<'a> StepList<'a> {
    /// Adds commands within loops, whose counters are given.
    fn add(&mut self, commands: &'a [ProcessorCommand], loops: &mut Vec<u32>, queue: usize) -> Result<()> {
        for command in commands {
            self.visit()?;
            match command {
                ProcessorCommand::Loop { count, body } => {
                    for counter in 0..*count {
                        self.visit()?;
                        loops.push(counter);
                        self.add(body, loops, queue)?;
                        loops.pop();
                    }
                }
                ProcessorCommand::Push(push) => self.push(push, push.offset.at(loops), queue),
                ProcessorCommand::Wait(channel) => self.wait(*channel)?,
            }
        }
        Ok(())
    }

    /// Counts a command or a turn of a loop.
    fn visit(&mut self) -> Result<()> {
        self.visited += 1;
        if self.visited <= MAX_COMMANDS {
            return Ok(());
        }
        Err(Error::new(format!("has more than {MAX_COMMANDS} commands, the most that are emitted")))
    }

    /// Pushes a task, after the oldest of the channel has ended if its queue may be full.
    fn push(&mut self, push: &'a Push, offset: i64, queue: usize) {
        let tasks = self.open.entry(push.channel).or_default();
        if tasks.steps.len() >= queue
            && let Some(oldest) = tasks.steps.pop_front()
        {
            if let Some(SequenceStep::Push { token, .. }) = self.steps.get_mut(oldest) {
                tasks.taken += usize::from(*token);
                *token = true;
            }
            self.steps.push(SequenceStep::Sync(push.channel));
        }
        tasks.steps.push_back(self.steps.len());
        self.steps.push(SequenceStep::Push { push, offset, token: push.token });
    }

    /// Waits for the oldest task of a channel that yields a token.
    fn wait(&mut self, channel: Channel) -> Result<()> {
        let tasks = self.open.entry(channel).or_default();
        if tasks.taken > 0 {
            tasks.taken -= 1;
            return Ok(());
        }
        while let Some(oldest) = tasks.steps.pop_front() {
            if let Some(SequenceStep::Push { token: true, .. }) = self.steps.get(oldest) {
                self.steps.push(SequenceStep::Sync(channel));
                return Ok(());
            }
        }
        Err(Error::new(format!("waits for a token of {channel}, which no task yields")))
    }
}

/// Returns the wait for one token of a channel.
fn sync(channel: Channel) -> MlirOp {
    let op = MlirOp::new("aiex.npu.sync").int("column", channel.tile.column).int("row", channel.tile.row);
    let op = op.int("direction", direction(channel.direction)).int("channel", channel.number);
    op.int("column_num", 1).int("row_num", 1)
}

/// A descriptor's registers in the units of the hardware: strides count from 1, and so does the
/// iteration (mlir-aie AIEXDialect.cpp, `getHardwareStridesWraps`). The register of the outermost
/// dimension has no size in a shim.
fn registers(dims: &[Dim], iteration: Option<Dim>) -> [(&'static str, u32); 7] {
    let of = |place: usize| match dims.len().checked_sub(place + 1).and_then(|index| dims.get(index)) {
        Some(dim) => (dim.size, if dim.size > 1 { dim.stride.saturating_sub(1) } else { 0 }),
        None => (1, 0),
    };
    // One contiguous run needs only its length.
    let [d0, d1, d2] = if is_contiguous(dims) { [(0, 0); 3] } else { [of(0), of(1), of(2)] };
    let steps = iteration.filter(|dim| dim.size > 1 && dim.stride > 0);
    let (size, stride) = steps.map_or((0, 0), |dim| (dim.size - 1, dim.stride - 1));
    [
        ("d0_size", d0.0),
        ("d0_stride", d0.1),
        ("d1_size", d1.0),
        ("d1_stride", d1.1),
        ("d2_stride", d2.1),
        ("iteration_size", size),
        ("iteration_stride", stride),
    ]
}

/// The fields of `aiex.npu.writebd` that no shim descriptor of a schedule uses.
pub(super) const UNUSED_FIELDS: &[&str] = &[
    "buffer_offset",
    "d0_zero_after",
    "d0_zero_before",
    "d1_zero_after",
    "d1_zero_before",
    "d2_size",
    "d2_zero_after",
    "d2_zero_before",
    "enable_packet",
    "iteration_current",
    "lock_acq_enable",
    "lock_acq_id",
    "lock_acq_val",
    "lock_rel_id",
    "lock_rel_val",
    "next_bd",
    "out_of_order_id",
    "packet_id",
    "packet_type",
    "use_next_bd",
];

/// Among the registers of a shim: the byte of its first descriptor, the bytes of each, and the byte of
/// the address within one (mlir-aie AIETargetModel.cpp, `getDmaBdAddress` and `getDmaBdAddressOffset`).
pub(super) const SHIM_DESCRIPTORS: (i64, i64, i64) = (0x1d000, 0x20, 4);

/// The bit of an address where the column begins (AIETargetModel.h, `getColumnShift`).
pub(super) const COLUMN_SHIFT: u32 = 25;

/// Returns the operations of a push: registers, address, queue.
fn pushed(
    push: &Push,
    (descriptor, offset, token): (&Descriptor, i64, bool),
    used: &[u32],
) -> Result<[MlirOp; 3]> {
    let Push { channel, repeats, .. } = push;
    let Descriptor { tile, id, dims, iteration, acquire, release, next, .. } = descriptor;
    let what = format!("descriptor {id} of tile {tile}");
    if acquire.is_some() || release.is_some() || next.is_some() {
        return Err(Error::new(format!("{what} has a lock or a follower; shims are emitted without")));
    }
    let DmaAddress::Argument(argument, base) = descriptor.address else {
        return Err(Error::new(format!("{what} addresses no argument")));
    };
    let place = used.iter().position(|of| *of == argument).unwrap_or_default() as i64;
    let start = i64::try_from(base).ok().and_then(|base| base.checked_add(offset));
    let start = start.and_then(|start| i32::try_from(start).ok()).filter(|start| *start >= 0);
    let words = i32::try_from(descriptor.words()).ok();
    let (Some(start), Some(words)) = (start, words) else {
        return Err(Error::new(format!(
            "{what} begins or ends beyond 2 GiB, which the dialect cannot address"
        )));
    };
    let column = i64::from(tile.column);
    let mut write = MlirOp::new("aiex.npu.writebd").int("column", column).int("bd_id", *id);
    write = write.int("buffer_length", words).int("valid_bd", 1).int("row", 0).int("burst_length", 0);
    for (name, value) in registers(dims, *iteration) {
        write = write.int(name, value);
    }
    for name in UNUSED_FIELDS {
        write = write.int(name, 0);
    }
    let (first, bytes, address) = SHIM_DESCRIPTORS;
    let register = (column << COLUMN_SHIFT) + first + bytes * i64::from(*id) + address;
    let patch = MlirOp::new("aiex.npu.address_patch").with("addr", MlirAttribute::Int(register, "ui32"));
    let patch = patch.int("arg_idx", place).int("arg_plus", start);
    let queue = MlirOp::new("aiex.npu.push_queue").int("column", column).int("row", 0);
    let queue = queue.int("direction", direction(channel.direction)).int("channel", channel.number);
    let queue = queue.with("issue_token", MlirAttribute::Bool(token));
    // The dialect counts the runs after the first.
    let queue = queue.int("repeat_count", i64::from(*repeats) - 1).int("bd_id", *id);
    Ok([write, patch, queue])
}
