//! Pass 5, from ways to a schedule: descriptors, locks, core programs, and the
//! commands that feed the shim channels.
//!
//! Each chunk buffer has two locks: `free` counts the slots that may be filled
//! and `full` those that may be read. Whoever fills a slot takes from `free`
//! and adds to `full`; whoever reads it does the reverse.

use std::collections::BTreeMap;

use girih_tensor::{Error, Result};

use super::Unfit;
use crate::Target;
use crate::form::placed::PlacedLaunch;
use crate::form::routed::{Routed, RoutedLaunch, Way};
use crate::form::schedule::{
    Affine, Buffer, BufferId, Call, Cascade, Channel, Command, Core, Descriptor, Dim, Direction, Instruction,
    Launch, Lock, LockId, Number, Operand, Parameter, Place, Push, Schedule, Start, Step, Tile, TileKind,
};
use crate::form::tiled::{COLUMN, Flow, Item, ROW, Source, Stream, Through};

/// The most tasks that the commands of one circuit may be.
const MOST_PUSHES: u64 = 4096;

/// Schedules every launch.
///
/// # Errors
/// An [`Unfit`] when descriptors or locks run out.
pub fn schedule(routed: &Routed, target: &Target) -> Result<Schedule> {
    let mut launches = Vec::new();
    for launch in &routed.launches {
        launches.push(Builder::new(&routed.name, launch, target).build()?);
    }
    let (name, arguments) = (routed.name.clone(), routed.arguments.clone());
    Ok(Schedule { name, target: target.name.clone(), arguments, launches })
}

/// The two locks of a chunk buffer.
#[derive(Clone, Copy)]
struct Pair {
    free: LockId,
    full: LockId,
}

impl Pair {
    /// What a writer of the buffer waits for, and what it says.
    fn writer(self) -> (Step, Step) {
        (Step { lock: self.free, value: 1 }, Step { lock: self.full, value: 1 })
    }

    /// What a reader of the buffer waits for, and what it says.
    fn reader(self) -> (Step, Step) {
        let (free, full) = self.writer();
        (full, free)
    }
}

/// The slots of one chunk buffer and their locks.
#[derive(Clone)]
struct Ring {
    slots: Vec<BufferId>,
    locks: Pair,
}

/// A launch being scheduled.
struct Builder<'a> {
    group: String,
    from: &'a RoutedLaunch,
    target: &'a Target,
    launch: Launch,
    /// Of each core: the rings of streams and the buffers of locals.
    rings: BTreeMap<(Tile, String), Ring>,
    /// Descriptors in use, by tile and half (see [`Builder::descriptor_id`]).
    used: BTreeMap<(Tile, bool), u8>,
    locks_used: BTreeMap<Tile, u8>,
}

impl<'a> Builder<'a> {
    fn new(program: &str, from: &'a RoutedLaunch, target: &'a Target) -> Builder<'a> {
        let name = from.placed.tiled.name.clone();
        Builder {
            group: format!("{program}: {name}"),
            from,
            target,
            launch: Launch { name, ..Launch::default() },
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
        for way in &self.from.ways {
            let stream = self.stream(&way.stream)?;
            self.core_channels(way, stream)?;
            if !way.arrive.is_empty() {
                self.pass_through(way, stream)?;
            }
            self.launch.routes.extend(way.routes(stream.flow));
            feeds.push(self.feed(way, stream)?);
        }
        self.cores()?;
        self.launch.commands = commands(feeds);
        Ok(self.launch)
    }

    fn stream(&self, name: &str) -> Result<&'a Stream> {
        let found = self.placed().tiled.streams.iter().find(|stream| stream.name == name);
        found.ok_or_else(|| Error::new(format!("{}: a way is of '{name}', which is no stream", self.group)))
    }

    /// A new lock of a tile.
    fn lock(&mut self, tile: Tile, initial: u8) -> Result<LockId> {
        let dma = self.dma(tile);
        let next = self.locks_used.entry(tile).or_default();
        if u32::from(*next) >= dma.locks {
            return Err(unfit(&self.group, format!("locks in tile {tile}"), u32::from(*next) + 1, dma.locks));
        }
        self.launch.locks.push(Lock { tile, id: *next, initial });
        *next += 1;
        Ok(LockId(self.launch.locks.len() as u32 - 1))
    }

    fn pair(&mut self, tile: Tile, depth: u8) -> Result<Pair> {
        Ok(Pair { free: self.lock(tile, depth)?, full: self.lock(tile, 0)? })
    }

    fn dma(&self, tile: Tile) -> &'a crate::target::DmaSpec {
        match tile.kind() {
            TileKind::Shim => &self.target.shim.dma,
            TileKind::Memory => &self.target.memory.dma,
            TileKind::Compute => &self.target.compute.dma,
        }
    }

    /// A new descriptor number of a channel's tile. In memory tiles the even
    /// channels reach the first half of the descriptors only, the odd ones the
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

    /// Buffers of the cores, with two locks for each stream's.
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
            let unlocked = Pair { free: LockId(0), full: LockId(0) };
            let locks = match stream {
                Some(stream) => self.pair(placed.tile, stream.depth)?,
                None => unlocked,
            };
            self.rings.insert(key, Ring { slots: vec![buffer], locks });
        }
        Ok(())
    }

    fn ring(&self, tile: Tile, name: &str) -> Result<Ring> {
        let found = self.rings.get(&(tile, name.to_owned()));
        found
            .cloned()
            .ok_or_else(|| Error::new(format!("{}: '{name}' has no place in tile {tile}", self.group)))
    }

    /// An endless chain of descriptors on a channel.
    fn chain(&mut self, channel: Channel, links: Vec<Link>) -> Result<()> {
        self.chain_after(channel, 0, links)
    }

    /// The same, but the first links, so many, are passed only once.
    fn chain_after(&mut self, channel: Channel, once: usize, links: Vec<Link>) -> Result<()> {
        let ids: Vec<u8> = links.iter().map(|_| self.descriptor_id(channel)).collect::<Result<_>>()?;
        for (index, link) in links.into_iter().enumerate() {
            let next = Some(ids.get(index + 1).copied().unwrap_or(ids[once]));
            let (acquire, release) = link.steps;
            let place = Place::Buffer(link.buffer, link.offset);
            let (tile, id) = (channel.tile, ids[index]);
            let descriptor =
                Descriptor { tile, id, place, dims: link.dims, iteration: None, acquire, release, next };
            self.launch.descriptors.push(descriptor);
        }
        self.launch.starts.push(Start { channel, descriptor: ids[0], repeats: 1 });
        Ok(())
    }

    /// The channels of the cores that a way reaches.
    fn core_channels(&mut self, way: &Way, stream: &Stream) -> Result<()> {
        for &channel in &way.cores {
            let ring = self.ring(channel.tile, &stream.name)?;
            let steps = if stream.flow == Flow::In { ring.locks.writer() } else { ring.locks.reader() };
            let words = stream.chunk_words();
            let mut links = Vec::new();
            if let Some(ahead) = self.ahead(stream) {
                let first = self.ring(channel.tile, &ahead.name)?;
                links.push(Link::linear(first.slots[0], ahead.chunk_words(), first.locks.writer()));
            }
            let once = links.len();
            links.extend(ring.slots.iter().map(|&buffer| Link::linear(buffer, words, steps)));
            self.chain_after(channel, once, links)?;
        }
        Ok(())
    }

    /// The stream whose one chunk comes over another's channels.
    fn ahead(&self, stream: &Stream) -> Option<&'a Stream> {
        let streams = &self.placed().tiled.streams;
        streams.iter().find(|other| other.ahead_of.as_deref() == Some(&stream.name))
    }

    /// The two locks of a stretch in L2. One that leaves several times counts
    /// its passes: the writer waits until all have left.
    fn stretch_locks(&mut self, tile: Tile, stream: &Stream, through: &Through) -> Result<Pair> {
        if !through.repeats() {
            return self.pair(tile, through.depth);
        }
        let most = self.dma(tile).max_lock;
        match u8::try_from(through.passes).ok().filter(|&passes| u32::from(passes) <= most) {
            Some(passes) if through.depth == 1 => self.pair(tile, passes),
            _ => {
                let resource = format!("passes of {} of one stretch", stream.name);
                Err(unfit(&self.group, resource, through.passes, most))
            }
        }
    }

    /// The channels of a memory tile on a way.
    fn pass_through(&mut self, way: &Way, stream: &Stream) -> Result<()> {
        let through = stream.through.as_ref();
        let through =
            through.ok_or_else(|| Error::new(format!("{}: no chunks pass through L2", self.group)))?;
        let circuit = way.circuit;
        let placed = self
            .placed()
            .l2
            .iter()
            .filter(|buffer| buffer.stream == stream.name && buffer.circuit == circuit);
        let mut rings: BTreeMap<u32, Ring> = BTreeMap::new();
        for place in placed {
            let name = format!("{}.{}.{}.{}", stream.name, circuit, place.part, place.slot);
            let buffer = self.buffer(name, place.tile, place.address, place.bytes);
            if let Some(ring) = rings.get_mut(&place.part) {
                ring.slots.push(buffer);
            } else {
                let locks = self.stretch_locks(place.tile, stream, through)?;
                rings.insert(place.part, Ring { slots: vec![buffer], locks });
            }
        }
        let words = stream.stretch_words();
        let arriving =
            if through.into.is_empty() { vec![Dim { size: words, stride: 1 }] } else { through.into.clone() };
        for (ring, &channel) in rings.values().zip(&way.arrive) {
            let steps = each_of(ring.locks.writer(), through.passes);
            let link =
                |&buffer: &BufferId| Link { dims: arriving.clone(), ..Link::linear(buffer, words, steps) };
            self.chain(channel, ring.slots.iter().map(link).collect())?;
        }
        // The first slice of a stretch waits for it, the last one gives it back.
        let mut links = Vec::new();
        for slot in 0..usize::from(through.depth) {
            for ring in rings.values() {
                let (acquire, release) = ring.locks.reader();
                let pieces = if through.repeats() { 1 } else { through.slices };
                links.extend((0..pieces).map(|slice| Link {
                    buffer: ring.slots[slot],
                    offset: slice * through.slice_words * 4,
                    dims: through.dims.clone(),
                    steps: ((slice == 0).then_some(acquire), (slice + 1 == pieces).then_some(release)),
                }));
            }
        }
        match *way.leave {
            [channel] => self.chain(channel, links),
            _ => {
                Err(Error::new(format!("{}: '{}' does not leave L2 by one channel", self.group, stream.name)))
            }
        }
    }

    /// The tasks of a way's shim channel.
    fn feed(&mut self, way: &Way, stream: &Stream) -> Result<Feed> {
        let herd = self.placed().tiled.herd;
        let circuits = stream.circuits(herd);
        let circuit = circuits.get(way.circuit as usize);
        let circuit = circuit.ok_or_else(|| Error::new(format!("{}: a way is of no circuit", self.group)))?;
        let mut dims = stream.dims.clone();
        if stream.joins() {
            let joined = Dim { size: circuit.cores.len() as u32, stride: (stream.row_bytes / 4) as u32 };
            dims.insert(usize::from(stream.level), joined);
        }
        let base = stream.base_bytes
            + u64::from(circuit.column) * stream.column_bytes
            + u64::from(circuit.row) * stream.row_bytes;
        let dma = &self.target.shim.dma;
        let walk =
            Walk::of(&dims, dma.dimensions as usize, dma.max_stride_words, dma.max_words, dma.max_repeat);
        let pushes = walk.pushes();
        if pushes > MOST_PUSHES {
            let resource = format!("shim tasks for {}", stream.name);
            return Err(Error::from(Unfit {
                pass: "schedule",
                group: self.group.clone(),
                resource,
                need: pushes,
                have: MOST_PUSHES,
            }));
        }
        let ahead = self.ahead(stream).map(|ahead| self.feed_ahead(way, ahead)).transpose()?;
        let count = pushes.min(u64::from(dma.queue)) as usize;
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = self.descriptor_id(way.shim)?;
            ids.push(id);
            self.launch.descriptors.push(Descriptor {
                tile: way.shim.tile,
                id,
                place: Place::Argument(stream.argument, base),
                dims: walk.inner.clone(),
                iteration: walk.iteration,
                acquire: None,
                release: None,
                next: None,
            });
        }
        let repeats = walk.iteration.map_or(1, |dim| dim.size);
        Ok(Feed { channel: way.shim, ahead, ids, repeats, offsets: walk.offsets() })
    }

    /// The descriptor of a chunk that comes ahead of a way's stream.
    fn feed_ahead(&mut self, way: &Way, ahead: &Stream) -> Result<u8> {
        let id = self.descriptor_id(way.shim)?;
        self.launch.descriptors.push(Descriptor {
            tile: way.shim.tile,
            id,
            place: Place::Argument(ahead.argument, ahead.base_bytes),
            dims: vec![Dim { size: ahead.chunk_words(), stride: 1 }],
            iteration: None,
            acquire: None,
            release: None,
            next: None,
        });
        Ok(id)
    }

    /// The programs of all cores.
    fn cores(&mut self) -> Result<()> {
        let tiled = &self.placed().tiled;
        for column in 0..tiled.herd.columns {
            for row in 0..tiled.herd.rows {
                let tile = self.placed().tile((column, row));
                let body = of_core(&tiled.body, column, row);
                let program = self.instructions(tile, &body, &mut Vec::new())?;
                self.launch.cores.push(Core { tile, program });
                if tiled.cascade && row > 0 {
                    let to = self.placed().tile((column, row - 1));
                    self.launch.cascades.push(Cascade { from: tile, to });
                }
            }
        }
        Ok(())
    }

    /// The instructions of a body within loops of these counts: each stream
    /// that follows just these loops is acquired before its first use in the
    /// body and released after its last.
    fn instructions(&self, tile: Tile, body: &[Item], loops: &mut Vec<u32>) -> Result<Vec<Instruction>> {
        let here: Vec<&Stream> = self
            .placed()
            .tiled
            .streams
            .iter()
            .filter(|stream| stream.loops() == loops.len() && body.iter().any(|item| item.uses(&stream.name)))
            .collect();
        let mut instructions = Vec::new();
        for (index, item) in body.iter().enumerate() {
            for stream in &here {
                if body.iter().position(|item| item.uses(&stream.name)) == Some(index) {
                    instructions.push(Instruction::Acquire(self.steps(tile, stream)?.0));
                }
            }
            instructions.push(self.instruction(tile, item, loops)?);
            for stream in &here {
                if body.iter().rposition(|item| item.uses(&stream.name)) == Some(index) {
                    instructions.push(Instruction::Release(self.steps(tile, stream)?.1));
                }
            }
        }
        Ok(instructions)
    }

    /// What a core waits for before it uses a chunk, and what it says after.
    fn steps(&self, tile: Tile, stream: &Stream) -> Result<(Step, Step)> {
        let locks = self.ring(tile, &stream.name)?.locks;
        Ok(if stream.flow == Flow::In { locks.reader() } else { locks.writer() })
    }

    fn instruction(&self, tile: Tile, item: &Item, loops: &mut Vec<u32>) -> Result<Instruction> {
        Ok(match item {
            Item::Loop { count, body } => {
                loops.push(*count);
                let body = self.instructions(tile, body, loops)?;
                loops.pop();
                Instruction::Loop { count: *count, body }
            }
            Item::On { .. } => return Err(Error::new("what only some rows do was resolved before")),
            Item::Call { entry, operands, parameters } => {
                let operands = operands.iter().map(|source| self.operand(tile, source, loops));
                let operands = operands.collect::<Result<_>>()?;
                Instruction::Call(Call { entry: entry.clone(), operands, parameters: parameters.clone() })
            }
        })
    }

    fn operand(&self, tile: Tile, source: &Source, loops: &[u32]) -> Result<Operand> {
        let slots = self.ring(tile, &source.name)?.slots;
        let stream = self.placed().tiled.streams.iter().find(|stream| stream.name == source.name);
        let level = stream.map_or(0, Stream::loops);
        let mut turn = Affine::default();
        let mut factor = 1;
        for depth in (0..level).rev() {
            turn = turn.plus(depth as u8, factor % slots.len() as i64);
            factor = factor * i64::from(loops[depth]) % slots.len() as i64;
        }
        Ok(Operand { slots, turn, offset: source.offset.clone() })
    }
}

/// The body of one core: without what other rows do, and with its column and
/// row in the numbers of calls.
fn of_core(body: &[Item], column: u8, row: u8) -> Vec<Item> {
    let mut own = Vec::new();
    for item in body {
        match item {
            Item::Loop { count, body } => {
                own.push(Item::Loop { count: *count, body: of_core(body, column, row) })
            }
            Item::On { first, last, body } if (*first..=*last).contains(&row) => {
                own.extend(of_core(body, column, row))
            }
            Item::On { .. } => {}
            Item::Call { entry, operands, parameters } => {
                let numbers = parameters.iter().map(|parameter| match &parameter.value {
                    Number::Int(value) => {
                        let value = Number::Int(at_core(value, column, row));
                        Parameter { name: parameter.name.clone(), value }
                    }
                    Number::Float(_) => parameter.clone(),
                });
                let operands = operands.iter().map(|source| {
                    let offset = at_core(&source.offset, column, row);
                    Source { name: source.name.clone(), offset }
                });
                let (entry, operands) = (entry.clone(), operands.collect());
                own.push(Item::Call { entry, operands, parameters: numbers.collect() });
            }
        }
    }
    own
}

/// A number whose terms of the herd's columns and rows are constants.
fn at_core(value: &Affine, column: u8, row: u8) -> Affine {
    let mut own = Affine::constant(value.constant);
    for term in &value.terms {
        match term.depth {
            COLUMN => own.constant += term.factor * i64::from(column),
            ROW => own.constant += term.factor * i64::from(row),
            depth => own = own.plus(depth, term.factor),
        }
    }
    own
}

/// One descriptor of an endless chain.
struct Link {
    buffer: BufferId,
    /// Where it begins in the buffer, in bytes.
    offset: u32,
    dims: Vec<Dim>,
    /// What it acquires and what it releases.
    steps: (Option<Step>, Option<Step>),
}

impl Link {
    /// A whole buffer, word by word.
    fn linear(buffer: BufferId, words: u32, (acquire, release): (Step, Step)) -> Link {
        let dims = vec![Dim { size: words, stride: 1 }];
        Link { buffer, offset: 0, dims, steps: (Some(acquire), Some(release)) }
    }
}

/// Steps of one that takes and gives what the other side takes and gives one
/// at a time, so often.
fn each_of((acquire, release): (Step, Step), times: u32) -> (Step, Step) {
    let of = |step: Step| Step { value: u8::try_from(times).unwrap_or(u8::MAX), ..step };
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

/// A walk over an argument, split as descriptors need it: the inner dimensions
/// in one descriptor, the next one as its iteration, the rest as tasks.
struct Walk {
    inner: Vec<Dim>,
    iteration: Option<Dim>,
    outer: Vec<Dim>,
}

impl Walk {
    /// Splits dimensions, outermost first.
    fn of(dims: &[Dim], most_dims: usize, most_stride: u64, max_words: u64, max_repeat: u32) -> Walk {
        let mut rest = merged(dims);
        let mut inner: Vec<Dim> = Vec::new();
        while let Some(&dim) = rest.last() {
            let words = inner.iter().chain([&dim]).map(|dim| u64::from(dim.size)).product::<u64>();
            let fits = inner.len() < most_dims && words <= max_words;
            // A descriptor's step register has no zero: standing still is a repetition.
            if !fits || u64::from(dim.stride) > most_stride || dim.stride == 0 {
                break;
            }
            inner.insert(0, dim);
            rest.pop();
        }
        let iteration = rest.last().copied();
        let iteration = iteration.filter(|dim| {
            dim.size <= max_repeat && u64::from(dim.stride) <= most_stride && !inner.is_empty()
        });
        if iteration.is_some() {
            rest.pop();
        }
        Walk { inner, iteration, outer: rest }
    }

    /// How many tasks the walk is.
    fn pushes(&self) -> u64 {
        self.outer.iter().map(|dim| u64::from(dim.size)).fold(1, u64::saturating_mul)
    }

    /// The byte offset of each task.
    fn offsets(&self) -> Vec<i64> {
        let mut offsets = vec![0];
        for dim in &self.outer {
            let step = i64::from(dim.stride) * 4;
            offsets = offsets
                .iter()
                .flat_map(|base| (0..i64::from(dim.size)).map(move |i| base + i * step))
                .collect();
        }
        offsets
    }
}

/// The same walk with dimensions of one step left out, and those joined that
/// follow each other without a gap.
fn merged(dims: &[Dim]) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::new();
    for &dim in dims.iter().filter(|dim| dim.size != 1) {
        match merged.last_mut() {
            Some(outer) if u64::from(outer.stride) == u64::from(dim.size) * u64::from(dim.stride) => {
                match outer.size.checked_mul(dim.size) {
                    Some(size) => *outer = Dim { size, stride: dim.stride },
                    None => merged.push(dim),
                }
            }
            _ => merged.push(dim),
        }
    }
    if merged.is_empty() {
        merged.push(Dim { size: 1, stride: 1 });
    }
    merged
}

/// The tasks of one shim channel, in order.
struct Feed {
    channel: Channel,
    /// The descriptor of what comes once, before all else.
    ahead: Option<u8>,
    /// Descriptors that take turns.
    ids: Vec<u8>,
    repeats: u32,
    offsets: Vec<i64>,
}

/// The tasks of all channels, each at its share of its channel's tasks, so that
/// no channel's full queue keeps another from what it waits for; at the end all
/// are waited for. A descriptor is not written again before the task that used
/// it has ended.
fn commands(feeds: Vec<Feed>) -> Vec<Command> {
    let mut commands = Vec::new();
    // What the cores make must have a place to go before they are fed.
    let (outs, ins): (Vec<Feed>, Vec<Feed>) =
        feeds.into_iter().partition(|feed| feed.channel.direction == Direction::S2mm);
    let feeds: Vec<Feed> = outs.into_iter().chain(ins).collect();
    let mut tasks: Vec<(usize, &Feed)> = Vec::new();
    for feed in &feeds {
        tasks.extend((0..feed.offsets.len()).map(|task| (task, feed)));
    }
    // Stable: tasks of equal shares stay in the order of the channels.
    tasks.sort_by(|(a, of), (b, other)| (a * other.offsets.len()).cmp(&(b * of.offsets.len())));
    for (task, feed) in tasks {
        if let Some(descriptor) = feed.ahead.filter(|_| task == 0) {
            let (channel, offset) = (feed.channel, Affine::constant(0));
            commands.push(Command::Push(Push { channel, descriptor, offset, repeats: 1, token: false }));
        }
        if task >= feed.ids.len() {
            commands.push(Command::Wait(feed.channel));
        }
        commands.push(Command::Push(Push {
            channel: feed.channel,
            descriptor: feed.ids[task % feed.ids.len()],
            offset: Affine::constant(feed.offsets[task]),
            repeats: feed.repeats,
            token: true,
        }));
    }
    for feed in &feeds {
        let waits = feed.ids.len().min(feed.offsets.len());
        commands.extend((0..waits).map(|_| Command::Wait(feed.channel)));
    }
    commands
}
