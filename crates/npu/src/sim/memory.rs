//! Bytes: the memory of the tiles and the buffer objects behind the shims, and
//! what was last done to each word of them.
//!
//! Values move as the tiles move them, but no oftener: a call works on the
//! memory of its tile in place, and a stream copies once for each of its ends.

use std::ops::Range;

use super::hazard::{Clock, Collision, Shadow};
use super::machine::Machine;
use super::plan::{CallPlan, ChannelPlan, Descriptor, Plan, Runs};
use super::{Fault, FaultKind, Prepared};
use crate::form::schedule::{Buffer, Direction, DmaAddress, Tile, TileKind};
use crate::kernel::{Access, ENTRIES, Entry, Values};
use crate::memory::{Binding, Memory, ObjectId, Objects};
use crate::target::Target;

/// Everything that holds bytes in a launch.
#[derive(Debug)]
pub(super) struct Store<'a> {
    /// By column and row.
    tiles: Vec<Option<Local>>,
    rows: usize,
    objects: &'a mut Objects,
    bindings: &'a [Binding],
    sizes: Vec<u64>,
    /// Watched stretches of objects: those that the launch writes.
    watched: Vec<(ObjectId, Range<u64>, Shadow)>,
}

/// The memory of a tile, up to the end of its last buffer.
#[derive(Debug, Default)]
struct Local {
    bytes: Vec<u8>,
    /// Watched words, in their order: those of each buffer, and of buffers that
    /// overlap together.
    watched: Vec<(Range<usize>, Shadow)>,
}

/// The largest stretch of DRAM whose words are watched, in bytes.
const MOST_WATCHED: u64 = 64 << 20;

impl<'a> Store<'a> {
    /// The bytes of a launch, or none if only time is kept.
    pub fn new(
        program: &Prepared,
        plan: &Plan,
        bindings: &'a [Binding],
        memory: &'a mut Memory<'_>,
        target: &Target,
    ) -> Result<Option<Store<'a>>, Fault> {
        let Memory::Values(objects) = memory else { return Ok(None) };
        let unbound = |text: String| Fault {
            kind: FaultKind::Malformed,
            cycle: 0,
            sentence: format!("{}: {text}", program.name),
        };
        if bindings.len() != program.arguments.len() {
            let (has, needs) = (bindings.len(), program.arguments.len());
            return Err(unbound(format!("{has} arguments are bound, {needs} are needed")));
        }
        for (argument, binding) in program.arguments.iter().zip(bindings) {
            let has = objects.bytes(binding.object).len() as u64;
            if !binding.offset.is_multiple_of(4)
                || binding.offset.checked_add(argument.bytes).is_none_or(|end| end > has)
            {
                let (name, bytes, offset) = (&argument.name, argument.bytes, binding.offset);
                let text = format!("argument {name} of {bytes} bytes does not lie in its object at {offset}");
                return Err(unbound(text));
            }
        }
        let rows = (1 + target.array.memory_rows + target.array.compute_rows) as usize;
        let mut tiles: Vec<Option<Local>> = Vec::new();
        tiles.resize_with(target.array.columns as usize * rows, || None);
        for buffer in &plan.buffers {
            let local = tiles[place(buffer.tile, rows)].get_or_insert_with(Local::default);
            local.reach(buffer.address as usize + buffer.bytes as usize);
        }
        Ok(Some(Store {
            tiles,
            rows,
            objects,
            bindings,
            sizes: program.arguments.iter().map(|argument| argument.bytes).collect(),
            watched: Vec::new(),
        }))
    }

    /// Begins to note who reads and writes what.
    pub fn look_for_hazards(&mut self, program: &Prepared, plan: &Plan, before: &Clock, nobody: usize) {
        for tile in self.tiles.iter_mut().flatten() {
            tile.watched.clear();
        }
        let mut buffers: Vec<&Buffer> = plan.buffers.iter().collect();
        buffers.sort_by_key(|buffer| (buffer.tile, buffer.address));
        for buffer in buffers {
            let (first, end) = (buffer.address as usize, buffer.address as usize + buffer.bytes as usize);
            self.local(buffer.tile).watch(first / 4..end.div_ceil(4));
        }
        for (number, (argument, binding)) in (0..).zip(program.arguments.iter().zip(self.bindings)) {
            let written = plan.writes(number);
            let range = binding.offset..binding.offset + argument.bytes.div_ceil(4) * 4;
            let apart = |(object, other, _): &(ObjectId, Range<u64>, Shadow)| {
                *object != binding.object || other.end <= range.start || range.end <= other.start
            };
            if written && argument.bytes <= MOST_WATCHED && self.watched.iter().all(apart) {
                let words = (argument.bytes.div_ceil(4)) as usize;
                let mut shadow = Shadow::new(words);
                shadow.written(0..words, before, nobody);
                self.watched.push((binding.object, range, shadow));
            }
        }
    }

    /// The memory of a tile that has buffers.
    fn local(&mut self, tile: Tile) -> &mut Local {
        let at = place(tile, self.rows);
        self.tiles[at].as_mut().expect("whoever accesses a tile does so by a buffer in it")
    }
}

/// The place of a tile among all, by column and row.
fn place(tile: Tile, rows: usize) -> usize {
    usize::from(tile.column) * rows + usize::from(tile.row)
}

impl Local {
    /// Grows to so many bytes; what nobody has written are NaN.
    fn reach(&mut self, bytes: usize) {
        self.bytes.resize(bytes.max(self.bytes.len()), 0xff);
    }

    /// Watches words that begin at or after those that are watched.
    fn watch(&mut self, words: Range<usize>) {
        match self.watched.last_mut() {
            Some((last, shadow)) if words.start < last.end => {
                last.end = last.end.max(words.end);
                *shadow = Shadow::new(last.len());
            }
            _ => {
                let shadow = Shadow::new(words.len());
                self.watched.push((words, shadow));
            }
        }
    }

    /// The notes of the words from `first` on, and the first word of them.
    fn shadow(&mut self, first: usize) -> Option<(usize, &mut Shadow)> {
        let behind = self.watched.partition_point(|(words, _)| words.start <= first);
        let (words, shadow) = self.watched.get_mut(behind.checked_sub(1)?)?;
        Some((words.start, shadow))
    }
}

impl Plan {
    /// Whether a channel into DRAM may write the argument of this number.
    fn writes(&self, number: u32) -> bool {
        let into = |plan: &ChannelPlan| {
            plan.channel.tile.kind() == TileKind::Shim && plan.channel.direction == Direction::S2mm
        };
        let names =
            |one: &Descriptor| matches!(one.place, DmaAddress::Argument(argument, _) if argument == number);
        self.channels.iter().any(into) && self.descriptors.iter().any(names)
    }
}

/// A stretch of words that is accessed.
struct Touch {
    /// The tile, or none for an object.
    tile: Option<Tile>,
    object: ObjectId,
    /// The first byte and how many.
    byte: u64,
    bytes: u64,
}

/// Words that a channel is about to move.
struct Reach<'a> {
    region: Region,
    /// The byte of its region that word 0 is.
    base: u64,
    /// In which order they move, after so many words of the pass.
    order: &'a Runs,
    done: u64,
    /// The same words in ascending order, if they are a whole pass and known.
    ascending: Option<&'a Runs>,
}

impl Reach<'_> {
    /// Where words lie in the region.
    fn bytes(&self, word: u64, many: u64) -> Range<usize> {
        (self.base + word * 4) as usize..(self.base + (word + many) * 4) as usize
    }

    /// Gives the words in as few pieces as are known.
    fn pieces(&self, words: u64, piece: impl FnMut(u64, u64)) {
        match self.ascending {
            Some(runs) => runs.walk(0, words, piece),
            None => self.order.walk(self.done, words, piece),
        }
    }
}

/// The memory that a channel works on.
#[derive(Clone, Copy, Debug)]
enum Region {
    Tile(Tile),
    Object(ObjectId),
}

impl<'a> Machine<'a> {
    /// Moves words of a stream from its source to all its destinations.
    pub fn carry(&mut self, route: u32, words: u64) -> Result<(), Fault> {
        if self.store.is_none() {
            return Ok(());
        }
        let plan = &self.plan.routes[route as usize];
        let from = self.reach(plan.from, words)?;
        self.check_words(&from, plan.from, words)?;
        let mut bytes = Vec::with_capacity(words as usize * 4);
        let (memory, order) = (self.memory(&from.region), from.order);
        order.walk(from.done, words, |word, many| {
            bytes.extend_from_slice(&memory[from.bytes(word, many)]);
        });
        let sent = self.clocks.is_some().then(|| self.publish(self.channel_clock(plan.from)));
        for &end in &plan.to {
            if let Some(sent) = &sent {
                self.learn(self.channel_clock(end), sent);
            }
            let to = self.reach(end, words)?;
            self.check_words(&to, end, words)?;
            let (memory, mut rest) = (self.memory(&to.region), bytes.as_slice());
            to.order.walk(to.done, words, |word, many| {
                let (now, later) = rest.split_at(many as usize * 4);
                memory[to.bytes(word, many)].copy_from_slice(now);
                rest = later;
            });
        }
        Ok(())
    }

    /// Where a channel's next words lie; they are within their buffer or
    /// argument.
    fn reach(&self, channel: u32, words: u64) -> Result<Reach<'a>, Fault> {
        let pass = self.channels[channel as usize].pass.expect("a stream moves within passes");
        let descriptor = &self.plan.descriptors[pass.descriptor as usize];
        let store = self.store.as_ref().expect("values are computed");
        let (region, start, low, high) = match descriptor.place {
            DmaAddress::Buffer(buffer, start) => {
                let buffer = &self.plan.buffers[buffer.0 as usize];
                let (low, high) =
                    (u64::from(buffer.address), u64::from(buffer.address) + u64::from(buffer.bytes));
                (Region::Tile(buffer.tile), low + u64::from(start), low, high)
            }
            DmaAddress::Argument(argument, start) => {
                let binding = store.bindings[argument as usize];
                let (low, high) = (binding.offset, binding.offset + store.sizes[argument as usize]);
                (Region::Object(binding.object), low + start, low, high)
            }
        };
        let leaves = || {
            let channel = self.plan.channels[channel as usize].channel;
            let name = match descriptor.place {
                DmaAddress::Buffer(buffer, _) => &self.plan.buffers[buffer.0 as usize].name,
                DmaAddress::Argument(..) => "an argument",
            };
            let size = high - low;
            let text = format!(
                "descriptor {} on channel {channel} leaves {name}, which has {size} bytes",
                descriptor.id
            );
            self.fault(FaultKind::Overrun, text)
        };
        let base = start.checked_add_signed(pass.offset).ok_or_else(leaves)?;
        let ascending = descriptor.ascending.as_ref().filter(|_| words == descriptor.words);
        let reach = Reach { region, base, order: &descriptor.order, done: pass.done, ascending };
        let mut outside = false;
        reach.pieces(words, |word, many| {
            let end = base.checked_add((word + many) * 4);
            outside |= base + word * 4 < low || end.is_none_or(|end| end > high);
        });
        if outside { Err(leaves()) } else { Ok(reach) }
    }

    /// The bytes of a region, of which its buffer or argument is a part.
    fn memory(&mut self, region: &Region) -> &mut [u8] {
        let store = self.store.as_mut().expect("values are computed");
        match region {
            Region::Tile(tile) => &mut store.local(*tile).bytes,
            Region::Object(object) => store.objects.bytes_mut(*object),
        }
    }

    /// Notes that a channel accesses its next words.
    fn check_words(&mut self, reach: &Reach<'_>, channel: u32, words: u64) -> Result<(), Fault> {
        if self.clocks.is_none() {
            return Ok(());
        }
        let way = self.plan.channels[channel as usize].channel.direction;
        let (tile, object) = match reach.region {
            Region::Tile(tile) => (Some(tile), ObjectId(0)),
            Region::Object(object) => (None, object),
        };
        let agent = self.channel_clock(channel);
        let mut outcome = Ok(());
        reach.pieces(words, |word, many| {
            if outcome.is_ok() {
                let touch = Touch { tile, object, byte: reach.base + word * 4, bytes: many * 4 };
                outcome = self.check(&touch, way, agent);
            }
        });
        outcome
    }

    /// The bytes of an operand.
    fn bytes(&mut self, touch: &Touch) -> &mut [u8] {
        let tile = touch.tile.expect("an operand lies in a tile");
        &mut self.memory(&Region::Tile(tile))[touch.byte as usize..(touch.byte + touch.bytes) as usize]
    }

    /// Notes an access; a collision is a fault.
    fn check(&mut self, touch: &Touch, way: Direction, agent: usize) -> Result<(), Fault> {
        let (Some(clocks), Some(store)) = (&self.clocks, &mut self.store) else { return Ok(()) };
        let (shadow, base) = match touch.tile {
            Some(tile) => match store.local(tile).shadow((touch.byte / 4) as usize) {
                Some((first, shadow)) => (shadow, first as u64 * 4),
                None => return Ok(()),
            },
            None => {
                let covers = |(object, range, _): &&mut (ObjectId, Range<u64>, Shadow)| {
                    *object == touch.object
                        && range.start <= touch.byte
                        && touch.byte + touch.bytes <= range.end
                };
                match store.watched.iter_mut().find(covers) {
                    Some((_, range, shadow)) => (shadow, range.start),
                    None => return Ok(()),
                }
            }
        };
        let (first, end) = (touch.byte - base, touch.byte - base + touch.bytes);
        let words = (first / 4) as usize..(end.div_ceil(4) as usize).min(shadow.words());
        let outcome = match way {
            Direction::Mm2s => shadow.read(words, &clocks[agent], agent),
            Direction::S2mm => shadow.write(words, &clocks[agent], agent),
        };
        outcome.map_err(|collision| self.collision(touch, way, agent, base, collision))
    }

    fn collision(&self, touch: &Touch, way: Direction, agent: usize, base: u64, what: Collision) -> Fault {
        let does = if way == Direction::Mm2s { "reads" } else { "writes" };
        let (word, kind) = match what {
            Collision::Unwritten { word } => (word, FaultKind::Unwritten),
            Collision::Written { word, .. } | Collision::Read { word, .. } => (word, FaultKind::Race),
        };
        let byte = base + word as u64 * 4;
        let place = match touch.tile {
            None => format!("byte {byte} of buffer object {}", touch.object.0),
            Some(tile) => {
                let holds = |buffer: &&Buffer| {
                    let (first, end) =
                        (u64::from(buffer.address), u64::from(buffer.address) + u64::from(buffer.bytes));
                    buffer.tile == tile && first <= byte && byte < end
                };
                let name = self.plan.buffers.iter().find(holds).map_or("no buffer", |buffer| &buffer.name);
                format!("{name} of tile {tile} at {byte:#x}")
            }
        };
        let who = self.agent_name(agent);
        let text = match what {
            Collision::Unwritten { .. } => format!("{who} {does} {place}, which nobody has written"),
            Collision::Written { agent, .. } => {
                format!(
                    "{who} {does} {place}, and no lock orders that after {} wrote it",
                    self.agent_name(agent)
                )
            }
            Collision::Read { agent, .. } => {
                format!(
                    "{who} {does} {place}, and no lock orders that after {} read it",
                    self.agent_name(agent)
                )
            }
        };
        self.fault(kind, text)
    }

    /// Computes a call of a core.
    pub fn compute(&mut self, core: u32, call: &CallPlan, numbers: &[u32]) -> Result<(), Fault> {
        if self.store.is_none() {
            return Ok(());
        }
        let entry = &ENTRIES[call.entry];
        let mut touches = Vec::new();
        for (at, bytes) in entry.bytes(numbers).into_iter().enumerate() {
            let touch = self.touch(core, call, at, bytes)?;
            let access = entry.operands[at].access;
            if access != Access::Write {
                self.check(&touch, Direction::Mm2s, core as usize)?;
            }
            if access != Access::Read {
                self.check(&touch, Direction::S2mm, core as usize)?;
            }
            touches.push((touch, access));
        }
        self.apply(entry, numbers, &touches);
        Ok(())
    }

    /// Computes a call on its operands, in place where each lies apart from
    /// the others in the memory of one tile, as they do unless a schedule is
    /// odd.
    fn apply(&mut self, entry: &Entry, numbers: &[u32], touches: &[(Touch, Access)]) {
        let tile = touches[0].0.tile.expect("an operand lies in a tile");
        let near = touches.iter().all(|(touch, _)| touch.tile == Some(tile));
        if near && let Some(slices) = apart(self.memory(&Region::Tile(tile)), touches) {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (slice, (_, access)) in slices.into_iter().zip(touches) {
                if *access == Access::Read { reads.push(&*slice) } else { writes.push(slice) }
            }
            return entry.compute(numbers, &mut Values { reads: &reads, writes: &mut writes });
        }
        let mut copies: Vec<Vec<u8>> = Vec::new();
        for (touch, _) in touches {
            copies.push(self.bytes(touch).to_vec());
        }
        let (mut reads, mut writes): (Vec<&[u8]>, Vec<&mut [u8]>) = (Vec::new(), Vec::new());
        for (copy, (_, access)) in copies.iter_mut().zip(touches) {
            if *access == Access::Read { reads.push(copy) } else { writes.push(copy) }
        }
        entry.compute(numbers, &mut Values { reads: &reads, writes: &mut writes });
        for (copy, (touch, access)) in copies.iter().zip(touches) {
            if *access != Access::Read {
                self.bytes(touch).copy_from_slice(copy);
            }
        }
    }

    fn touch(&self, core: u32, call: &CallPlan, operand: usize, bytes: u64) -> Result<Touch, Fault> {
        let (at, offset) = self.operand(core, call, operand);
        let buffer = &self.plan.buffers[at];
        let fits = u64::try_from(offset).ok().filter(|first| first + bytes <= u64::from(buffer.bytes));
        let Some(first) = fits else {
            let (entry, tile) = (ENTRIES[call.entry].name, self.plan.cores[core as usize].tile);
            let name = ENTRIES[call.entry].operands[operand].name;
            let text = format!(
                "core {tile} calls {entry} with {bytes} bytes of {name} at {offset} of {}, which has {}",
                buffer.name, buffer.bytes
            );
            return Err(self.fault(FaultKind::Overrun, text));
        };
        let byte = u64::from(buffer.address) + first;
        Ok(Touch { tile: Some(buffer.tile), object: ObjectId(0), byte, bytes })
    }

    /// Copies what a core sends over the cascade to where its neighbour
    /// receives it.
    pub fn hand_over(
        &mut self,
        sender: u32,
        receiver: u32,
        send: u32,
        receive: u32,
        bytes: u64,
    ) -> Result<(), Fault> {
        if self.store.is_none() {
            return Ok(());
        }
        let from = self.touch(sender, &self.plan.calls[send as usize], 0, bytes)?;
        let to = self.touch(receiver, &self.plan.calls[receive as usize], 0, bytes)?;
        self.check(&from, Direction::Mm2s, sender as usize)?;
        if self.clocks.is_some() {
            let clock = self.publish(sender as usize);
            self.learn(receiver as usize, &clock);
        }
        self.check(&to, Direction::S2mm, receiver as usize)?;
        let sent = self.bytes(&from).to_vec();
        self.bytes(&to).copy_from_slice(&sent);
        Ok(())
    }
}

/// The bytes of each touch, unless two of them overlap.
fn apart<'m>(memory: &'m mut [u8], touches: &[(Touch, Access)]) -> Option<Vec<&'m mut [u8]>> {
    let mut order: Vec<usize> = (0..touches.len()).collect();
    order.sort_unstable_by_key(|&at| touches[at].0.byte);
    let (mut rest, mut start) = (memory, 0);
    let mut slices: Vec<Option<&mut [u8]>> = touches.iter().map(|_| None).collect();
    for at in order {
        let touch = &touches[at].0;
        let skip = touch.byte.checked_sub(start)? as usize;
        let (slice, behind) = rest.split_at_mut(skip).1.split_at_mut(touch.bytes as usize);
        (slices[at], rest, start) = (Some(slice), behind, touch.byte + touch.bytes);
    }
    slices.into_iter().collect()
}
