//! The checker of schedules. Each rule prevents silently wrong results:
//!
//! * a buffer is in its tile's memory, above the reserved bytes, aligned to a
//!   word, and overlaps no other;
//! * locks and descriptors have numbers that the tile has, each once, and
//!   values that a lock can hold;
//! * a descriptor's dimensions, words and strides fit its tile's registers, it
//!   names a lock of its own tile, and stays in its buffer or argument; only
//!   shim tiles access arguments;
//! * tasks begin with descriptors that exist and that the channel can use (half
//!   of a memory tile's), and repeat no more often than the queue allows;
//! * a route leads from an MM2S channel to S2MM channels; a channel is in one
//!   route;
//! * cores are on compute tiles, and their calls name kernel entries with
//!   operands that fit, in memory that the core can access.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Affine, Argument, CallOperand, Channel, CoreCall, CoreInstruction, Descriptor, Direction, DmaAddress,
    Launch, LockChange, ParameterValue, ProcessorCommand, Push, Schedule, Tile, TileKind,
};
use crate::form::placed::on_grid;
use crate::form::{FormFault, PassForm};
use crate::kernel;
use crate::target::DmaSpec;
use crate::target::Target;

impl PassForm for Schedule {
    const NAME: &'static str = "schedule";

    fn faults(&self, target: &Target) -> Vec<FormFault> {
        let mut faults = Vec::new();
        if self.target != target.name {
            let sentence = format!("is compiled for the target {}, not {}", self.target, target.name);
            faults.push(FormFault::new(&self.name, sentence));
        }
        for launch in &self.launches {
            let mut check = LaunchCheck { launch, arguments: &self.arguments, target, faults: Vec::new() };
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
struct LaunchCheck<'a> {
    launch: &'a Launch,
    arguments: &'a [Argument],
    target: &'a Target,
    faults: Vec<FormFault>,
}

impl LaunchCheck<'_> {
    fn fault(&mut self, what: String, sentence: impl Into<String>) {
        self.faults.push(FormFault::new(format!("{}: {what}", self.launch.name), sentence));
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

    /// Returns the fault of a change of a lock from `tile`.
    fn lock_fault(&self, change: LockChange, tile: Tile) -> Option<String> {
        let Some(lock) = self.launch.locks.get(change.lock.0 as usize) else {
            return Some(format!("names lock l{}, which is not declared", change.lock.0));
        };
        let max = self.dma(lock.tile).max_lock;
        if change.value == 0 || u32::from(change.value) > max {
            return Some(format!("changes a lock by {}; 1..={max} is allowed", change.value));
        }
        (!can_access(tile, lock.tile))
            .then(|| format!("names a lock of tile {}, which it cannot access", lock.tile))
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
            let sentence = self.dims_fault(descriptor).or_else(|| self.range_fault(descriptor));
            let changes = [descriptor.acquire, descriptor.release];
            let sentence = sentence
                .or_else(|| changes.into_iter().flatten().find_map(|change| self.lock_fault(change, *tile)));
            let next = descriptor.next;
            let missing =
                next.filter(|next| !self.launch.descriptors.iter().any(|d| d.tile == *tile && d.id == *next));
            let sentence = sentence
                .or_else(|| missing.map(|next| format!("is followed by {next}, which is not declared")));
            if let Some(sentence) = sentence {
                self.fault(what, sentence);
            }
        }
    }

    fn dims_fault(&self, descriptor: &Descriptor) -> Option<String> {
        let dma = self.dma(descriptor.tile);
        let (count, words) = (descriptor.dims.len(), descriptor.words());
        if count == 0 || count > dma.dimensions as usize {
            return Some(format!("has {count} dimensions; 1..={} is allowed", dma.dimensions));
        }
        if words == 0 || words > dma.max_words {
            return Some(format!("moves {words} words; 1..={} is allowed", dma.max_words));
        }
        let strides = descriptor.dims.iter().chain(&descriptor.iteration).map(|dim| u64::from(dim.stride));
        let max = dma.max_stride_words;
        strides
            .max()
            .filter(|&stride| stride > max)
            .map(|stride| format!("has a stride of {stride} words; the maximum is {max}"))
    }

    /// Returns the fault of the address range that a descriptor covers.
    fn range_fault(&self, descriptor: &Descriptor) -> Option<String> {
        let dims = descriptor.dims.iter().chain(&descriptor.iteration);
        let reach = dims.map(|dim| u64::from(dim.size.max(1) - 1).saturating_mul(u64::from(dim.stride)));
        let reach = reach.fold(1, u64::saturating_add).saturating_mul(4);
        match (descriptor.address, descriptor.tile.kind()) {
            (DmaAddress::Buffer(..), TileKind::Shim) => {
                Some("is of a shim tile but addresses a buffer".to_owned())
            }
            (DmaAddress::Buffer(buffer, offset), _) => match self.launch.buffers.get(buffer.0 as usize) {
                None => Some(format!("names buffer b{}, which is not declared", buffer.0)),
                Some(of) if of.tile != descriptor.tile => {
                    Some(format!("names buffer {} of tile {}, which it cannot access", of.name, of.tile))
                }
                Some(of) => (u64::from(offset).saturating_add(reach) > u64::from(of.bytes)
                    || offset % 4 != 0)
                    .then(|| {
                        format!(
                            "ends at byte {} of {}, which has {} bytes",
                            u64::from(offset) + reach,
                            of.name,
                            of.bytes
                        )
                    }),
            },
            (DmaAddress::Argument(argument, offset), TileKind::Shim) => {
                match self.arguments.get(argument as usize) {
                    None => Some(format!("names argument a{argument}, which the program does not have")),
                    Some(of) => (offset.saturating_add(reach) > of.bytes || offset % 4 != 0).then(|| {
                        format!(
                            "ends at byte {} of {}, which has {} bytes",
                            offset.saturating_add(reach),
                            of.name,
                            of.bytes
                        )
                    }),
                }
            }
            (DmaAddress::Argument(..), _) => Some("accesses DRAM, which only shim tiles can".to_owned()),
        }
    }

    fn tasks(&mut self) {
        for start in &self.launch.starts {
            self.task(start.channel, start.descriptor, start.repeats, &[0]);
        }
        let mut pushes = Vec::new();
        let mut sound = true;
        visit_pushes(&self.launch.commands, &mut Vec::new(), &mut |push: &Push, loops: &[u32]| {
            let ends = [vec![0; loops.len()], loops.iter().map(|count| count.saturating_sub(1)).collect()];
            let offsets: Vec<i64> = ends.iter().map(|counters| push.offset.at(counters)).collect();
            sound &= affine_is_small(&push.offset);
            pushes.push((push.channel, push.descriptor, push.repeats, offsets));
        });
        if !sound {
            self.fault(
                "run".to_owned(),
                "has an offset with a constant over 2^40, a factor over 2^27 or over 8 terms",
            );
            return;
        }
        for (channel, descriptor, repeats, offsets) in pushes {
            self.task(channel, descriptor, repeats, &offsets);
        }
    }

    fn task(&mut self, channel: Channel, id: u8, repeats: u32, offsets: &[i64]) {
        let what = format!("task of {channel}");
        let dma = self.dma(channel.tile);
        let (have, max, all) = (channels(dma, channel.direction), dma.max_repeat, dma.descriptors);
        if u32::from(channel.number) >= have {
            self.fault(what.clone(), format!("the tile has {have} such channels"));
        }
        if repeats == 0 || repeats > max {
            self.fault(what.clone(), format!("repeats {repeats} times; 1..={max} is allowed"));
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
                let mut moved = descriptor.clone();
                // A task with fewer runs does not reach the last step of the iteration.
                if let Some(iteration) = &mut moved.iteration {
                    iteration.size = iteration.size.min(repeats.max(1));
                }
                for &by in offsets {
                    let sum = i64::try_from(offset).ok().and_then(|offset| offset.checked_add(by));
                    let Some(sum) = sum.and_then(|sum| u64::try_from(sum).ok()) else {
                        self.fault(what.clone(), format!("offsets descriptor {id} to before its argument"));
                        continue;
                    };
                    moved.address = DmaAddress::Argument(argument, sum);
                    if let Some(sentence) = self.range_fault(&moved) {
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
                    self.fault(what.clone(), format!("uses {channel} in the wrong direction"));
                }
                if u32::from(channel.number) >= have || !on_grid(channel.tile, self.target) {
                    self.fault(what.clone(), format!("uses {channel}, which does not exist"));
                }
                // Cores could share a shim channel only if they never sent at once, which cannot be checked here.
                if let Some(other) = seen.insert(channel, index) {
                    self.fault(what, format!("uses {channel}, which route {other} uses too"));
                }
            }
        }
    }

    fn cores(&mut self) {
        let mut seen = BTreeSet::new();
        for core in &self.launch.cores {
            let what = format!("core {}", core.tile);
            if core.tile.kind() != TileKind::Compute || !on_grid(core.tile, self.target) {
                self.fault(what.clone(), "is not on a compute tile");
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

    fn instructions(
        &self,
        tile: Tile,
        body: &[CoreInstruction],
        loops: &mut Vec<u32>,
        found: &mut Vec<String>,
    ) {
        for instruction in body {
            match instruction {
                CoreInstruction::Loop { count, body } => {
                    loops.push(*count);
                    self.instructions(tile, body, loops, found);
                    loops.pop();
                }
                CoreInstruction::Acquire(change) | CoreInstruction::Release(change) => {
                    found.extend(self.lock_fault(*change, tile));
                }
                CoreInstruction::Call(call) => found.extend(self.call_fault(tile, call, loops)),
            }
        }
    }

    fn call_fault(&self, tile: Tile, call: &CoreCall, loops: &[u32]) -> Option<String> {
        let Some(entry) = kernel::entry(&call.entry) else {
            return Some(format!("calls {}, which is not a kernel entry", call.entry));
        };
        if entry.operands.len() != call.operands.len() {
            let (have, need) = (call.operands.len(), entry.operands.len());
            return Some(format!("calls {} with {have} operands; {need} are needed", call.entry));
        }
        let names = call.parameters.iter().map(|parameter| parameter.name.as_str());
        if !names.eq(entry.params.iter().map(|param| param.name)) {
            return Some(format!("calls {} with parameters other than {:?}", call.entry, entry.params));
        }
        let last: Vec<u32> = loops.iter().map(|count| count.saturating_sub(1)).collect();
        for counters in [vec![0; loops.len()], last] {
            let numbers = parameter_values(call, &counters);
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

    fn operand_fault(
        &self,
        tile: Tile,
        operand: &CallOperand,
        need: u64,
        counters: &[u32],
    ) -> Option<String> {
        if operand.slots.is_empty() || !affine_is_small(&operand.offset) || !affine_is_small(&operand.slot) {
            return Some(format!("the operand {operand} has no buffer or too large an offset"));
        }
        let offset = operand.offset.at(counters);
        for slot in &operand.slots {
            let Some(buffer) = self.launch.buffers.get(slot.0 as usize) else {
                return Some(format!("the operand {operand} names b{}, which is not declared", slot.0));
            };
            if !can_access(tile, buffer.tile) {
                return Some(format!(
                    "buffer {} is in tile {}, which the core cannot access",
                    buffer.name, buffer.tile
                ));
            }
            let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(need));
            if end.is_none_or(|end| end > u64::from(buffer.bytes)) {
                return Some(format!(
                    "{need} bytes at {offset} exceed buffer {} of {} bytes",
                    buffer.name, buffer.bytes
                ));
            }
        }
        None
    }
}

/// Parameter values of a call at these loop counters, floats as their bits. A
/// negative value becomes `u32::MAX`, which no entry accepts.
fn parameter_values(call: &CoreCall, counters: &[u32]) -> Vec<u32> {
    let number = |value: &ParameterValue| match value {
        ParameterValue::Int(value) => u32::try_from(value.at(counters)).unwrap_or(u32::MAX),
        ParameterValue::Float(value) => value.to_bits(),
    };
    call.parameters.iter().map(|parameter| number(&parameter.value)).collect()
}

fn channels(dma: &DmaSpec, direction: Direction) -> u32 {
    if direction == Direction::Mm2s { dma.channels_out } else { dma.channels_in }
}

/// Whether code or DMA of `tile` can access memory and locks of tile `of`: its
/// own, and a core also those of its neighbours to the north, south and west.
fn can_access(tile: Tile, of: Tile) -> bool {
    if tile.kind() != TileKind::Compute || of.kind() != TileKind::Compute {
        return tile == of;
    }
    let vertical = tile.column == of.column && tile.row.abs_diff(of.row) <= 1;
    vertical || (tile.row == of.row && of.column.checked_add(1) == Some(tile.column))
}

/// Whether no value of the number can overflow.
fn affine_is_small(affine: &Affine) -> bool {
    const MAX_CONSTANT: i64 = 1 << 40;
    let small = |value: i64| (-MAX_CONSTANT..=MAX_CONSTANT).contains(&value);
    affine.terms.len() <= super::text::MAX_LOOPS
        && small(affine.constant)
        && affine.terms.iter().all(|term| (-(1 << 27)..=1 << 27).contains(&term.factor))
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
