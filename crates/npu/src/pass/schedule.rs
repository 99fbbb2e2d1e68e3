//! Pass 5, scheduling: descriptors, locks, core programs, and the commands that
//! feed the shim channels.
//!
//! Each ring of buffers has two locks: `free` counts the empty slots and `full` the
//! filled ones. A writer acquires `free` and releases `full`; a reader does the
//! reverse.

use std::collections::BTreeMap;

use girih_tensor::{Error, Result};

use super::feed::{ShimFeed, commands};
use super::transfer::{SplitTransfer, descriptors};
use super::unfit::Unfit;
use crate::form::placed::PlacedLaunch;
use crate::form::routed::{Routed, RoutedCircuit, RoutedLaunch};
use crate::form::schedule::check::calls::program_bytes;
use crate::form::schedule::{
    Affine, Buffer, BufferId, CallOperand, Cascade, Channel, Core, CoreCall, CoreInstruction, Descriptor,
    Dim, DmaAddress, Launch, LockChange, LockId, Parameter, ParameterValue, Schedule, Start, Tile, TileKind,
    TileLock,
};
use crate::form::tiled::{
    COLUMN_TERM, Circuit, Flow, Item, L2Staging, ROW_TERM, Stream, TiledOperand, chunks_of,
};
use crate::target::{DmaSpec, Target};

/// The maximum number of tasks of one circuit, which bounds the command list. Attention of 16 query
/// heads of 256 needs a task for each step of keys: 16,000 for 2048 rows at 4096 positions.
const MAX_PUSHES: u64 = 1 << 16;

/// Schedules every launch.
///
/// # Errors
/// An [`Unfit`] when descriptors or locks run out.
pub fn schedule(routed: &Routed, target: &Target) -> Result<Schedule> {
    let max = target.shim.max_argument_bytes;
    if let Some(large) = routed.arguments.iter().find(|argument| argument.bytes > max) {
        let (group, resource) = (routed.name.clone(), format!("bytes of {}", large.name));
        return Err(Unfit { pass: "schedule", group, resource, need: large.bytes, have: max }.into());
    }
    let mut launches = Vec::new();
    for launch in &routed.launches {
        launches.push(LaunchBuilder::new(&routed.name, launch, target).build()?);
    }
    let (name, arguments) = (routed.name.clone(), routed.arguments.clone());
    Ok(Schedule { name, target: target.name.clone(), arguments, launches })
}

/// The two locks of a ring of buffers.
#[derive(Clone, Copy)]
struct LockPair {
    free: LockId,
    full: LockId,
}

impl LockPair {
    /// Returns what a writer acquires and releases.
    fn writer(self) -> (LockChange, LockChange) {
        (LockChange { lock: self.free, value: 1 }, LockChange { lock: self.full, value: 1 })
    }

    /// Returns what a reader acquires and releases.
    fn reader(self) -> (LockChange, LockChange) {
        let (free, full) = self.writer();
        (full, free)
    }
}

/// The slots of a ring of buffers, and its locks.
#[derive(Clone)]
struct BufferRing {
    slots: Vec<BufferId>,
    locks: LockPair,
}

/// The rings and slots that a channel of a memory tile serves in turn.
type Turns<'r> = Vec<(&'r BufferRing, usize)>;

/// A launch being scheduled.
struct LaunchBuilder<'a> {
    group: String,
    from: &'a RoutedLaunch,
    target: &'a Target,
    launch: Launch,
    /// The rings of streams and the buffers of locals, by core and name.
    rings: BTreeMap<(Tile, String), BufferRing>,
    /// The number of used descriptors, by tile and half (see [`LaunchBuilder::descriptor_id`]).
    used: BTreeMap<(Tile, bool), u8>,
    locks_used: BTreeMap<Tile, u8>,
}

impl<'a> LaunchBuilder<'a> {
    fn new(program: &str, from: &'a RoutedLaunch, target: &'a Target) -> LaunchBuilder<'a> {
        let name = from.placed.tiled.name.clone();
        LaunchBuilder {
            group: format!("{program}: {name}"),
            from,
            target,
            launch: Launch { name, resident: from.placed.tiled.resident.is_some(), ..Launch::default() },
            rings: BTreeMap::new(),
            used: BTreeMap::new(),
            locks_used: BTreeMap::new(),
        }
    }

    fn placed(&self) -> &'a PlacedLaunch {
        &self.from.placed
    }

    fn build(mut self) -> Result<Launch> {
        self.core_memory()?;
        let mut feeds = Vec::new();
        for routed in &self.from.circuits {
            let stream = self.stream(&routed.stream)?;
            self.core_channels(routed, stream)?;
            if !routed.arrive.is_empty() {
                self.memory_channels(routed, stream)?;
            }
            self.launch.routes.extend(routed.routes(stream.flow));
            feeds.push(self.feed(routed, stream)?);
        }
        self.cores()?;
        self.launch.commands = commands(feeds, self.launch.resident);
        Ok(self.launch)
    }

    fn stream(&self, name: &str) -> Result<&'a Stream> {
        let found = self.placed().tiled.streams.iter().find(|stream| stream.name == name);
        found.ok_or_else(|| Error::new(format!("{}: a circuit has the unknown stream '{name}'", self.group)))
    }

    /// Adds a lock of a tile.
    fn lock(&mut self, tile: Tile, initial: u8) -> Result<LockId> {
        let dma = self.dma(tile);
        let next = self.locks_used.entry(tile).or_default();
        if u32::from(initial) > dma.max_lock {
            let resource = format!("units of a lock in tile {tile}");
            return Err(unfit(&self.group, resource, u32::from(initial), dma.max_lock));
        }
        if u32::from(*next) >= dma.locks {
            return Err(unfit(&self.group, format!("locks in tile {tile}"), u32::from(*next) + 1, dma.locks));
        }
        self.launch.locks.push(TileLock { tile, id: *next, initial });
        *next += 1;
        Ok(LockId(self.launch.locks.len() as u32 - 1))
    }

    fn pair(&mut self, tile: Tile, depth: u8) -> Result<LockPair> {
        Ok(LockPair { free: self.lock(tile, depth)?, full: self.lock(tile, 0)? })
    }

    fn dma(&self, tile: Tile) -> &'a DmaSpec {
        match tile.kind() {
            TileKind::Shim => &self.target.shim.dma,
            TileKind::Memory => &self.target.memory.dma,
            TileKind::Compute => &self.target.compute.dma,
        }
    }

    /// Assigns a descriptor number of a channel's tile. In memory tiles, even
    /// channels can use the first half of the descriptors only, odd channels the
    /// second (mlir-aie AIETargetModel.h, isBdChannelAccessible).
    fn descriptor_id(&mut self, channel: Channel) -> Result<u8> {
        let tile = channel.tile;
        let all = self.dma(tile).descriptors;
        let halves = tile.kind() == TileKind::Memory;
        let odd = halves && channel.number % 2 == 1;
        let (first, have) = if halves { (if odd { all / 2 } else { 0 }, all / 2) } else { (0, all) };
        let next = self.used.entry((tile, odd)).or_default();
        if u32::from(*next) >= have {
            return Err(unfit(
                &self.group,
                format!("descriptors in tile {tile}"),
                u32::from(*next) + 1,
                have,
            ));
        }
        *next += 1;
        Ok(first as u8 + *next - 1)
    }

    fn buffer(&mut self, name: String, tile: Tile, address: u32, bytes: u32) -> BufferId {
        self.launch.buffers.push(Buffer { name, tile, address, bytes });
        BufferId(self.launch.buffers.len() as u32 - 1)
    }

    /// Adds the buffers of the cores, with two locks for each ring of a stream.
    fn core_memory(&mut self) -> Result<()> {
        for placed in &self.placed().l1 {
            let stream = self.placed().tiled.streams.iter().find(|stream| stream.name == placed.name);
            let name = if stream.is_some() {
                format!("{}.{}", placed.name, placed.slot)
            } else {
                placed.name.clone()
            };
            let buffer = self.buffer(name, placed.tile, placed.address, placed.bytes);
            let key = (placed.tile, placed.name.clone());
            if let Some(ring) = self.rings.get_mut(&key) {
                ring.slots.push(buffer);
                continue;
            }
            let unlocked = LockPair { free: LockId(0), full: LockId(0) };
            let locks = match stream {
                Some(stream) => self.pair(placed.tile, stream.depth)?,
                None => unlocked,
            };
            self.rings.insert(key, BufferRing { slots: vec![buffer], locks });
        }
        Ok(())
    }

    fn ring(&self, tile: Tile, name: &str) -> Result<BufferRing> {
        let found = self.rings.get(&(tile, name.to_owned()));
        found
            .cloned()
            .ok_or_else(|| Error::new(format!("{}: '{name}' has no buffer in tile {tile}", self.group)))
    }

    /// Adds a cyclic chain of descriptors on a channel.
    fn chain(&mut self, channel: Channel, links: Vec<ChainLink>) -> Result<()> {
        self.chain_after(channel, 0, links)
    }

    /// Adds a chain whose first `once` links run only once, before the cycle.
    fn chain_after(&mut self, channel: Channel, once: usize, links: Vec<ChainLink>) -> Result<()> {
        let ids: Vec<u8> = links.iter().map(|_| self.descriptor_id(channel)).collect::<Result<_>>()?;
        for (index, link) in links.into_iter().enumerate() {
            let next = Some(ids.get(index + 1).copied().unwrap_or(ids[once]));
            let (acquire, release) = link.locks;
            let address = DmaAddress::Buffer(link.buffer, link.offset);
            let (tile, id) = (channel.tile, ids[index]);
            let descriptor =
                Descriptor { tile, id, address, dims: link.dims, iteration: None, acquire, release, next };
            self.launch.descriptors.push(descriptor);
        }
        self.launch.starts.push(Start { channel, descriptor: ids[0], repeats: 1 });
        Ok(())
    }

    /// Adds the chains of a circuit's channels in cores.
    fn core_channels(&mut self, routed: &RoutedCircuit, stream: &Stream) -> Result<()> {
        for &channel in &routed.cores {
            let ring = self.ring(channel.tile, &stream.name)?;
            let locks = if stream.flow == Flow::In { ring.locks.writer() } else { ring.locks.reader() };
            let run = [Dim { size: stream.chunk_words(), stride: 1 }];
            let mut links = Vec::new();
            for ahead in self.ahead(stream) {
                let first = self.ring(channel.tile, &ahead.name)?;
                let run = [Dim { size: ahead.chunk_words(), stride: 1 }];
                let transfer = BufferTransfer { buffer: first.slots[0], offset: 0, dims: &run };
                links.extend(self.links(channel.tile, &ahead.name, transfer, both(first.locks.writer()))?);
            }
            let once = links.len();
            for &buffer in &ring.slots {
                let transfer = BufferTransfer { buffer, offset: 0, dims: &run };
                links.extend(self.links(channel.tile, &stream.name, transfer, both(locks))?);
            }
            self.chain_after(channel, once, links)?;
        }
        Ok(())
    }

    /// Returns the streams whose only chunks are sent over another's channels.
    fn ahead(&self, stream: &Stream) -> Vec<&'a Stream> {
        let streams = self.placed().tiled.streams.iter();
        streams.filter(|other| other.ahead_of.as_deref() == Some(&stream.name)).collect()
    }

    /// Adds the two locks of a ring in L2. If a transfer is sent several times, the
    /// locks count passes, and the writer waits until all have been sent.
    fn l2_locks(&mut self, tile: Tile, stream: &Stream, staging: &L2Staging) -> Result<LockPair> {
        if !staging.repeats() {
            return self.pair(tile, staging.depth);
        }
        let max = self.dma(tile).max_lock;
        let passes = staging.passes.saturating_mul(staging.depth.into());
        match u8::try_from(passes).ok().filter(|_| passes <= max) {
            Some(passes) => self.pair(tile, passes),
            None => {
                let resource = format!("passes of the transfers of {} in L2", stream.name);
                Err(unfit(&self.group, resource, passes, max))
            }
        }
    }

    /// Adds the chains of a circuit's channels in a memory tile.
    fn memory_channels(&mut self, routed: &RoutedCircuit, stream: &Stream) -> Result<()> {
        let staging = stream.l2.as_ref();
        let staging = staging
            .ok_or_else(|| Error::new(format!("{}: '{}' is not staged in L2", self.group, stream.name)))?;
        let circuit = routed.circuit;
        let placed = self
            .placed()
            .l2
            .iter()
            .filter(|buffer| buffer.stream == stream.name && buffer.circuit == circuit);
        let mut rings: BTreeMap<u32, BufferRing> = BTreeMap::new();
        for shared in placed {
            let name = format!("{}.{}.{}.{}", stream.name, circuit, shared.part, shared.slot);
            let buffer = self.buffer(name, shared.tile, shared.address, shared.bytes);
            if let Some(ring) = rings.get_mut(&shared.part) {
                ring.slots.push(buffer);
            } else {
                let locks = self.l2_locks(shared.tile, stream, staging)?;
                rings.insert(shared.part, BufferRing { slots: vec![buffer], locks });
            }
        }
        let words = stream.transfer_words();
        let arriving =
            if staging.into.is_empty() { vec![Dim { size: words, stride: 1 }] } else { staging.into.clone() };
        let rings: Vec<BufferRing> = rings.into_values().collect();
        for (channel, turns) in self.turns(stream, &routed.arrive, &rings)? {
            let mut links = Vec::new();
            for (ring, slot) in turns {
                let locks = both(scaled(ring.locks.writer(), staging.passes));
                let transfer = BufferTransfer { buffer: ring.slots[slot], offset: 0, dims: &arriving };
                links.extend(self.links(channel.tile, &stream.name, transfer, locks)?);
            }
            self.chain(channel, links)?;
        }
        // The first slice of a transfer acquires its buffer, the last slice releases it.
        for (channel, turns) in self.turns(stream, &routed.leave, &rings)? {
            let mut links = Vec::new();
            for (ring, slot) in turns {
                let (acquire, release) = ring.locks.reader();
                let pieces = if staging.repeats() { 1 } else { staging.slices };
                // A single buffer is sent again by the cycle of its only descriptor.
                let passes = if staging.depth > 1 { staging.passes } else { 1 };
                for slice in (0..passes).flat_map(|_| 0..pieces) {
                    let (buffer, offset) = (ring.slots[slot], slice * staging.slice_words * 4);
                    let transfer = BufferTransfer { buffer, offset, dims: &staging.dims };
                    let locks = ((slice == 0).then_some(acquire), (slice + 1 == pieces).then_some(release));
                    links.extend(self.links(channel.tile, &stream.name, transfer, locks)?);
                }
            }
            self.chain(channel, links)?;
        }
        Ok(())
    }

    /// Returns the ring and the slot of each turn of channels in a memory tile: a channel for each
    /// ring, or one for all of them in turn.
    fn turns<'r>(
        &self,
        stream: &Stream,
        channels: &[Channel],
        rings: &'r [BufferRing],
    ) -> Result<Vec<(Channel, Turns<'r>)>> {
        let slots = |rings: &'r [BufferRing]| {
            let depth = rings.first().map_or(0, |ring| ring.slots.len());
            (0..depth).flat_map(|slot| rings.iter().map(move |ring| (ring, slot))).collect()
        };
        match channels {
            [channel] => Ok(vec![(*channel, slots(rings))]),
            _ if channels.len() == rings.len() => Ok(channels
                .iter()
                .zip(rings.chunks(1))
                .map(|(&channel, own)| (channel, slots(own)))
                .collect()),
            _ => Err(Error::new(format!(
                "{}: '{}' has {} channels in a memory tile for {} rings",
                self.group,
                stream.name,
                channels.len(),
                rings.len()
            ))),
        }
    }

    /// Returns the descriptors of a transfer of a stream. The first one acquires, the
    /// last one releases.
    fn links(
        &self,
        tile: Tile,
        stream: &str,
        transfer: BufferTransfer<'_>,
        (acquire, release): LinkLocks,
    ) -> Result<Vec<ChainLink>> {
        let BufferTransfer { buffer, offset, dims } = transfer;
        let dma = self.dma(tile);
        let Some(pieces) = descriptors(dims, dma) else {
            let resource = format!("descriptors in tile {tile} for one transfer of {stream}");
            return Err(unfit(&self.group, resource, dma.descriptors + 1, dma.descriptors));
        };
        let last = pieces.len() - 1;
        let link = |(index, (start, dims)): (usize, (u32, Vec<Dim>))| ChainLink {
            buffer,
            offset: offset + start * 4,
            dims,
            locks: (acquire.filter(|_| index == 0), release.filter(|_| index == last)),
        };
        Ok(pieces.into_iter().enumerate().map(link).collect())
    }

    /// Returns the tasks of a circuit's shim channel.
    fn feed(&mut self, routed: &RoutedCircuit, stream: &Stream) -> Result<ShimFeed> {
        let herd = self.placed().tiled.herd;
        let circuits = stream.circuits(herd);
        let circuit = circuits.get(routed.circuit as usize);
        let circuit = circuit.ok_or_else(|| {
            Error::new(format!("{}: '{}' has no circuit {}", self.group, stream.name, routed.circuit))
        })?;
        let mut dims = stream.dims.clone();
        if stream.joins() {
            let joined = Dim { size: circuit.cores.len() as u32, stride: (stream.row_bytes / 4) as u32 };
            dims.insert(usize::from(stream.level), joined);
        }
        let base = stream.base_bytes
            + u64::from(circuit.column) * stream.column_bytes
            + u64::from(circuit.row) * stream.row_bytes;
        let dma = &self.target.shim.dma;
        let sweeps = &self.placed().tiled.sweeps;
        let split = if stream.is_swept() && !sweeps.is_empty() {
            SplitTransfer::swept(&dims, sweeps, dma, MAX_PUSHES)
        } else {
            SplitTransfer::of(&dims, dma)
        };
        let pushes = split.tasks();
        if pushes > MAX_PUSHES {
            let resource = format!("shim tasks for {}", stream.name);
            return Err(Error::from(Unfit {
                pass: "schedule",
                group: self.group.clone(),
                resource,
                need: pushes,
                have: MAX_PUSHES,
            }));
        }
        let ahead = self.ahead(stream).into_iter();
        let ahead = ahead.map(|ahead| self.feed_ahead(routed, circuit, ahead)).collect::<Result<_>>()?;
        let count = pushes.min(u64::from(dma.queue)) as usize;
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = self.descriptor_id(routed.shim)?;
            ids.push(id);
            self.launch.descriptors.push(Descriptor {
                tile: routed.shim.tile,
                id,
                address: DmaAddress::Argument(stream.argument, base),
                dims: split.inner.clone(),
                iteration: split.iteration,
                acquire: None,
                release: None,
                next: None,
            });
        }
        Ok(ShimFeed { channel: routed.shim, ahead, ids, tasks: split.each() })
    }

    /// Adds the descriptor of a chunk that is sent ahead of a circuit's stream.
    fn feed_ahead(&mut self, routed: &RoutedCircuit, circuit: &Circuit, ahead: &Stream) -> Result<u8> {
        let (need, have) = (u64::from(ahead.chunk_words()), self.target.shim.dma.max_words);
        if need > have {
            let (group, resource) = (self.group.clone(), format!("words of a descriptor for {}", ahead.name));
            return Err(Unfit { pass: "schedule", group, resource, need, have }.into());
        }
        let id = self.descriptor_id(routed.shim)?;
        let base = ahead.base_bytes + u64::from(circuit.column) * ahead.column_bytes;
        self.launch.descriptors.push(Descriptor {
            tile: routed.shim.tile,
            id,
            address: DmaAddress::Argument(ahead.argument, base),
            dims: vec![Dim { size: ahead.chunk_words(), stride: 1 }],
            iteration: None,
            acquire: None,
            release: None,
            next: None,
        });
        Ok(id)
    }

    /// Adds the programs of all cores.
    fn cores(&mut self) -> Result<()> {
        let tiled = &self.placed().tiled;
        for column in 0..tiled.herd.columns {
            for row in 0..tiled.herd.rows {
                let tile = self.placed().tile((column, row));
                let body = core_body(&tiled.body, column, row);
                let program = self.instructions(tile, &body, &mut Vec::new())?;
                let (need, have) = (program_bytes(&program, self.target), self.target.compute.program_bytes);
                if need > f64::from(have) {
                    let resource = format!("bytes of program memory in tile {tile}");
                    return Err(unfit(&self.group, resource, need as u32, have));
                }
                self.launch.cores.push(Core { tile, program });
                if tiled.cascade && row > 0 {
                    let to = self.placed().tile((column, row - 1));
                    self.launch.cascades.push(Cascade { from: tile, to });
                }
            }
        }
        Ok(())
    }

    /// Returns the instructions of a body within these loops, each given by its body and
    /// the items before it. A stream whose chunk changes with the innermost of these loops
    /// is acquired before its first use in the body and released after its last.
    fn instructions<'b>(
        &self,
        tile: Tile,
        body: &'b [Item],
        loops: &mut Vec<EnclosingLoop<'b>>,
    ) -> Result<Vec<CoreInstruction>> {
        let changing: Vec<&Stream> = self
            .placed()
            .tiled
            .streams
            .iter()
            .filter(|stream| stream.loops() == loops.len() && body.iter().any(|item| item.uses(&stream.name)))
            .collect();
        let mut instructions = Vec::new();
        for (index, item) in body.iter().enumerate() {
            for stream in &changing {
                if body.iter().position(|item| item.uses(&stream.name)) == Some(index) {
                    instructions.push(CoreInstruction::Acquire(self.core_locks(tile, stream)?.0));
                }
            }
            instructions.push(self.instruction(tile, (&body[..index], item), loops)?);
            for stream in &changing {
                if body.iter().rposition(|item| item.uses(&stream.name)) == Some(index) {
                    instructions.push(CoreInstruction::Release(self.core_locks(tile, stream)?.1));
                }
            }
        }
        Ok(instructions)
    }

    /// Returns what a core acquires before it uses a chunk and releases after it.
    fn core_locks(&self, tile: Tile, stream: &Stream) -> Result<(LockChange, LockChange)> {
        let locks = self.ring(tile, &stream.name)?.locks;
        Ok(if stream.flow == Flow::In { locks.reader() } else { locks.writer() })
    }

    fn instruction<'b>(
        &self,
        tile: Tile,
        (before, item): (&'b [Item], &'b Item),
        loops: &mut Vec<EnclosingLoop<'b>>,
    ) -> Result<CoreInstruction> {
        Ok(match item {
            Item::Loop { count, body } => {
                loops.push(EnclosingLoop { before, body });
                let body = self.instructions(tile, body, loops)?;
                loops.pop();
                CoreInstruction::Loop { count: *count, body }
            }
            Item::On { .. } => return Err(Error::new("items of some rows must be resolved before")),
            Item::Call { entry, operands, parameters } => {
                let operands = operands.iter().map(|source| self.operand(tile, source, loops));
                let operands = operands.collect::<Result<_>>()?;
                CoreInstruction::Call(CoreCall {
                    entry: entry.clone(),
                    operands,
                    parameters: parameters.clone(),
                })
            }
        })
    }

    /// Returns an operand; the slot of a stream is the number of chunks before it, modulo
    /// the number of slots.
    fn operand(&self, tile: Tile, source: &TiledOperand, loops: &[EnclosingLoop<'_>]) -> Result<CallOperand> {
        let slots = self.ring(tile, &source.name)?.slots;
        let stream = self.placed().tiled.streams.iter().find(|stream| stream.name == source.name);
        let level = stream.map_or(0, Stream::loops);
        let chunks = |items: &[Item], depth| {
            (chunks_of(items, depth, &source.name, level) % slots.len() as u64).cast_signed()
        };
        let mut slot = Affine::default();
        for (depth, around) in loops.iter().enumerate().take(level).rev() {
            slot = slot.plus(depth as u8, chunks(around.body, depth + 1) % slots.len() as i64);
            slot.constant = (slot.constant + chunks(around.before, depth)) % slots.len() as i64;
        }
        Ok(CallOperand { slots, slot, offset: source.offset.clone() })
    }
}

/// A loop around an item: its body, and the items before it in the body of the next loop.
struct EnclosingLoop<'a> {
    before: &'a [Item],
    body: &'a [Item],
}

/// Returns the body of one core: without items of other rows, and with the core's
/// column and row as constants.
fn core_body(body: &[Item], column: u8, row: u8) -> Vec<Item> {
    let mut own = Vec::new();
    for item in body {
        match item {
            Item::Loop { count, body } => {
                own.push(Item::Loop { count: *count, body: core_body(body, column, row) })
            }
            Item::On { first, last, body } if (*first..=*last).contains(&row) => {
                own.extend(core_body(body, column, row))
            }
            Item::On { .. } => {}
            Item::Call { entry, operands, parameters } => {
                let numbers = parameters.iter().map(|parameter| match &parameter.value {
                    ParameterValue::Int(value) => {
                        let value = ParameterValue::Int(at_core(value, column, row));
                        Parameter { name: parameter.name.clone(), value }
                    }
                    ParameterValue::Float(_) => parameter.clone(),
                });
                let operands = operands.iter().map(|source| {
                    let offset = at_core(&source.offset, column, row);
                    TiledOperand { name: source.name.clone(), offset }
                });
                let (entry, operands) = (entry.clone(), operands.collect());
                own.push(Item::Call { entry, operands, parameters: numbers.collect() });
            }
        }
    }
    own
}

/// Replaces the terms of the herd's columns and rows by constants.
fn at_core(value: &Affine, column: u8, row: u8) -> Affine {
    let mut own = Affine::constant(value.constant);
    for term in &value.terms {
        match term.depth {
            COLUMN_TERM => own.constant += term.factor * i64::from(column),
            ROW_TERM => own.constant += term.factor * i64::from(row),
            depth => own = own.plus(depth, term.factor),
        }
    }
    own
}

/// One descriptor of a chain.
struct ChainLink {
    buffer: BufferId,
    /// The byte offset in the buffer.
    offset: u32,
    dims: Vec<Dim>,
    locks: LinkLocks,
}

/// What a link acquires and what it releases.
type LinkLocks = (Option<LockChange>, Option<LockChange>);

/// Words of a buffer that are moved in one order.
struct BufferTransfer<'a> {
    buffer: BufferId,
    /// The byte offset in the buffer.
    offset: u32,
    dims: &'a [Dim],
}

/// Returns what the only link of a transfer acquires and releases.
fn both((acquire, release): (LockChange, LockChange)) -> LinkLocks {
    (Some(acquire), Some(release))
}

/// Scales the changes of the side that acquires and releases once for `times`
/// changes of the other side.
fn scaled((acquire, release): (LockChange, LockChange), times: u32) -> (LockChange, LockChange) {
    let of = |change: LockChange| LockChange { value: u8::try_from(times).unwrap_or(u8::MAX), ..change };
    if times > 1 { (of(acquire), of(release)) } else { (acquire, release) }
}

fn unfit(group: &str, resource: String, need: u32, have: u32) -> Error {
    Unfit {
        pass: "schedule",
        group: group.to_owned(),
        resource,
        need: u64::from(need),
        have: u64::from(have),
    }
    .into()
}
