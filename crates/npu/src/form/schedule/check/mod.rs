//! The checker of schedules. Each rule prevents silently wrong results, or a program
//! that the hardware cannot hold. `docs/npu.md` lists the rules with their sources:
//!
//! * a buffer is in its tile's memory, above the reserved bytes, aligned to a
//!   word, and overlaps no other; a DRAM buffer is no larger than a descriptor
//!   can address;
//! * locks and descriptors have numbers that the tile has, each once, and
//!   values that a lock can hold;
//! * a descriptor's dimensions, words, strides and iterations fit its tile's
//!   registers, strides are whole runs, it names a lock of its own tile, and stays in its buffer or
//!   argument; only shim tiles access arguments;
//! * tasks are of channels with a route, begin with descriptors that exist and that
//!   the channel can use (half of a memory tile's), and fit the queue and its
//!   repeat counter;
//! * routes, cascades and cores: see [`streams`] and [`calls`].

pub(crate) mod calls;
pub(crate) mod streams;

use std::collections::{BTreeMap, BTreeSet};

use super::registers::{register_fault, stride_fault};
use super::{
    Affine, Argument, Channel, Descriptor, Dim, Direction, DmaAddress, Launch, LockChange, ProcessorCommand,
    Push, Route, Schedule, Tile, TileKind,
};
use crate::form::placed::on_grid;
use crate::form::{FormFault, PassForm};
use crate::target::{DmaSpec, Target};

/// The maximum number of faults of a launch that are listed.
const MAX_FAULTS: usize = 100;

impl PassForm for Schedule {
    const NAME: &'static str = "schedule";

    fn faults(&self, target: &Target) -> Vec<FormFault> {
        let mut faults = Vec::new();
        if self.target != target.name {
            let sentence = format!("is compiled for the target {}, not {}", self.target, target.name);
            faults.push(FormFault::new(&self.name, sentence));
        }
        let max = target.shim.max_argument_bytes;
        for argument in self.arguments.iter().filter(|argument| argument.bytes > max).take(MAX_FAULTS) {
            let Argument { name, bytes, .. } = argument;
            let sentence = format!("has {bytes} bytes; a descriptor addresses at most {max}");
            faults.push(FormFault::new(format!("argument {name}"), sentence));
        }
        for launch in &self.launches {
            let mut check = LaunchCheck::new(launch, &self.arguments, target);
            check.buffers();
            check.locks();
            check.descriptors();
            check.routes();
            check.cascades();
            check.tasks();
            check.cores();
            faults.append(&mut check.faults);
        }
        faults
    }
}

/// A launch being checked.
struct LaunchCheck<'a> {
    launch: &'a Launch,
    arguments: &'a [Argument],
    target: &'a Target,
    /// The descriptors by tile and number.
    numbered: BTreeMap<(Tile, u8), &'a Descriptor>,
    /// The channels with a route.
    routed: BTreeSet<Channel>,
    faults: Vec<FormFault>,
}

impl<'a> LaunchCheck<'a> {
    fn new(launch: &'a Launch, arguments: &'a [Argument], target: &'a Target) -> LaunchCheck<'a> {
        let numbered = launch.descriptors.iter().map(|one| ((one.tile, one.id), one)).collect();
        let ends = |route: &'a Route| route.to.iter().map(|hop| hop.channel).chain([route.from]);
        let routed = launch.routes.iter().flat_map(ends).collect();
        LaunchCheck { launch, arguments, target, numbered, routed, faults: Vec::new() }
    }

    fn fault(&mut self, what: String, sentence: impl Into<String>) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(FormFault::new(format!("{}: {what}", self.launch.name), sentence));
        }
    }

    fn dma(&self, tile: Tile) -> &'a DmaSpec {
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
                    self.fault(what, "is in a shim tile, which has no memory");
                    continue;
                }
                TileKind::Memory => &self.target.memory,
                TileKind::Compute => &self.target.compute,
            };
            let (tile, address) = (buffer.tile, buffer.address);
            let end = u64::from(address) + u64::from(buffer.bytes);
            let (first, last) = (memory.reserved, memory.bytes);
            if !on_grid(tile, self.target) {
                self.fault(what.clone(), format!("is in tile {tile}, which is outside the array"));
            }
            if address < first || end > u64::from(last) || address % 4 != 0 || buffer.bytes == 0 {
                self.fault(
                    what.clone(),
                    format!("is at {address}..{end}; whole words within {first}..{last} are allowed"),
                );
            }
            if let Some((_, end)) = previous.filter(|&(of, end)| of == tile && end > u64::from(address)) {
                self.fault(what, format!("begins at {address}, before the end of another buffer at {end}"));
            }
            previous = Some((tile, end));
        }
    }

    fn locks(&mut self) {
        let mut seen = BTreeSet::new();
        for lock in &self.launch.locks {
            let what = format!("lock {} of tile {}", lock.id, lock.tile);
            let (have, max) = (self.dma(lock.tile).locks, self.dma(lock.tile).max_lock);
            if !on_grid(lock.tile, self.target) {
                self.fault(what.clone(), "is outside the array");
            }
            if u32::from(lock.id) >= have {
                self.fault(what.clone(), format!("the tile has {have} locks"));
            }
            if u32::from(lock.initial) > max {
                self.fault(what.clone(), format!("begins at {}; the maximum is {max}", lock.initial));
            }
            if !seen.insert((lock.tile, lock.id)) {
                self.fault(what, "is declared twice");
            }
        }
    }

    /// Returns the fault of a change of a lock by code or a descriptor of `tile`, which
    /// reaches locks of these tiles.
    fn lock_fault(&self, change: LockChange, reaches: impl Fn(Tile) -> bool) -> Option<String> {
        let Some(lock) = self.launch.locks.get(change.lock.0 as usize) else {
            return Some(format!("names lock l{}, which is not declared", change.lock.0));
        };
        let max = self.dma(lock.tile).max_lock;
        if change.value == 0 || u32::from(change.value) > max {
            return Some(format!("changes a lock by {}; 1..={max} is allowed", change.value));
        }
        (!reaches(lock.tile)).then(|| format!("names a lock of tile {}, which it cannot access", lock.tile))
    }

    fn descriptors(&mut self) {
        let mut seen = BTreeSet::new();
        for descriptor in &self.launch.descriptors {
            let Descriptor { tile, id, dims, iteration, next, .. } = descriptor;
            let what = format!("descriptor {id} of tile {tile}");
            let dma = self.dma(*tile);
            let have = dma.descriptors;
            if !on_grid(*tile, self.target) {
                self.fault(what.clone(), "is outside the array");
            }
            if u32::from(*id) >= have {
                self.fault(what.clone(), format!("the tile has {have} descriptors"));
            }
            if !seen.insert((*tile, *id)) {
                self.fault(what.clone(), "is declared twice");
            }
            let sentence = register_fault(dims, *iteration, dma).or_else(|| self.range_fault(descriptor));
            let mut changes = [descriptor.acquire, descriptor.release].into_iter().flatten();
            let own = |of: Tile| of == *tile;
            let sentence = sentence.or_else(|| changes.find_map(|change| self.lock_fault(change, own)));
            let missing = next.filter(|next| !self.numbered.contains_key(&(*tile, *next)));
            let sentence = sentence
                .or_else(|| missing.map(|next| format!("is followed by {next}, which is not declared")));
            let sentence = sentence.or_else(|| stride_fault(dims, *iteration));
            if let Some(sentence) = sentence {
                self.fault(what, sentence);
            }
        }
    }

    /// Returns the fault of the address range that a descriptor covers.
    fn range_fault(&self, descriptor: &Descriptor) -> Option<String> {
        let dims = descriptor.dims.iter().chain(&descriptor.iteration);
        let reach = dims.map(|dim| u64::from(dim.size.max(1) - 1).saturating_mul(u64::from(dim.stride)));
        let reach = reach.fold(1, u64::saturating_add).saturating_mul(4);
        let (offset, name, bytes) = match (descriptor.address, descriptor.tile.kind()) {
            (DmaAddress::Buffer(..), TileKind::Shim) => {
                return Some("is of a shim tile but addresses a buffer".to_owned());
            }
            (DmaAddress::Argument(..), TileKind::Memory | TileKind::Compute) => {
                return Some("accesses DRAM, which only shim tiles can".to_owned());
            }
            (DmaAddress::Buffer(buffer, offset), _) => match self.launch.buffers.get(buffer.0 as usize) {
                None => return Some(format!("names buffer b{}, which is not declared", buffer.0)),
                Some(of) if of.tile != descriptor.tile => {
                    let (name, tile) = (&of.name, of.tile);
                    return Some(format!("names buffer {name} of tile {tile}, which it cannot access"));
                }
                Some(of) => (u64::from(offset), &of.name, u64::from(of.bytes)),
            },
            (DmaAddress::Argument(argument, offset), _) => match self.arguments.get(argument as usize) {
                None => return Some(format!("names argument a{argument}, which the program does not have")),
                Some(of) => (offset, &of.name, of.bytes),
            },
        };
        let granule = u64::from(self.target.stream.granule_bytes);
        if !offset.is_multiple_of(granule) {
            return Some(format!("begins at byte {offset} of {name}; a multiple of {granule} is needed"));
        }
        let end = offset.saturating_add(reach);
        (end > bytes).then(|| format!("ends at byte {end} of {name}, which has {bytes} bytes"))
    }

    fn tasks(&mut self) {
        let mut queued: BTreeMap<Channel, u32> = BTreeMap::new();
        for start in &self.launch.starts {
            self.task(start.channel, start.descriptor, start.repeats, [0, 0]);
            let count = queued.entry(start.channel).or_default();
            *count += 1;
            let queue = self.dma(start.channel.tile).queue;
            if *count == queue + 1 {
                let sentence = format!("has more than {queue} first tasks, which its queue holds");
                self.fault(format!("channel {}", start.channel), sentence);
            }
        }
        let mut pushes = Vec::new();
        let mut fault = None;
        let granule = i64::from(self.target.stream.granule_bytes);
        visit_pushes(&self.launch.commands, &mut Vec::new(), &mut |push: &Push, loops: &[u32]| {
            let Affine { constant, terms } = &push.offset;
            if !affine_is_small(&push.offset) {
                fault = Some(
                    "has an offset with a constant over 2^40, a factor over 2^27 or over 8 terms".into(),
                );
            } else if constant % granule != 0 || terms.iter().any(|term| term.factor % granule != 0) {
                fault = Some(format!("has the offset {}; a multiple of {granule} is needed", push.offset));
            } else {
                pushes.push((push.channel, push.descriptor, push.repeats, extremes(&push.offset, loops)));
            }
        });
        if let Some(sentence) = fault {
            self.fault("run".to_owned(), sentence);
        }
        for (channel, descriptor, repeats, offsets) in pushes {
            self.task(channel, descriptor, repeats, offsets);
        }
    }

    /// Checks a task whose descriptors are moved by offsets from the first to the last
    /// of `offsets`.
    fn task(&mut self, channel: Channel, id: u8, repeats: u32, offsets: [i64; 2]) {
        let what = format!("task of {channel}");
        let dma = self.dma(channel.tile);
        let (have, max, all) = (channels(dma, channel.direction), dma.max_repeat, dma.descriptors);
        if u32::from(channel.number) >= have {
            self.fault(what.clone(), format!("the tile has {have} such channels"));
        } else if !self.routed.contains(&channel) {
            self.fault(what.clone(), "the channel has no route");
        }
        if repeats == 0 || repeats > max {
            self.fault(what.clone(), format!("repeats {repeats} times; 1..={max} is allowed"));
        }
        let mut chain = BTreeSet::new();
        let mut at = Some(id);
        while let Some(id) = at.filter(|id| chain.insert(*id)) {
            let Some(&descriptor) = self.numbered.get(&(channel.tile, id)) else {
                self.fault(what, format!("uses descriptor {id}, which is not declared"));
                return;
            };
            let half = all / 2;
            if channel.tile.kind() == TileKind::Memory && (u32::from(id) >= half) != (channel.number % 2 == 1)
            {
                self.fault(
                    what.clone(),
                    format!(
                        "uses descriptor {id}; odd channels can use {half} and above, even channels those below"
                    ),
                );
            }
            if let DmaAddress::Argument(argument, offset) = descriptor.address {
                // A task with fewer runs does not reach the last step of the iteration.
                let size = |dim: Dim| Dim { size: dim.size.min(repeats.max(1)), ..dim };
                let descriptor =
                    Descriptor { iteration: descriptor.iteration.map(size), ..descriptor.clone() };
                self.moved_task(&what, &descriptor, (argument, offset), offsets);
            }
            at = descriptor.next;
        }
    }

    /// Checks the argument's range of a descriptor at the ends of its offsets.
    fn moved_task(&mut self, what: &str, descriptor: &Descriptor, at: (u32, u64), offsets: [i64; 2]) {
        let (argument, offset) = at;
        let ends = if offsets[0] == offsets[1] { &offsets[..1] } else { &offsets[..] };
        for &by in ends {
            let sum = i64::try_from(offset).ok().and_then(|offset| offset.checked_add(by));
            let Some(sum) = sum.and_then(|sum| u64::try_from(sum).ok()) else {
                let sentence = format!("offsets descriptor {} to before its argument", descriptor.id);
                self.fault(what.to_owned(), sentence);
                continue;
            };
            let moved = Descriptor { address: DmaAddress::Argument(argument, sum), ..descriptor.clone() };
            if let Some(sentence) = self.range_fault(&moved) {
                self.fault(what.to_owned(), sentence);
            }
        }
    }
}

fn channels(dma: &DmaSpec, direction: Direction) -> u32 {
    if direction == Direction::Mm2s { dma.channels_out } else { dma.channels_in }
}

/// Whether no value of the number can overflow.
fn affine_is_small(affine: &Affine) -> bool {
    const MAX_CONSTANT: i64 = 1 << 40;
    let small = |value: i64| (-MAX_CONSTANT..=MAX_CONSTANT).contains(&value);
    affine.terms.len() <= super::text::MAX_LOOPS
        && small(affine.constant)
        && affine.terms.iter().all(|term| (-(1 << 27)..=1 << 27).contains(&term.factor))
}

/// Returns the least and the greatest value of a number in loops of these counts.
fn extremes(affine: &Affine, loops: &[u32]) -> [i64; 2] {
    let [mut least, mut greatest] = [affine.constant; 2];
    for term in &affine.terms {
        let count = loops.get(usize::from(term.depth)).map_or(0, |count| count.saturating_sub(1));
        let last = term.factor * i64::from(count);
        least += last.min(0);
        greatest += last.max(0);
    }
    [least, greatest]
}

/// Visits every push with the counts of the loops around it.
fn visit_pushes(commands: &[ProcessorCommand], loops: &mut Vec<u32>, visit: &mut impl FnMut(&Push, &[u32])) {
    for command in commands {
        match command {
            ProcessorCommand::Loop { count, body } => {
                loops.push(*count);
                visit_pushes(body, loops, visit);
                loops.pop();
            }
            ProcessorCommand::Push(push) => visit(push, loops),
            ProcessorCommand::Wait(_) => {}
        }
    }
}
