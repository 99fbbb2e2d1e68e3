//! What a schedule must keep to on a target. The rules, each of which guards
//! against wrong numbers in silence:
//!
//! * a buffer lies in its tile's memory, above what is reserved, at a whole
//!   word, and overlaps no other;
//! * locks and descriptors have numbers that the tile has, each once, and lock
//!   values that a lock can hold;
//! * a descriptor has no more dimensions, words and strides than its tile's
//!   registers hold, names a lock of its own tile, and stays in its buffer or
//!   argument; only shim tiles reach arguments;
//! * tasks begin with descriptors that exist and that the channel reaches (the
//!   halves of a memory tile), and repeat no more often than the queue counts;
//! * a stream goes from channels to memory's edge; a channel is in one route;
//! * cores lie on compute tiles, their calls name entries with operands that
//!   fit, in memory that the core reaches.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Affine, Argument, Call, Channel, Command, Descriptor, Direction, Instruction, Launch, Number, Operand,
    Place, Push, Schedule, Step, Tile, TileKind,
};
use crate::Target;
use crate::form::placed::on_grid;
use crate::form::{Fault, Form};
use crate::kernel;
use crate::target::DmaSpec;

impl Form for Schedule {
    const NAME: &'static str = "schedule";

    fn faults(&self, target: &Target) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.target != target.name {
            let sentence = format!("is made for the target {}, not {}", self.target, target.name);
            faults.push(Fault::new(&self.name, sentence));
        }
        for launch in &self.launches {
            let mut check = Check { launch, arguments: &self.arguments, target, faults: Vec::new() };
            check.buffers();
            check.locks();
            check.descriptors();
            check.tasks();
            check.routes();
            check.cores();
            faults.append(&mut check.faults);
        }
        faults
    }
}

/// A launch being checked.
struct Check<'a> {
    launch: &'a Launch,
    arguments: &'a [Argument],
    target: &'a Target,
    faults: Vec<Fault>,
}

impl Check<'_> {
    fn fault(&mut self, what: String, sentence: impl Into<String>) {
        self.faults.push(Fault::new(format!("{}: {what}", self.launch.name), sentence));
    }

    fn dma(&self, tile: Tile) -> &DmaSpec {
        match tile.kind() {
            TileKind::Shim => &self.target.shim.dma,
            TileKind::Memory => &self.target.memory.dma,
            TileKind::Compute => &self.target.compute.dma,
        }
    }

    fn buffers(&mut self) {
        let mut order: Vec<usize> = (0..self.launch.buffers.len()).collect();
        order.sort_by_key(|&index| (self.launch.buffers[index].tile, self.launch.buffers[index].address));
        let mut previous: Option<(Tile, u64)> = None;
        for index in order {
            let buffer = &self.launch.buffers[index];
            let what = format!("buffer {}", buffer.name);
            let memory = match buffer.tile.kind() {
                TileKind::Shim => {
                    self.fault(what, "lies in a shim tile, which has no memory");
                    continue;
                }
                TileKind::Memory => &self.target.memory,
                TileKind::Compute => &self.target.compute,
            };
            let (tile, address) = (buffer.tile, buffer.address);
            let end = u64::from(address) + u64::from(buffer.bytes);
            let (first, last) = (memory.reserved, memory.bytes);
            if !on_grid(tile, self.target) {
                self.fault(what.clone(), format!("lies in tile {tile}, which is off the grid"));
            }
            if address < first || end > u64::from(last) || address % 4 != 0 || buffer.bytes == 0 {
                self.fault(
                    what.clone(),
                    format!("lies at {address}..{end}; whole words of {first}..{last} may be used"),
                );
            }
            if let Some((_, end)) = previous.filter(|&(of, end)| of == tile && end > u64::from(address)) {
                self.fault(what, format!("begins at {address}, where another buffer reaches up to {end}"));
            }
            previous = Some((tile, end));
        }
    }

    fn locks(&mut self) {
        let mut seen = BTreeSet::new();
        for lock in &self.launch.locks {
            let what = format!("lock {} of tile {}", lock.id, lock.tile);
            let (have, most) = (self.dma(lock.tile).locks, self.dma(lock.tile).max_lock);
            if u32::from(lock.id) >= have {
                self.fault(what.clone(), format!("the tile has {have} locks"));
            }
            if u32::from(lock.initial) > most {
                self.fault(what.clone(), format!("begins at {}; the most is {most}", lock.initial));
            }
            if !seen.insert((lock.tile, lock.id)) {
                self.fault(what, "is declared twice");
            }
        }
    }

    /// What is wrong with a step on a lock by something in `tile`.
    fn step_fault(&self, step: Step, tile: Tile) -> Option<String> {
        let Some(lock) = self.launch.locks.get(step.lock.0 as usize) else {
            return Some(format!("names lock l{}, which there is not", step.lock.0));
        };
        let most = self.dma(lock.tile).max_lock;
        if step.value == 0 || u32::from(step.value) > most {
            return Some(format!("changes a lock by {}; 1..={most} can be", step.value));
        }
        (!reaches(tile, lock.tile))
            .then(|| format!("names a lock of tile {}, which it does not reach", lock.tile))
    }

    fn descriptors(&mut self) {
        let mut seen = BTreeSet::new();
        for descriptor in &self.launch.descriptors {
            let Descriptor { tile, id, .. } = descriptor;
            let what = format!("descriptor {id} of tile {tile}");
            let have = self.dma(*tile).descriptors;
            if u32::from(*id) >= have {
                self.fault(what.clone(), format!("the tile has {have} descriptors"));
            }
            if !seen.insert((*tile, *id)) {
                self.fault(what.clone(), "is declared twice");
            }
            let sentence = self.dims_fault(descriptor).or_else(|| self.reach_fault(descriptor));
            let steps = [descriptor.acquire, descriptor.release];
            let sentence = sentence
                .or_else(|| steps.into_iter().flatten().find_map(|step| self.step_fault(step, *tile)));
            let next = descriptor.next;
            let lost =
                next.filter(|next| !self.launch.descriptors.iter().any(|d| d.tile == *tile && d.id == *next));
            let sentence =
                sentence.or_else(|| lost.map(|next| format!("leads to {next}, which there is not")));
            if let Some(sentence) = sentence {
                self.fault(what, sentence);
            }
        }
    }

    fn dims_fault(&self, descriptor: &Descriptor) -> Option<String> {
        let dma = self.dma(descriptor.tile);
        let (count, words) = (descriptor.dims.len(), descriptor.words());
        if count == 0 || count > dma.dimensions as usize {
            return Some(format!("has {count} dimensions; 1..={} can be", dma.dimensions));
        }
        if words == 0 || words > dma.max_words {
            return Some(format!("moves {words} words; 1..={} can be", dma.max_words));
        }
        let strides = descriptor.dims.iter().chain(&descriptor.iteration).map(|dim| u64::from(dim.stride));
        let most = dma.max_stride_words;
        strides
            .max()
            .filter(|&stride| stride > most)
            .map(|stride| format!("steps by {stride} words; {most} is the most"))
    }

    /// What is wrong with the stretch that a descriptor walks over.
    fn reach_fault(&self, descriptor: &Descriptor) -> Option<String> {
        let dims = descriptor.dims.iter().chain(&descriptor.iteration);
        let reach = dims.map(|dim| u64::from(dim.size.max(1) - 1).saturating_mul(u64::from(dim.stride)));
        let reach = reach.fold(1, u64::saturating_add).saturating_mul(4);
        match (descriptor.place, descriptor.tile.kind()) {
            (Place::Buffer(..), TileKind::Shim) => Some("of a shim tile reads a tile's memory".to_owned()),
            (Place::Buffer(buffer, offset), _) => match self.launch.buffers.get(buffer.0 as usize) {
                None => Some(format!("names buffer b{}, which there is not", buffer.0)),
                Some(of) if !channel_reaches(descriptor.tile, of.tile) => {
                    Some(format!("names buffer {} of tile {}, which it does not reach", of.name, of.tile))
                }
                Some(of) => (u64::from(offset).saturating_add(reach) > u64::from(of.bytes)
                    || offset % 4 != 0)
                    .then(|| {
                        format!(
                            "walks to byte {} of {}, which has {}",
                            u64::from(offset) + reach,
                            of.name,
                            of.bytes
                        )
                    }),
            },
            (Place::Argument(argument, offset), TileKind::Shim) => {
                match self.arguments.get(argument as usize) {
                    None => Some(format!("names argument a{argument}, which there is not")),
                    Some(of) => (offset.saturating_add(reach) > of.bytes || offset % 4 != 0).then(|| {
                        format!(
                            "walks to byte {} of {}, which has {}",
                            offset.saturating_add(reach),
                            of.name,
                            of.bytes
                        )
                    }),
                }
            }
            (Place::Argument(..), _) => Some("reaches DRAM; only shim tiles do".to_owned()),
        }
    }

    fn tasks(&mut self) {
        for start in &self.launch.starts {
            self.task(start.channel, start.descriptor, start.repeats, &[0]);
        }
        let mut pushes = Vec::new();
        let mut sound = true;
        collect(&self.launch.commands, &mut Vec::new(), &mut |push: &Push, loops: &[u32]| {
            let ends = [vec![0; loops.len()], loops.iter().map(|count| count.saturating_sub(1)).collect()];
            let offsets: Vec<i64> = ends.iter().map(|counters| push.offset.at(counters)).collect();
            sound &= affine_is_small(&push.offset);
            pushes.push((push.channel, push.descriptor, push.repeats, offsets));
        });
        if !sound {
            self.fault("run".to_owned(), "has an offset that depends on its loops with a factor over 2^40");
            return;
        }
        for (channel, descriptor, repeats, offsets) in pushes {
            self.task(channel, descriptor, repeats, &offsets);
        }
    }

    fn task(&mut self, channel: Channel, id: u8, repeats: u32, offsets: &[i64]) {
        let what = format!("task of {channel}");
        let dma = self.dma(channel.tile);
        let (have, most, all) = (channels(dma, channel.direction), dma.max_repeat, dma.descriptors);
        if u32::from(channel.number) >= have {
            self.fault(what.clone(), format!("the tile has {have} such channels"));
        }
        if repeats == 0 || repeats > most {
            self.fault(what.clone(), format!("repeats {repeats} times; 1..={most} can be"));
        }
        let mut chain = BTreeSet::new();
        let mut at = Some(id);
        while let Some(id) = at.filter(|id| chain.insert(*id)) {
            let found = self
                .launch
                .descriptors
                .iter()
                .find(|descriptor| descriptor.tile == channel.tile && descriptor.id == id);
            let Some(descriptor) = found else {
                self.fault(what, format!("begins with descriptor {id}, which there is not"));
                return;
            };
            let half = all / 2;
            if channel.tile.kind() == TileKind::Memory && (u32::from(id) >= half) != (channel.number % 2 == 1)
            {
                self.fault(
                    what.clone(),
                    format!(
                        "uses descriptor {id}; odd channels reach {half} and above, even ones the others"
                    ),
                );
            }
            if let Place::Argument(argument, offset) = descriptor.place {
                let mut moved = descriptor.clone();
                for &by in offsets {
                    let place = i64::try_from(offset).ok().and_then(|offset| offset.checked_add(by));
                    let Some(place) = place.and_then(|place| u64::try_from(place).ok()) else {
                        self.fault(what.clone(), format!("moves descriptor {id} to before its argument"));
                        continue;
                    };
                    moved.place = Place::Argument(argument, place);
                    if let Some(sentence) = self.reach_fault(&moved) {
                        self.fault(what.clone(), sentence);
                    }
                }
            }
            at = descriptor.next;
        }
    }

    fn routes(&mut self) {
        let mut seen = BTreeMap::new();
        for (index, route) in self.launch.routes.iter().enumerate() {
            let ends = route.to.iter().map(|hop| (hop.channel, Direction::S2mm));
            for (channel, need) in std::iter::once((route.from, Direction::Mm2s)).chain(ends) {
                let what = format!("route {index}");
                let have = channels(self.dma(channel.tile), channel.direction);
                if channel.direction != need {
                    self.fault(what.clone(), format!("uses {channel} the wrong way round"));
                }
                if u32::from(channel.number) >= have || !on_grid(channel.tile, self.target) {
                    self.fault(what.clone(), format!("uses {channel}, which there is not"));
                }
                // Several cores may end in one shim channel only if they never send at once, which is not known here.
                if let Some(other) = seen.insert(channel, index) {
                    self.fault(what, format!("uses {channel}, which route {other} uses"));
                }
            }
        }
    }

    fn cores(&mut self) {
        let mut seen = BTreeSet::new();
        for core in &self.launch.cores {
            let what = format!("core {}", core.tile);
            if core.tile.kind() != TileKind::Compute || !on_grid(core.tile, self.target) {
                self.fault(what.clone(), "is on no compute tile");
            }
            if !seen.insert(core.tile) {
                self.fault(what.clone(), "has two programs");
            }
            let mut sentences = Vec::new();
            self.instructions(core.tile, &core.program, &mut Vec::new(), &mut sentences);
            for sentence in sentences {
                self.fault(what.clone(), sentence);
            }
        }
    }

    fn instructions(&self, tile: Tile, body: &[Instruction], loops: &mut Vec<u32>, found: &mut Vec<String>) {
        for instruction in body {
            match instruction {
                Instruction::Loop { count, body } => {
                    loops.push(*count);
                    self.instructions(tile, body, loops, found);
                    loops.pop();
                }
                Instruction::Acquire(step) | Instruction::Release(step) => {
                    found.extend(self.step_fault(*step, tile));
                }
                Instruction::Call(call) => found.extend(self.call_fault(tile, call, loops)),
            }
        }
    }

    fn call_fault(&self, tile: Tile, call: &Call, loops: &[u32]) -> Option<String> {
        let Some(entry) = kernel::entry(&call.entry) else {
            return Some(format!("calls {}, which is no entry", call.entry));
        };
        if entry.operands.len() != call.operands.len() {
            let (have, need) = (call.operands.len(), entry.operands.len());
            return Some(format!("calls {} with {have} operands; {need} are needed", call.entry));
        }
        let names = call.parameters.iter().map(|parameter| parameter.name.as_str());
        if !names.eq(entry.params.iter().map(|param| param.name)) {
            return Some(format!("calls {} with other numbers than {:?}", call.entry, entry.params));
        }
        let last: Vec<u32> = loops.iter().map(|count| count.saturating_sub(1)).collect();
        for counters in [vec![0; loops.len()], last] {
            let numbers = numbers(call, &counters)?;
            if let Err(error) = entry.check(&numbers) {
                return Some(error.to_string());
            }
            let sizes = entry.bytes(&numbers);
            let operands = call.operands.iter().zip(sizes);
            let fault = operands
                .into_iter()
                .find_map(|(operand, need)| self.operand_fault(tile, operand, need, &counters));
            if fault.is_some() {
                return fault.map(|sentence| format!("calls {}: {sentence}", call.entry));
            }
        }
        None
    }

    fn operand_fault(&self, tile: Tile, operand: &Operand, need: u64, counters: &[u32]) -> Option<String> {
        if operand.slots.is_empty() || !affine_is_small(&operand.offset) || !affine_is_small(&operand.turn) {
            return Some(format!("the operand {operand} names no place"));
        }
        let offset = operand.offset.at(counters);
        for slot in &operand.slots {
            let Some(buffer) = self.launch.buffers.get(slot.0 as usize) else {
                return Some(format!("the operand {operand} names b{}, which there is not", slot.0));
            };
            if !reaches(tile, buffer.tile) {
                return Some(format!(
                    "buffer {} lies in tile {}, which the core does not reach",
                    buffer.name, buffer.tile
                ));
            }
            let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(need));
            if end.is_none_or(|end| end > u64::from(buffer.bytes)) {
                return Some(format!(
                    "{need} bytes at {offset} leave buffer {} of {}",
                    buffer.name, buffer.bytes
                ));
            }
        }
        None
    }
}

/// A call's numbers at these loop counters, floats as their bits; none if one
/// is negative, which no entry takes.
pub fn numbers(call: &Call, counters: &[u32]) -> Option<Vec<u32>> {
    let number = |value: &Number| match value {
        Number::Int(value) => u32::try_from(value.at(counters)).unwrap_or(u32::MAX),
        Number::Float(value) => value.to_bits(),
    };
    Some(call.parameters.iter().map(|parameter| number(&parameter.value)).collect())
}

fn channels(dma: &DmaSpec, direction: Direction) -> u32 {
    if direction == Direction::Mm2s { dma.channels_out } else { dma.channels_in }
}

/// Whether something in `tile` may use what lies in tile `of`: its own, and a
/// core also what its neighbours above, below and to the west have.
fn reaches(tile: Tile, of: Tile) -> bool {
    if tile.kind() != TileKind::Compute || of.kind() != TileKind::Compute {
        return tile == of;
    }
    let vertical = tile.column == of.column && tile.row.abs_diff(of.row) <= 1;
    vertical || (tile.row == of.row && of.column.checked_add(1) == Some(tile.column))
}

/// Whether a channel of `tile` may use memory of tile `of`.
fn channel_reaches(tile: Tile, of: Tile) -> bool {
    tile == of
}

/// Whether no value that it takes can overflow.
fn affine_is_small(affine: &Affine) -> bool {
    const MOST: i64 = 1 << 40;
    let small = |value: i64| (-MOST..=MOST).contains(&value);
    affine.terms.len() <= super::text::MAX_LOOPS
        && small(affine.constant)
        && affine.terms.iter().all(|term| (-(1 << 27)..=1 << 27).contains(&term.factor))
}

/// Visits every push with the counts of the loops around it.
fn collect(commands: &[Command], loops: &mut Vec<u32>, visit: &mut impl FnMut(&Push, &[u32])) {
    for command in commands {
        match command {
            Command::Loop { count, body } => {
                loops.push(*count);
                collect(body, loops, visit);
                loops.pop();
            }
            Command::Push(push) => visit(push, loops),
            Command::Wait(_) => {}
        }
    }
}
