//! Bytes: the memory of the tiles and the buffer objects behind the shims, and
//! what was last done to each word of them.

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
    /// By column and row.
    tiles: Vec<Option<Local>>,
    rows: usize,
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
        let rows = (1 + target.array.memory_rows + target.array.compute_rows) as usize;
        Ok(Some(Store {
            tiles: (0..target.array.columns as usize * rows).map(|_| None).collect(),
            rows,
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
            let local = self.local(tile);
            local.shadow = Some(Shadow::new(local.bytes.len() / 4));
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
        let at = usize::from(tile.column) * self.rows + usize::from(tile.row);
        self.tiles[at].get_or_insert_with(|| Local { bytes: vec![0xff; size], shadow: None })
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

/// The memory that a channel works on.
#[derive(Clone, Copy, Debug)]
enum Region {
    Tile(Tile),
    Object(ObjectId),
}

impl Machine<'_> {
    /// Moves words of a stream from its source to all its destinations.
    pub fn carry(&mut self, route: u32, words: u64) -> Result<(), Fault> {
        if self.store.is_none() {
            return Ok(());
        }
        let plan = &self.plan.routes[route as usize];
        let (region, runs) = self.reach(plan.from, words)?;
        self.check_runs(&region, &runs, plan.from)?;
        let mut bytes = Vec::with_capacity(words as usize * 4);
        let memory = self.memory(&region);
        for run in &runs {
            bytes.extend_from_slice(&memory[run.clone()]);
        }
        let sent = self.clocks.is_some().then(|| self.publish(self.channel_clock(plan.from)));
        for &end in &plan.to {
            if let Some(sent) = &sent {
                self.learn(self.channel_clock(end), sent);
            }
            let (region, runs) = self.reach(end, words)?;
            self.check_runs(&region, &runs, end)?;
            let memory = self.memory(&region);
            let mut rest = bytes.as_slice();
            for run in runs {
                let (now, later) = rest.split_at(run.len());
                memory[run].copy_from_slice(now);
                rest = later;
            }
        }
        Ok(())
    }

    /// The memory that a channel's next words lie in, and where in it.
    fn reach(&self, channel: u32, words: u64) -> Result<(Region, Vec<Range<usize>>), Fault> {
        let (pass, descriptor) = self.pass(channel);
        let store = self.store.as_ref().expect("values are computed");
        let (region, start, low, high) = match descriptor.place {
            Place::Buffer(buffer, start) => {
                let buffer = &self.plan.buffers[buffer.0 as usize];
                let (low, high) =
                    (u64::from(buffer.address), u64::from(buffer.address) + u64::from(buffer.bytes));
                (Region::Tile(buffer.tile), low + u64::from(start), low, high)
            }
            Place::Argument(argument, start) => {
                let binding = store.bindings[argument as usize];
                let (low, high) = (binding.offset, binding.offset + store.sizes[argument as usize]);
                (Region::Object(binding.object), low + start, low, high)
            }
        };
        let leaves = || {
            let channel = self.plan.channels[channel as usize].channel;
            let name = match descriptor.place {
                Place::Buffer(buffer, _) => &self.plan.buffers[buffer.0 as usize].name,
                Place::Argument(..) => "an argument",
            };
            let size = high - low;
            let text = format!(
                "descriptor {} on channel {channel} leaves {name}, which has {size} bytes",
                descriptor.id
            );
            self.fault(FaultKind::Overrun, text)
        };
        let base = start.checked_add_signed(pass.offset).ok_or_else(leaves)?;
        let mut runs = Vec::new();
        let mut outside = false;
        descriptor.walk(pass.done, words, |word, many| {
            let (first, end) = (base + word * 4, base + (word + many) * 4);
            outside |= first < low || end > high;
            runs.push(first as usize..end as usize);
        });
        if outside { Err(leaves()) } else { Ok((region, runs)) }
    }

    /// The bytes of a region, of which its buffer or argument is a part.
    fn memory(&mut self, region: &Region) -> &mut [u8] {
        let store = self.store.as_mut().expect("values are computed");
        match region {
            Region::Tile(tile) => &mut store.local(*tile).bytes,
            Region::Object(object) => store.objects.bytes_mut(*object),
        }
    }

    fn check_runs(&mut self, region: &Region, runs: &[Range<usize>], channel: u32) -> Result<(), Fault> {
        if self.clocks.is_none() {
            return Ok(());
        }
        let way = self.plan.channels[channel as usize].channel.direction;
        let (tile, object) = match region {
            Region::Tile(tile) => (Some(*tile), ObjectId(0)),
            Region::Object(object) => (None, *object),
        };
        runs.iter().try_for_each(|run| {
            let touch = Touch { tile, object, byte: run.start as u64, bytes: run.len() as u64 };
            self.check(&touch, way, self.channel_clock(channel))
        })
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
            Some(tile) => match &mut store.local(tile).shadow {
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
            let bytes = self.bytes(touch).to_vec();
            if *access == Access::Read { reads.push(bytes) } else { writes.push(bytes) }
        }
        let reads: Vec<&[u8]> = reads.iter().map(Vec::as_slice).collect();
        entry.compute(numbers, &mut Values { reads: &reads, writes: &mut writes });
        let written = touches.iter().filter(|(_, access)| *access != Access::Read);
        for ((touch, _), bytes) in written.zip(&writes) {
            self.bytes(touch).copy_from_slice(bytes);
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
        let sent = self.bytes(&from).to_vec();
        self.bytes(&to).copy_from_slice(&sent);
        Ok(())
    }
}
