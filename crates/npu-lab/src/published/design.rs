//! Builds launches by hand, as the public builders of measured kernels lay them
//! out: channels and cores pass buffers to each other through fifos.

use std::collections::HashMap;

use girih_npu::form::schedule::{
    Affine, Argument, ArgumentRole, Buffer, BufferId, CallOperand, Cascade, Channel, Core, CoreCall,
    CoreInstruction, Descriptor, Dim, Direction, DmaAddress, Hop, Launch, LockChange, LockId, Parameter,
    ParameterValue, ProcessorCommand, Push, Route, Schedule, Start, Tile, TileLock,
};
use girih_npu::kernel::{Param, ParamKind, entry};
use girih_tensor::{Error, Result};

/// The maximum size of a buffer, more than any tile of a measured array holds.
const MAX_BUFFER_BYTES: u64 = 1 << 20;

/// The maximum size of an argument; published ones have at most 128 MiB.
const MAX_ARGUMENT_BYTES: u64 = 1 << 32;

/// The maximum number of launch points, each with its own commands; published
/// matmuls have a few hundred at most.
const MAX_LAUNCH_POINTS: u64 = 1 << 12;

/// The maximum number of calls of one core; published launches have some ten
/// thousand at most.
const MAX_CORE_CALLS: u64 = 1 << 20;

/// Refuses a size that is not a multiple of its tile's.
pub(super) fn divides(what: &str, whole: u64, part: u64) -> Result<()> {
    if whole > 0 && whole.checked_rem(part) == Some(0) {
        return Ok(());
    }
    Err(Error::new(format!(
        "{what} is {whole}, and must be a multiple of {part} for its tiles: correct the row"
    )))
}

/// Refuses buffers that no tile can hold, or that are not whole words of four
/// bytes.
pub(super) fn buffer(what: &str, bytes: u64) -> Result<()> {
    divides(&format!("the byte count of {what}"), bytes, 4)?;
    within(&format!("bytes of {what}"), bytes, MAX_BUFFER_BYTES)
}

/// Refuses arguments above the maximum size.
pub(super) fn argument(what: &str, bytes: u64) -> Result<()> {
    within(&format!("bytes of {what}"), bytes, MAX_ARGUMENT_BYTES)
}

/// Refuses more launch points, or more calls of a core over all of them, than
/// the limits allow.
pub(super) fn work(points: u64, calls: u64) -> Result<()> {
    within("launch points", points, MAX_LAUNCH_POINTS)?;
    self::calls(points * calls.min(MAX_CORE_CALLS + 1))
}

/// Refuses more calls of a core than the limit allows.
pub(super) fn calls(calls: u64) -> Result<()> {
    within("calls of a core", calls, MAX_CORE_CALLS)
}

fn within(what: &str, found: u64, max: u64) -> Result<()> {
    if found <= max {
        return Ok(());
    }
    Err(Error::new(format!("{found} {what} exceed the simulated maximum of {max}: correct the row")))
}

/// A launch under construction.
#[derive(Default)]
pub(super) struct Design {
    launch: Launch,
    /// The next free byte, lock and descriptor of each tile.
    free: HashMap<Tile, (u32, u8, u8)>,
    /// The size of each argument: the end of the last byte that is used.
    arguments: Vec<u64>,
}

/// Buffers of one tile that are filled and emptied in rotation, with the locks
/// that count the empty and the full ones.
#[derive(Clone, Debug)]
pub(super) struct Fifo {
    tile: Tile,
    bytes: u32,
    pub slots: Vec<BufferId>,
    empty: LockId,
    full: LockId,
}

/// A transfer to or from DRAM.
#[derive(Clone, Debug)]
pub(super) struct DesignTransfer {
    pub argument: u32,
    /// Extents and strides in words, outermost first.
    pub dims: Vec<(u64, u64)>,
    pub repeats: u32,
}

impl DesignTransfer {
    /// Contiguous words.
    pub fn linear(argument: u32, bytes: u64) -> DesignTransfer {
        DesignTransfer { argument, dims: vec![(bytes / 4, 1)], repeats: 1 }
    }

    /// Runs of `bytes` contiguous bytes, `stride` bytes apart.
    pub fn runs(argument: u32, runs: u64, bytes: u64, stride: u64) -> DesignTransfer {
        DesignTransfer { argument, dims: vec![(runs, stride / 4), (bytes / 4, 1)], repeats: 1 }
    }
}

impl Design {
    /// An empty launch with this name and number of arguments.
    pub fn new(name: &str, arguments: usize) -> Design {
        let launch = Launch { name: name.to_owned(), ..Launch::default() };
        Design { launch, free: HashMap::new(), arguments: vec![0; arguments] }
    }

    /// The launch, and the bytes of its arguments.
    pub fn finish(self) -> (Launch, Vec<u64>) {
        (self.launch, self.arguments)
    }

    fn free(&mut self, tile: Tile) -> &mut (u32, u8, u8) {
        self.free.entry(tile).or_insert((if tile.row > 1 { 1024 } else { 0 }, 0, 0))
    }

    /// A fifo whose buffers are all empty.
    pub fn fifo(&mut self, tile: Tile, name: &str, bytes: u64, slots: usize) -> Fifo {
        let bytes = u32::try_from(bytes).expect("`buffer` has limited the size");
        let slots =
            (0..slots).map(|slot| self.buffer(tile, &format!("{name}.{slot}"), bytes)).collect::<Vec<_>>();
        let empty = self.lock(tile, slots.len() as u8);
        Fifo { tile, bytes, slots, empty, full: self.lock(tile, 0) }
    }

    /// A buffer that only its own core uses.
    pub fn buffer(&mut self, tile: Tile, name: &str, bytes: u32) -> BufferId {
        let free = &mut self.free(tile).0;
        let address = free.next_multiple_of(64);
        *free = address + bytes;
        self.launch.buffers.push(Buffer { name: name.to_owned(), tile, address, bytes });
        BufferId(self.launch.buffers.len() as u32 - 1)
    }

    fn lock(&mut self, tile: Tile, initial: u8) -> LockId {
        let free = &mut self.free(tile).1;
        let id = *free;
        *free += 1;
        self.launch.locks.push(TileLock { tile, id, initial });
        LockId(self.launch.locks.len() as u32 - 1)
    }

    /// Makes a channel fill the buffers of a fifo with arriving words, without
    /// end.
    pub fn fill(&mut self, channel: Channel, fifo: &Fifo) {
        self.ring(channel, &[fifo], |fifo| (fifo.empty, fifo.full));
    }

    /// Makes a channel empty a fifo.
    pub fn drain(&mut self, channel: Channel, fifo: &Fifo) {
        self.ring(channel, &[fifo], |fifo| (fifo.full, fifo.empty));
    }

    /// Makes a channel empty fifos in rotation, one buffer of each.
    pub fn drain_all(&mut self, channel: Channel, fifos: &[&Fifo]) {
        self.ring(channel, fifos, |fifo| (fifo.full, fifo.empty));
    }

    fn ring(&mut self, channel: Channel, fifos: &[&Fifo], locks: fn(&Fifo) -> (LockId, LockId)) {
        let tile = channel.tile;
        let count: usize = fifos.iter().map(|fifo| fifo.slots.len()).sum();
        let first = self.free(tile).2;
        self.free(tile).2 += count as u8;
        let rounds = fifos[0].slots.len();
        let order = (0..rounds).flat_map(|slot| fifos.iter().map(move |fifo| (slot, *fifo)));
        for ((slot, fifo), at) in order.zip(0u8..) {
            let (acquire, release) = locks(fifo);
            let step = |lock| Some(LockChange { lock, value: 1 });
            self.launch.descriptors.push(Descriptor {
                tile,
                id: first + at,
                address: DmaAddress::Buffer(fifo.slots[slot], 0),
                dims: vec![Dim { size: fifo.bytes / 4, stride: 1 }],
                iteration: None,
                acquire: step(acquire),
                release: step(release),
                next: Some(if usize::from(at) + 1 == count { first } else { first + at + 1 }),
            });
        }
        self.launch.starts.push(Start { channel, descriptor: first, repeats: 1 });
    }

    /// Adds a circuit. Its hops include the switches of both end tiles.
    pub fn route(&mut self, from: Channel, to: &[Channel]) {
        let hops = |to: &Channel| {
            let (a, b) = (from.tile, to.tile);
            Hop { channel: *to, hops: a.column.abs_diff(b.column) + a.row.abs_diff(b.row) + 1 }
        };
        self.launch.routes.push(Route { from, to: to.iter().map(hops).collect() });
    }

    /// Sets the program of a core.
    pub fn core(&mut self, tile: Tile, program: Vec<CoreInstruction>) {
        self.launch.cores.push(Core { tile, program });
    }

    /// Queues a transfer on a channel of a shim.
    pub fn push(&mut self, channel: Channel, transfer: &DesignTransfer) {
        self.push_task(channel, transfer, 0, false);
    }

    /// Queues the transfer of results `offset` bytes into their argument, so that each channel writes
    /// a place of its own. Its token allows a wait for its end.
    pub fn push_results(&mut self, channel: Channel, transfer: &DesignTransfer, offset: u64) {
        self.push_task(channel, transfer, offset, true);
    }

    fn push_task(&mut self, channel: Channel, transfer: &DesignTransfer, offset: u64, token: bool) {
        let reach: u64 = transfer.dims.iter().map(|&(size, stride)| (size - 1) * stride).sum::<u64>() + 1;
        let bytes = &mut self.arguments[transfer.argument as usize];
        *bytes = (*bytes).max(offset + reach * 4);
        let address = DmaAddress::Argument(transfer.argument, 0);
        let dim = |&(size, stride): &(u64, u64)| Dim { size: size as u32, stride: stride as u32 };
        let dims: Vec<Dim> = transfer.dims.iter().map(dim).collect();
        let same = |one: &&Descriptor| one.tile == channel.tile && one.address == address && one.dims == dims;
        let id = match self.launch.descriptors.iter().find(same) {
            Some(one) => one.id,
            None => {
                let free = &mut self.free(channel.tile).2;
                let id = *free;
                *free += 1;
                let (tile, iteration, acquire, release, next) = (channel.tile, None, None, None, None);
                self.launch.descriptors.push(Descriptor {
                    tile,
                    id,
                    address,
                    dims,
                    iteration,
                    acquire,
                    release,
                    next,
                });
                id
            }
        };
        let (offset, repeats) = (Affine::constant(offset.cast_signed()), transfer.repeats);
        self.launch.commands.push(ProcessorCommand::Push(Push {
            channel,
            descriptor: id,
            offset,
            repeats,
            token,
        }));
    }

    /// Waits for a token of a channel.
    pub fn wait(&mut self, channel: Channel) {
        self.launch.commands.push(ProcessorCommand::Wait(channel));
    }

    /// Links the accumulators of two neighbours.
    pub fn cascade(&mut self, from: Tile, to: Tile) {
        self.launch.cascades.push(Cascade { from, to });
    }
}

impl Fifo {
    /// Waits for a full buffer.
    pub fn acquire_full(&self) -> CoreInstruction {
        CoreInstruction::Acquire(LockChange { lock: self.full, value: 1 })
    }

    /// Releases a buffer that the core has emptied.
    pub fn release_empty(&self) -> CoreInstruction {
        CoreInstruction::Release(LockChange { lock: self.empty, value: 1 })
    }

    /// Waits for an empty buffer.
    pub fn acquire_empty(&self) -> CoreInstruction {
        CoreInstruction::Acquire(LockChange { lock: self.empty, value: 1 })
    }

    /// Releases a buffer that the core has filled.
    pub fn release_full(&self) -> CoreInstruction {
        CoreInstruction::Release(LockChange { lock: self.full, value: 1 })
    }

    /// The buffer that the current iteration of the loop at `depth` uses.
    pub fn slot(&self, depth: u8) -> CallOperand {
        let turn = if self.slots.len() > 1 { Affine::default().plus(depth, 1) } else { Affine::default() };
        CallOperand { slots: self.slots.clone(), slot: turn, offset: Affine::default() }
    }

    /// The tile whose memory holds the buffers.
    pub fn tile(&self) -> Tile {
        self.tile
    }
}

/// A loop.
pub(super) fn repeat(count: u64, body: Vec<CoreInstruction>) -> CoreInstruction {
    CoreInstruction::Loop {
        count: u32::try_from(count).expect("`work` and `calls` have limited the iterations"),
        body,
    }
}

/// A call with whole numbers; a float parameter becomes 1.
pub(super) fn call(name: &str, operands: Vec<CallOperand>, numbers: &[u64]) -> CoreInstruction {
    let params = entry(name).expect("the designs name entries of the kernel table").params;
    assert_eq!(params.len(), numbers.len(), "{name}: wrong number of parameters");
    let number = |(param, &number): (&Param, &u64)| Parameter {
        name: param.name.to_owned(),
        value: match param.kind {
            ParamKind::Real => ParameterValue::Float(1.0),
            _ => ParameterValue::Int(Affine::constant(number as i64)),
        },
    };
    let parameters = params.iter().zip(numbers).map(number).collect();
    CoreInstruction::Call(CoreCall { entry: name.to_owned(), operands, parameters })
}

/// A program of these launches, each with its own arguments.
pub(super) fn program(name: &str, target: &str, designs: Vec<Design>) -> Schedule {
    let (mut launches, mut arguments) = (Vec::new(), Vec::new());
    for design in designs {
        let base = arguments.len() as u32;
        let (mut launch, sizes) = design.finish();
        for descriptor in &mut launch.descriptors {
            if let DmaAddress::Argument(argument, _) = &mut descriptor.address {
                *argument += base;
            }
        }
        for bytes in sizes {
            let name = format!("{}.{}", launch.name, arguments.len());
            arguments.push(Argument { name, role: ArgumentRole::Intermediate, bytes });
        }
        launches.push(launch);
    }
    Schedule { name: name.to_owned(), target: target.to_owned(), arguments, launches }
}

/// A channel of a shim that sends data from DRAM into the array.
pub(super) const fn from_dram(column: u8, number: u8) -> Channel {
    Tile::new(column, 0).channel(Direction::Mm2s, number)
}

/// A channel of a shim that writes data from the array to DRAM.
pub(super) const fn to_dram(column: u8, number: u8) -> Channel {
    Tile::new(column, 0).channel(Direction::S2mm, number)
}
