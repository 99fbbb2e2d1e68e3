//! Bytes: the memory of the tiles and the buffer objects behind the shims, and
//! what was last done to each word of them.

use std::collections::HashMap;
use std::ops::Range;

use super::hazard::{Clock, Collision, Shadow};
use super::machine::Machine;
use super::plan::{CallPlan, ChannelPlan, Descriptor, Plan};
use super::{Fault, FaultKind, Prepared};
use crate::form::schedule::{Direction, Place, Tile, TileKind};
use crate::kernel::{Access, ENTRIES, Values};
use crate::memory::{Binding, Memory, ObjectId, Objects};
use crate::target::Target;

/// Everything that holds bytes in a launch.
#[derive(Debug)]
pub(super) struct Store<'a> {
    tiles: HashMap<Tile, Local>,
    objects: &'a mut Objects,
    bindings: &'a [Binding],
    sizes: Vec<u64>,
    /// Watched stretches of objects: those that the launch writes.
    watched: Vec<(ObjectId, Range<u64>, Shadow)>,
    compute_bytes: usize,
    memory_bytes: usize,
}

/// The memory of a tile.
#[derive(Debug)]
struct Local {
    bytes: Vec<u8>,
    shadow: Option<Shadow>,
}

/// The largest stretch of DRAM whose words are watched, in bytes.
const MOST_WATCHED: u64 = 16 << 20;

impl<'a> Store<'a> {
    /// The bytes of a run, or none if only time is kept.
    pub fn new(
        program: &Prepared,
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
        Ok(Some(Store {
            tiles: HashMap::new(),
            objects,
            bindings,
            sizes: program.arguments.iter().map(|argument| argument.bytes).collect(),
            watched: Vec::new(),
            compute_bytes: target.compute.bytes as usize,
            memory_bytes: target.memory.bytes as usize,
        }))
    }

    /// Begins to note who reads and writes what.
    pub fn look_for_hazards(&mut self, program: &Prepared, plan: &Plan, before: &Clock, nobody: usize) {
        for tile in plan.buffers.iter().map(|buffer| buffer.tile) {
            let size = self.size(tile);
            self.tiles.insert(tile, Local { bytes: vec![0xff; size], shadow: Some(Shadow::new(size / 4)) });
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

    fn size(&self, tile: Tile) -> usize {
        match tile.kind() {
            TileKind::Shim => 0,
            TileKind::Memory => self.memory_bytes,
            TileKind::Compute => self.compute_bytes,
        }
    }

    fn local(&mut self, tile: Tile) -> &mut Local {
        let size = self.size(tile);
        self.tiles.entry(tile).or_insert_with(|| Local { bytes: vec![0xff; size], shadow: None })
    }
}

impl Plan {
    /// Whether a channel into DRAM may write the argument of this number.
    fn writes(&self, number: u32) -> bool {
        let into = |plan: &ChannelPlan| {
            plan.channel.tile.kind() == TileKind::Shim && plan.channel.direction == Direction::S2mm
        };
        let names =
            |one: &Descriptor| matches!(one.place, Place::Argument(argument, _) if argument == number);
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

impl Machine<'_> {
    /// Moves words of a stream from its source to all its destinations.
    pub fn carry(&mut self, route: u32, words: u64) -> Result<(), Fault> {
        if self.store.is_none() {
            return Ok(());
        }
        let plan = &self.plan.routes[route as usize];
        let mut bytes = Vec::with_capacity(words as usize * 4);
        for touch in self.touches(plan.from, words)? {
            self.check(&touch, Direction::Mm2s, self.channel_clock(plan.from))?;
            bytes.extend_from_slice(self.bytes(&touch)?);
        }
        let sent = self.clocks.is_some().then(|| self.publish(self.channel_clock(plan.from)));
        for &end in &plan.to {
            if let Some(sent) = &sent {
                self.learn(self.channel_clock(end), sent);
            }
            let mut at = 0;
            for touch in self.touches(end, words)? {
                self.check(&touch, Direction::S2mm, self.channel_clock(end))?;
                let length = touch.bytes as usize;
                self.bytes(&touch)?.copy_from_slice(&bytes[at..at + length]);
                at += length;
            }
        }
        Ok(())
    }

    /// The stretches that a channel's next words lie in.
    fn touches(&self, channel: u32, words: u64) -> Result<Vec<Touch>, Fault> {
        let (pass, descriptor) = self.pass(channel);
        let mut touches = Vec::new();
        let (mut word, end) = (pass.done, pass.done + words);
        while word < end {
            let within = word % descriptor.run;
            let many = (descriptor.run - within).min(end - word);
            let first = descriptor.run_start(word / descriptor.run) + within;
            touches.push(self.locate(channel, descriptor, pass.offset, first * 4, many * 4)?);
            word += many;
        }
        Ok(touches)
    }

    fn locate(
        &self,
        channel: u32,
        descriptor: &Descriptor,
        offset: i64,
        byte: u64,
        bytes: u64,
    ) -> Result<Touch, Fault> {
        let (start, size, name) = match descriptor.place {
            Place::Buffer(buffer, start) => {
                let buffer = &self.plan.buffers[buffer.0 as usize];
                (u64::from(start), u64::from(buffer.bytes), buffer.name.as_str())
            }
            Place::Argument(argument, start) => {
                let store = self.store.as_ref().expect("values are computed");
                (start, store.sizes[argument as usize], "an argument")
            }
        };
        let first = (start + byte).checked_add_signed(offset);
        let Some(first) = first.filter(|first| first.checked_add(bytes).is_some_and(|end| end <= size))
        else {
            let channel = self.plan.channels[channel as usize].channel;
            let text = format!(
                "descriptor {} on channel {channel} leaves {name}, which has {size} bytes",
                descriptor.id
            );
            return Err(self.fault(FaultKind::Overrun, text));
        };
        Ok(match descriptor.place {
            Place::Buffer(buffer, _) => {
                let buffer = &self.plan.buffers[buffer.0 as usize];
                let byte = u64::from(buffer.address) + first;
                Touch { tile: Some(buffer.tile), object: ObjectId(0), byte, bytes }
            }
            Place::Argument(argument, _) => {
                let store = self.store.as_ref().expect("values are computed");
                let binding = store.bindings[argument as usize];
                Touch { tile: None, object: binding.object, byte: binding.offset + first, bytes }
            }
        })
    }

    fn bytes(&mut self, touch: &Touch) -> Result<&mut [u8], Fault> {
        let range = touch.byte as usize..(touch.byte + touch.bytes) as usize;
        let outside = |machine: &Self, tile: Tile| {
            machine.fault(FaultKind::Overrun, format!("bytes {range:?} lie outside of tile {tile}"))
        };
        match touch.tile {
            None => {
                let store = self.store.as_mut().expect("values are computed");
                Ok(&mut store.objects.bytes_mut(touch.object)[range])
            }
            Some(tile) => {
                let size = self.store.as_ref().expect("values are computed").size(tile);
                if range.end > size {
                    return Err(outside(self, tile));
                }
                let store = self.store.as_mut().expect("values are computed");
                Ok(&mut store.local(tile).bytes[range])
            }
        }
    }

    /// Notes an access; a collision is a fault.
    fn check(&mut self, touch: &Touch, way: Direction, agent: usize) -> Result<(), Fault> {
        let (Some(clocks), Some(store)) = (&self.clocks, &mut self.store) else { return Ok(()) };
        let (shadow, base) = match touch.tile {
            Some(tile) => match store.tiles.get_mut(&tile).and_then(|local| local.shadow.as_mut()) {
                Some(shadow) => (shadow, 0),
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
                let holds = |buffer: &&crate::form::schedule::Buffer| {
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
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (touch, access) in &touches {
            let bytes = self.bytes(touch)?.to_vec();
            if *access == Access::Read { reads.push(bytes) } else { writes.push(bytes) }
        }
        let reads: Vec<&[u8]> = reads.iter().map(Vec::as_slice).collect();
        entry.compute(numbers, &mut Values { reads: &reads, writes: &mut writes });
        let written = touches.iter().filter(|(_, access)| *access != Access::Read);
        for ((touch, _), bytes) in written.zip(&writes) {
            self.bytes(touch)?.copy_from_slice(bytes);
        }
        Ok(())
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
        let sent = self.bytes(&from)?.to_vec();
        self.bytes(&to)?.copy_from_slice(&sent);
        Ok(())
    }
}
