//! Builds launches by hand, as the public builders of measured kernels lay them
//! out: fifos of buffers that take turns between channels and cores.

use std::collections::HashMap;

use girih_tensor::{Error, Result};

use crate::form::schedule::{
    Affine, Argument, ArgumentRole, Buffer, BufferId, CallOperand, Channel, Core, CoreCall, CoreInstruction,
    Descriptor, Dim, Direction, DmaAddress, Hop, Launch, LockChange, LockId, Parameter, ParameterValue,
    ProcessorCommand, Push, Route, Schedule, Start, Tile, TileLock,
};
use crate::kernel::{ParamKind, entry};

/// The most bytes of a buffer: no tile of a measured array has as many.
const MOST_BUFFER: u64 = 1 << 20;

/// The most bytes of an argument; the published ones have at most 128 MiB.
const MOST_ARGUMENT: u64 = 1 << 32;

/// The most launch points, each of which has commands of its own; the published
/// products have at most some hundred.
const MOST_POINTS: u64 = 1 << 12;

/// The most calls of one core; the published launches have at most some ten
/// thousand.
const MOST_CALLS: u64 = 1 << 20;

/// Refuses sizes that tiles do not divide.
pub(super) fn divides(what: &str, whole: u64, part: u64) -> Result<()> {
    if whole > 0 && whole.checked_rem(part) == Some(0) {
        return Ok(());
    }
    Err(Error::new(format!(
        "{what} is {whole}, and must be a multiple of {part} for its tiles: correct the row"
    )))
}

/// Refuses what a tile cannot hold, or does not consist of words of four bytes.
pub(super) fn buffer(what: &str, bytes: u64) -> Result<()> {
    divides(&format!("bytes of {what}"), bytes, 4)?;
    within(&format!("bytes of {what}"), bytes, MOST_BUFFER)
}

/// Refuses arguments whose words are too many to count.
pub(super) fn argument(what: &str, bytes: u64) -> Result<()> {
    within(&format!("bytes of {what}"), bytes, MOST_ARGUMENT)
}

/// Refuses more launch points, and calls of a core at each, than are simulated.
pub(super) fn work(points: u64, calls: u64) -> Result<()> {
    within("launch points", points, MOST_POINTS)?;
    self::calls(points * calls.min(MOST_CALLS + 1))
}

/// Refuses more calls of a core than are simulated.
pub(super) fn calls(calls: u64) -> Result<()> {
    within("calls of a core", calls, MOST_CALLS)
}

fn within(what: &str, found: u64, most: u64) -> Result<()> {
    if found <= most {
        return Ok(());
    }
    Err(Error::new(format!("{found} {what} are over {most}, the most that is simulated: correct the row")))
}

/// A launch under construction.
#[derive(Default)]
pub(super) struct Design {
    launch: Launch,
    /// The next free byte, lock and descriptor of each tile.
    free: HashMap<Tile, (u32, u8, u8)>,
    /// Largest byte of each argument that is touched.
    arguments: Vec<u64>,
}

/// Buffers of one tile that take turns, with the locks that pass them on.
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
pub(super) struct Transfer {
    pub argument: u32,
    /// Extents and strides in words, outermost first.
    pub dims: Vec<(u64, u64)>,
    pub repeats: u32,
}

impl Transfer {
    /// Words one after another.
    pub fn linear(argument: u32, bytes: u64) -> Transfer {
        Transfer { argument, dims: vec![(bytes / 4, 1)], repeats: 1 }
    }

    /// So many runs of contiguous bytes, each as far from the last.
    pub fn runs(argument: u32, runs: u64, bytes: u64, stride: u64) -> Transfer {
        Transfer { argument, dims: vec![(runs, stride / 4), (bytes / 4, 1)], repeats: 1 }
    }
}

impl Design {
    /// A launch of this name with so many arguments.
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

    /// Buffers that take turns, all empty at first.
    pub fn fifo(&mut self, tile: Tile, name: &str, bytes: u64, slots: usize) -> Fifo {
        let bytes = u32::try_from(bytes).expect("a published buffer fits a tile");
        let slots =
            (0..slots).map(|slot| self.buffer(tile, &format!("{name}.{slot}"), bytes)).collect::<Vec<_>>();
        let empty = self.lock(tile, slots.len() as u8);
        Fifo { tile, bytes, slots, empty, full: self.lock(tile, 0) }
    }

    /// A buffer that is not passed on.
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

    /// A channel fills a fifo, for as long as words come.
    pub fn fill(&mut self, channel: Channel, fifo: &Fifo) {
        self.ring(channel, &[fifo], |fifo| (fifo.empty, fifo.full));
    }

    /// A channel empties a fifo.
    pub fn drain(&mut self, channel: Channel, fifo: &Fifo) {
        self.ring(channel, &[fifo], |fifo| (fifo.full, fifo.empty));
    }

    /// A channel empties one fifo after another, a buffer of each in turn.
    pub fn drain_all(&mut self, channel: Channel, fifos: &[&Fifo]) {
        self.ring(channel, fifos, |fifo| (fifo.full, fifo.empty));
    }

    fn ring(&mut self, channel: Channel, fifos: &[&Fifo], locks: fn(&Fifo) -> (LockId, LockId)) {
        let tile = channel.tile;
        let many: usize = fifos.iter().map(|fifo| fifo.slots.len()).sum();
        let first = self.free(tile).2;
        self.free(tile).2 += many as u8;
        let rounds = fifos[0].slots.len();
        let turns = (0..rounds).flat_map(|slot| fifos.iter().map(move |fifo| (slot, *fifo)));
        for ((slot, fifo), at) in turns.zip(0u8..) {
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
                next: Some(if usize::from(at) + 1 == many { first } else { first + at + 1 }),
            });
        }
        self.launch.starts.push(Start { channel, descriptor: first, repeats: 1 });
    }

    /// A circuit; each switch on the way counts.
    pub fn route(&mut self, from: Channel, to: &[Channel]) {
        let hops = |to: &Channel| {
            let (a, b) = (from.tile, to.tile);
            Hop { channel: *to, hops: a.column.abs_diff(b.column) + a.row.abs_diff(b.row) + 1 }
        };
        self.launch.routes.push(Route { from, to: to.iter().map(hops).collect() });
    }

    /// The program of a core.
    pub fn core(&mut self, tile: Tile, program: Vec<CoreInstruction>) {
        self.launch.cores.push(Core { tile, program });
    }

    /// Tells a channel of a shim what to move. With a token its end can be
    /// waited for.
    pub fn push(&mut self, channel: Channel, transfer: &Transfer, token: bool) {
        let reach: u64 = transfer.dims.iter().map(|&(size, stride)| (size - 1) * stride).sum::<u64>() + 1;
        let bytes = &mut self.arguments[transfer.argument as usize];
        *bytes = (*bytes).max(reach * 4);
        let place = DmaAddress::Argument(transfer.argument, 0);
        let dim = |&(size, stride): &(u64, u64)| Dim { size: size as u32, stride: stride as u32 };
        let dims: Vec<Dim> = transfer.dims.iter().map(dim).collect();
        let same = |one: &&Descriptor| one.tile == channel.tile && one.address == place && one.dims == dims;
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
                    address: place,
                    dims,
                    iteration,
                    acquire,
                    release,
                    next,
                });
                id
            }
        };
        let (offset, repeats) = (Affine::default(), transfer.repeats);
        self.launch.commands.push(ProcessorCommand::Push(Push {
            channel,
            descriptor: id,
            offset,
            repeats,
            token,
        }));
    }

    /// Waits for a token.
    pub fn wait(&mut self, channel: Channel) {
        self.launch.commands.push(ProcessorCommand::Wait(channel));
    }

    /// Links the accumulators of two neighbours.
    pub fn cascade(&mut self, from: Tile, to: Tile) {
        self.launch.cascades.push(crate::form::schedule::Cascade { from, to });
    }
}

impl Fifo {
    /// Takes a full buffer.
    pub fn take(&self) -> CoreInstruction {
        CoreInstruction::Acquire(LockChange { lock: self.full, value: 1 })
    }

    /// Gives an emptied buffer back.
    pub fn give_back(&self) -> CoreInstruction {
        CoreInstruction::Release(LockChange { lock: self.empty, value: 1 })
    }

    /// Takes an empty buffer.
    pub fn reserve(&self) -> CoreInstruction {
        CoreInstruction::Acquire(LockChange { lock: self.empty, value: 1 })
    }

    /// Passes a filled buffer on.
    pub fn pass_on(&self) -> CoreInstruction {
        CoreInstruction::Release(LockChange { lock: self.full, value: 1 })
    }

    /// The buffer whose turn it is in the loop at `depth`.
    pub fn turn(&self, depth: u8) -> CallOperand {
        let turn = if self.slots.len() > 1 { Affine::default().plus(depth, 1) } else { Affine::default() };
        CallOperand { slots: self.slots.clone(), slot: turn, offset: Affine::default() }
    }

    /// The tile whose memory it lies in.
    pub fn tile(&self) -> Tile {
        self.tile
    }
}

/// A loop.
pub(super) fn repeat(count: u64, body: Vec<CoreInstruction>) -> CoreInstruction {
    CoreInstruction::Loop { count: u32::try_from(count).expect("a published loop is not that long"), body }
}

/// A call with whole numbers; floats are given as 1.
pub(super) fn call(name: &str, operands: Vec<CallOperand>, numbers: &[u64]) -> CoreInstruction {
    let params = entry(name).expect("a published kernel is an entry").params;
    assert_eq!(params.len(), numbers.len(), "{name} has other numbers");
    let number = |(param, &number): (&crate::kernel::Param, &u64)| Parameter {
        name: param.name.to_owned(),
        value: match param.kind {
            ParamKind::Real => ParameterValue::Float(1.0),
            _ => ParameterValue::Int(Affine::constant(number as i64)),
        },
    };
    let parameters = params.iter().zip(numbers).map(number).collect();
    CoreInstruction::Call(CoreCall { entry: name.to_owned(), operands, parameters })
}

/// A program of these launches, each with arguments of its own.
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

/// A channel from a shim into the array.
pub(super) const fn from_dram(column: u8, number: u8) -> Channel {
    Tile::new(column, 0).channel(Direction::Mm2s, number)
}

/// A channel from the array to DRAM.
pub(super) const fn to_dram(column: u8, number: u8) -> Channel {
    Tile::new(column, 0).channel(Direction::S2mm, number)
}
