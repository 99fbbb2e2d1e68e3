//! Accesses to memory by channels and kernel calls, and the check that they are
//! ordered.
//!
//! Values move with as few copies as possible: a call works in place on the
//! memory of its tile, and a stream copies its words once at each of its ends.

use std::ops::Range;

use super::fault::{FaultKind, SimFault};
use super::hazard::{Collision, Shadow};
use super::launch::LaunchSim;
use super::plan::{CallPlan, DescriptorPlan, WordRuns};
use crate::form::schedule::{Buffer, Direction, DmaAddress, Tile};
use crate::kernel::{Access, ENTRIES, KernelEntry, KernelValues};
use crate::memory::ObjectId;

/// A contiguous access.
struct AccessedBytes {
    /// The tile, or none for an object.
    tile: Option<Tile>,
    object: ObjectId,
    /// The first byte, and the number of bytes.
    byte: u64,
    bytes: u64,
}

/// The words that a channel moves next.
struct ChannelWords<'a> {
    region: Region,
    /// The byte of the region at which word 0 lies.
    base: u64,
    /// Their order, and the number of words of the pass already moved.
    order: &'a WordRuns,
    done: u64,
    /// The same words in ascending order, if they are a whole pass and no word
    /// repeats.
    ascending: Option<&'a WordRuns>,
}

impl ChannelWords<'_> {
    /// The byte range of some words in the region.
    fn bytes(&self, word: u64, many: u64) -> Range<usize> {
        (self.base + word * 4) as usize..(self.base + (word + many) * 4) as usize
    }

    /// Calls `piece` for the words, in as few pieces as possible.
    fn pieces(&self, words: u64, piece: impl FnMut(u64, u64)) {
        match self.ascending {
            Some(runs) => runs.walk(0, words, piece),
            None => self.order.walk(self.done, words, piece),
        }
    }
}

/// The memory that a channel accesses.
#[derive(Clone, Copy, Debug)]
enum Region {
    Tile(Tile),
    Object(ObjectId),
}

impl<'a> LaunchSim<'a> {
    /// Moves words of a stream from its source to all its destinations.
    pub fn move_words(&mut self, route: u32, words: u64) -> Result<(), SimFault> {
        let is_checked = self.clocks.as_ref().is_some_and(|clocks| !clocks.by_tile);
        if self.store.objects.is_none() && !is_checked {
            return Ok(());
        }
        let plan = &self.plan.routes[route as usize];
        let from = self.reach(plan.from, words)?;
        self.check_words(&from, plan.from, words)?;
        let bytes = self.read_words(&from, words);
        let sent = is_checked.then(|| self.publish(self.channel_clock(plan.from)));
        for &end in &plan.to {
            if let Some(sent) = &sent {
                self.join_clock(self.channel_clock(end), sent);
            }
            let to = self.reach(end, words)?;
            self.check_words(&to, end, words)?;
            self.write_words(&to, words, &bytes);
        }
        Ok(())
    }

    /// The bytes of words in their order; none if only time is simulated.
    fn read_words(&mut self, from: &ChannelWords<'_>, words: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.store.objects.is_some() {
            bytes.reserve_exact(words as usize * 4);
            let memory = self.memory(&from.region);
            from.order.walk(from.done, words, |word, many| {
                bytes.extend_from_slice(&memory[from.bytes(word, many)]);
            });
        }
        bytes
    }

    /// Stores what [`LaunchSim::read_words`] returned.
    fn write_words(&mut self, to: &ChannelWords<'_>, words: u64, bytes: &[u8]) {
        if self.store.objects.is_some() {
            let (memory, mut rest) = (self.memory(&to.region), bytes);
            to.order.walk(to.done, words, |word, many| {
                let (now, later) = rest.split_at(many as usize * 4);
                memory[to.bytes(word, many)].copy_from_slice(now);
                rest = later;
            });
        }
    }

    /// The next words of a channel, checked to lie in their buffer or argument.
    fn reach(&self, channel: u32, words: u64) -> Result<ChannelWords<'a>, SimFault> {
        let pass = self.channels[channel as usize].pass.expect("a stream moves within passes");
        let descriptor = &self.plan.descriptors[pass.descriptor as usize];
        let (region, start, bytes) = self.region(descriptor);
        let leaves = || self.leaves(channel, descriptor, &bytes);
        let base = start.checked_add_signed(pass.offset).ok_or_else(leaves)?;
        let ascending = descriptor.ascending.as_ref().filter(|_| words == descriptor.words);
        let reach = ChannelWords { region, base, order: &descriptor.order, done: pass.done, ascending };
        let mut outside = false;
        reach.pieces(words, |word, many| {
            let end = base.checked_add((word + many) * 4);
            outside |= base + word * 4 < bytes.start || end.is_none_or(|end| end > bytes.end);
        });
        if outside { Err(leaves()) } else { Ok(reach) }
    }

    /// The memory of a descriptor, its first byte there, and the bytes of its buffer or argument.
    fn region(&self, descriptor: &DescriptorPlan) -> (Region, u64, Range<u64>) {
        match descriptor.place {
            DmaAddress::Buffer(buffer, start) => {
                let buffer = &self.plan.buffers[buffer.0 as usize];
                let low = u64::from(buffer.address);
                (Region::Tile(buffer.tile), low + u64::from(start), low..low + u64::from(buffer.bytes))
            }
            DmaAddress::Argument(argument, start) => {
                let binding = self.store.bindings[argument as usize];
                let low = binding.offset;
                let bytes = low..low + self.store.sizes[argument as usize];
                (Region::Object(binding.object), low.saturating_add(start), bytes)
            }
        }
    }

    fn leaves(&self, channel: u32, descriptor: &DescriptorPlan, bytes: &Range<u64>) -> SimFault {
        let channel = self.plan.channels[channel as usize].channel;
        let name = match descriptor.place {
            DmaAddress::Buffer(buffer, _) => &self.plan.buffers[buffer.0 as usize].name,
            DmaAddress::Argument(..) => "an argument",
        };
        let size = bytes.end - bytes.start;
        let text = format!(
            "descriptor {} on channel {channel} goes beyond {name}, which has {size} bytes",
            descriptor.id
        );
        self.fault(FaultKind::Overrun, text)
    }

    /// Records the accesses of a whole pass that ends, if they are checked by tile.
    pub fn check_pass(&mut self, channel: u32) -> Result<(), SimFault> {
        if !self.clocks.as_ref().is_some_and(|clocks| clocks.by_tile) {
            return Ok(());
        }
        let pass = self.channels[channel as usize].pass.expect("the pass has just moved words");
        let plan = self.plan;
        let descriptor = &plan.descriptors[pass.descriptor as usize];
        let (region, start, bytes) = self.region(descriptor);
        let order = &descriptor.distinct;
        let base = start.checked_add_signed(pass.offset).filter(|base| *base >= bytes.start);
        let end = base.and_then(|base| base.checked_add(order.extent().checked_mul(4)?));
        let (Some(base), true) = (base, end.is_some_and(|end| end <= bytes.end)) else {
            return Err(self.leaves(channel, descriptor, &bytes));
        };
        if let Region::Object(object) = region
            && !self.store.watched.iter().any(|(watched, ..)| *watched == object)
        {
            return Ok(());
        }
        let reach = ChannelWords { region, base, order, done: 0, ascending: None };
        self.check_words(&reach, channel, order.words())
    }

    /// All bytes of the tile or object that contains a region.
    fn memory(&mut self, region: &Region) -> &mut [u8] {
        match region {
            Region::Tile(tile) => &mut self.store.local(*tile).bytes,
            Region::Object(object) => {
                self.store.objects.as_mut().expect("values are computed").bytes_mut(*object)
            }
        }
    }

    /// Records that a channel accesses its next words.
    fn check_words(&mut self, reach: &ChannelWords<'_>, channel: u32, words: u64) -> Result<(), SimFault> {
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
                let touch = AccessedBytes { tile, object, byte: reach.base + word * 4, bytes: many * 4 };
                outcome = self.check(&touch, way, agent);
            }
        });
        outcome
    }

    /// The bytes of an operand.
    fn bytes(&mut self, touch: &AccessedBytes) -> &mut [u8] {
        let tile = touch.tile.expect("an operand lies in a tile");
        &mut self.memory(&Region::Tile(tile))[touch.byte as usize..(touch.byte + touch.bytes) as usize]
    }

    /// Records an access; a collision is a fault, or if accesses are checked by tile, a suspicion.
    fn check(&mut self, touch: &AccessedBytes, way: Direction, agent: usize) -> Result<(), SimFault> {
        let Some(clocks) = self.clocks.as_mut().filter(|clocks| !clocks.is_suspected) else { return Ok(()) };
        let (shadow, base) = match touch.tile {
            Some(tile) => match self.store.local(tile).shadow((touch.byte / 4) as usize) {
                Some((first, shadow)) => (shadow, first as u64 * 4),
                None => return Ok(()),
            },
            None => {
                let covers = |(object, range, _): &&mut (ObjectId, Range<u64>, Shadow)| {
                    *object == touch.object
                        && range.start <= touch.byte
                        && touch.byte + touch.bytes <= range.end
                };
                match self.store.watched.iter_mut().find(covers) {
                    Some((_, range, shadow)) => (shadow, range.start),
                    None => return Ok(()),
                }
            }
        };
        let (first, end) = (touch.byte - base, touch.byte - base + touch.bytes);
        let words = (first / 4) as usize..(end.div_ceil(4) as usize).min(shadow.words());
        match clocks.access(agent, shadow, words, way) {
            Err(_) if clocks.by_tile => {
                clocks.is_suspected = true;
                Ok(())
            }
            outcome => outcome.map_err(|collision| self.collision(touch, way, agent, base, collision)),
        }
    }

    fn collision(
        &self,
        touch: &AccessedBytes,
        way: Direction,
        agent: usize,
        base: u64,
        what: Collision,
    ) -> SimFault {
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
            Collision::Unwritten { .. } => format!("{who} {does} {place}, which has not been written"),
            Collision::Written { agent, .. } => {
                format!(
                    "{who} {does} {place}, but no lock orders that after {} wrote it",
                    self.agent_name(agent)
                )
            }
            Collision::Read { agent, .. } => {
                format!(
                    "{who} {does} {place}, but no lock orders that after {} read it",
                    self.agent_name(agent)
                )
            }
        };
        self.fault(kind, text)
    }

    /// Checks the accesses of a call of a core, and computes it.
    pub fn compute(&mut self, core: u32, call: &CallPlan, numbers: &[u32]) -> Result<(), SimFault> {
        if self.store.objects.is_none() && self.clocks.is_none() {
            return Ok(());
        }
        let entry = &ENTRIES[call.entry];
        let mut touches = Vec::new();
        for (at, operand) in entry.operands.iter().enumerate() {
            let bytes = call.bytes.as_ref().map_or_else(|| operand.bytes(numbers), |bytes| bytes[at]);
            let touch = self.touch(core, call, at, bytes)?;
            if operand.access != Access::Write {
                self.check(&touch, Direction::Mm2s, core as usize)?;
            }
            if operand.access != Access::Read {
                self.check(&touch, Direction::S2mm, core as usize)?;
            }
            if self.store.objects.is_some() {
                touches.push((touch, operand.access));
            }
        }
        if self.store.objects.is_some() {
            self.apply(entry, numbers, &touches);
        }
        Ok(())
    }

    /// Computes a call on its operands: in place if they lie apart in the
    /// memory of one tile, as in all regular schedules, else on copies.
    fn apply(&mut self, entry: &KernelEntry, numbers: &[u32], touches: &[(AccessedBytes, Access)]) {
        let tile = touches[0].0.tile.expect("an operand lies in a tile");
        let near = touches.iter().all(|(touch, _)| touch.tile == Some(tile));
        if near && let Some(slices) = apart(self.memory(&Region::Tile(tile)), touches) {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (slice, (_, access)) in slices.into_iter().zip(touches) {
                if *access == Access::Read { reads.push(&*slice) } else { writes.push(slice) }
            }
            return entry.compute(numbers, &mut KernelValues { reads: &reads, writes: &mut writes });
        }
        let mut copies: Vec<Vec<u8>> = Vec::new();
        for (touch, _) in touches {
            copies.push(self.bytes(touch).to_vec());
        }
        let (mut reads, mut writes): (Vec<&[u8]>, Vec<&mut [u8]>) = (Vec::new(), Vec::new());
        for (copy, (_, access)) in copies.iter_mut().zip(touches) {
            if *access == Access::Read { reads.push(copy) } else { writes.push(copy) }
        }
        entry.compute(numbers, &mut KernelValues { reads: &reads, writes: &mut writes });
        for (copy, (touch, access)) in copies.iter().zip(touches) {
            if *access != Access::Read {
                self.bytes(touch).copy_from_slice(copy);
            }
        }
    }

    fn touch(
        &self,
        core: u32,
        call: &CallPlan,
        operand: usize,
        bytes: u64,
    ) -> Result<AccessedBytes, SimFault> {
        let (at, offset) = self.operand(core, call, operand);
        let buffer = &self.plan.buffers[at];
        let room = |first: &u64| u64::from(buffer.bytes).checked_sub(*first);
        let first = u64::try_from(offset).ok();
        // The hand-built designs of `girih-npu-lab`, which are only timed, call kernels whose operands are wider than theirs;
        // the checker of schedules tests the extents of all others.
        let bytes = match first.as_ref().and_then(room) {
            Some(room) if self.store.objects.is_none() => bytes.min(room),
            _ => bytes,
        };
        let fits = first.filter(|first| room(first).is_some_and(|room| bytes <= room));
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
        Ok(AccessedBytes { tile: Some(buffer.tile), object: ObjectId(0), byte, bytes })
    }

    /// Copies the words that a core sends over the cascade to the operand of
    /// its neighbour.
    pub fn copy_over_cascade(
        &mut self,
        sender: u32,
        receiver: u32,
        send: u32,
        receive: u32,
        bytes: u64,
    ) -> Result<(), SimFault> {
        if self.store.objects.is_none() && self.clocks.is_none() {
            return Ok(());
        }
        let from = self.touch(sender, &self.plan.calls[send as usize], 0, bytes)?;
        let to = self.touch(receiver, &self.plan.calls[receive as usize], 0, bytes)?;
        self.check(&from, Direction::Mm2s, sender as usize)?;
        if self.clocks.as_ref().is_some_and(|clocks| !clocks.by_tile) {
            let clock = self.publish(sender as usize);
            self.join_clock(receiver as usize, &clock);
        }
        self.check(&to, Direction::S2mm, receiver as usize)?;
        if self.store.objects.is_some() {
            let sent = self.bytes(&from).to_vec();
            self.bytes(&to).copy_from_slice(&sent);
        }
        Ok(())
    }
}

/// The bytes of each access, unless two of them overlap.
fn apart<'m>(memory: &'m mut [u8], touches: &[(AccessedBytes, Access)]) -> Option<Vec<&'m mut [u8]>> {
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
