//! A launch prepared for execution: ids resolved to indices, loops flattened,
//! descriptors reduced to runs of contiguous words.

use std::collections::{BTreeSet, HashMap};

use girih_tensor::{Error, Result};

use super::held::{self, ResidentRegisters};
use crate::form::schedule as form;
use crate::form::schedule::registers::stride_fault;
use crate::form::schedule::{Affine, Argument, Channel, Direction, ParameterValue, Schedule, Tile, TileKind};
use crate::kernel::{self, ENTRIES, KernelTimes, ParamKind};
use crate::target::Target;

/// Index of a lock of the launch.
pub(super) type LockIndex = u32;
/// Index of a channel in use.
pub(super) type ChannelIndex = u32;

/// A schedule prepared for one array.
#[derive(Debug)]
pub struct PreparedSchedule {
    pub(super) name: String,
    pub(super) arguments: Vec<Argument>,
    pub(super) plans: Vec<LaunchPlan>,
}

/// One launch.
#[derive(Debug)]
pub(super) struct LaunchPlan {
    pub name: String,
    /// Equal for launches with the same configuration of the array.
    pub configuration: u64,
    /// Equal for launches that take the same time.
    pub identity: u64,
    /// The registers of a resident launch; none of others.
    pub registers: Option<ResidentRegisters>,
    /// Tiles that the launch configures.
    pub tiles: usize,
    /// Bytes of the programs of all cores.
    pub program_bytes: f64,
    pub locks: Vec<form::TileLock>,
    pub buffers: Vec<form::Buffer>,
    pub descriptors: Vec<DescriptorPlan>,
    pub channels: Vec<ChannelPlan>,
    pub routes: Vec<RoutePlan>,
    pub cores: Vec<CorePlan>,
    pub calls: Vec<CallPlan>,
    pub starts: Vec<(ChannelIndex, TaskPlan)>,
    pub commands: Vec<ControlOp>,
}

/// A descriptor with its words as runs.
#[derive(Debug)]
pub(super) struct DescriptorPlan {
    pub id: u8,
    pub place: form::DmaAddress,
    /// The number of words that one pass moves.
    pub words: u64,
    /// The order in which they move.
    pub order: WordRuns,
    /// The same words in ascending order; none if a pass moves a word twice.
    pub ascending: Option<WordRuns>,
    /// The words of a pass, each once if that is simple.
    pub distinct: WordRuns,
    /// The tile that it belongs to.
    pub tile: Tile,
    /// Size and stride of the dimension that advances once per pass.
    pub iteration: Option<(u64, u64)>,
    pub acquire: Option<(LockIndex, u32)>,
    pub release: Option<(LockIndex, u32)>,
    pub next: Option<u32>,
}

/// An order of words, as runs of contiguous words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WordRuns {
    /// Contiguous words: the innermost dimension.
    pub run: u64,
    /// The outer dimensions, innermost first: size, and stride in words.
    outer: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct ChannelPlan {
    pub channel: Channel,
    pub route: u32,
    /// The capacity of its queue, in tasks.
    pub queue: usize,
    /// Cycles before the first word if the channel was idle.
    pub latency: u64,
}

#[derive(Debug)]
pub(super) struct RoutePlan {
    pub from: ChannelIndex,
    pub to: Vec<ChannelIndex>,
    /// Switches on the way to the farthest end.
    pub hops: u64,
}

/// A task of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPlan {
    pub descriptor: u32,
    pub repeats: u32,
    pub token: bool,
    /// Bytes added to the addresses of its descriptors.
    pub offset: i64,
    /// Whether the command processor pushed it, so that it must end.
    pub pushed: bool,
}

#[derive(Debug)]
pub(super) struct CorePlan {
    pub tile: Tile,
    pub code: Vec<CoreOp>,
    /// The cores at the other ends of the cascade links.
    pub sends_to: Option<u32>,
    pub receives_from: Option<u32>,
}

/// One step of a core.
#[derive(Clone, Copy, Debug)]
pub(super) enum CoreOp {
    /// Begins a loop that ends with the [`CoreOp::Repeat`] at `end`.
    Enter {
        count: u32,
        end: u32,
    },
    /// Continues after the [`CoreOp::Enter`] at `start`, or leaves the loop.
    Repeat {
        start: u32,
    },
    Acquire(LockIndex, u32),
    Release(LockIndex, u32),
    Call(u32),
}

/// One step of the command processor.
#[derive(Clone, Debug)]
pub(super) enum ControlOp {
    Enter {
        count: u32,
        end: u32,
    },
    Repeat {
        start: u32,
    },
    Push(ChannelIndex, TaskPlan, Affine),
    /// Takes a token. If another wait of the same command follows, only that one takes time.
    Wait {
        channel: ChannelIndex,
        is_last: bool,
    },
}

#[derive(Debug)]
pub(super) struct CallPlan {
    /// Index into [`ENTRIES`].
    pub entry: usize,
    pub operands: Vec<form::CallOperand>,
    pub numbers: Vec<ParameterValue>,
    /// The parameter values, if no loop changes them.
    pub constant: Option<Vec<u32>>,
    /// The bytes of each operand, if no loop changes them.
    pub bytes: Option<Vec<u64>>,
}

impl LaunchPlan {
    /// Resolves a launch.
    ///
    /// # Errors
    /// When an id does not exist, when a channel has two routes or none, or
    /// when a call does not match its entry. A checked schedule has no such
    /// fault.
    pub fn new(
        schedule: &Schedule,
        launch: &form::Launch,
        target: &Target,
        table: &KernelTimes,
    ) -> Result<LaunchPlan> {
        let rows = 1 + target.array.memory_rows + target.array.compute_rows;
        for buffer in &launch.buffers {
            let form::Buffer { name, tile, address, bytes } = buffer;
            let size = match tile.kind() {
                TileKind::Shim => 0,
                TileKind::Memory => target.memory.bytes,
                TileKind::Compute => target.compute.bytes,
            };
            let there = u32::from(tile.column) < target.array.columns && u32::from(tile.row) < rows;
            if !there || address.checked_add(*bytes).is_none_or(|end| end > size) {
                let (launch, target) = (&launch.name, &target.name);
                return Err(Error::new(format!(
                    "launch {launch}: {name} does not lie in tile {tile} of {target}"
                )));
            }
        }
        let mut planner = LaunchPlanner { launch, target, table, channels: Vec::new(), calls: Vec::new() };
        let routes = planner.routes()?;
        let descriptors = planner.descriptors(schedule)?;
        let cores = planner.cores()?;
        let starts = launch.starts.iter().map(|start| {
            let descriptor = planner.descriptor(start.channel.tile, start.descriptor)?;
            let task =
                TaskPlan { descriptor, repeats: start.repeats, token: false, offset: 0, pushed: false };
            Ok((planner.channel(start.channel)?, task))
        });
        let starts = starts.collect::<Result<Vec<_>>>()?;
        let mut commands = Vec::new();
        planner.commands(&launch.commands, &mut commands)?;
        if launch.resident {
            planner.join_waits(&mut commands);
        }
        let mut tiles: Vec<Tile> = planner.channels.iter().map(|plan| plan.channel.tile).collect();
        tiles.extend(launch.cores.iter().map(|core| core.tile));
        tiles.sort_unstable();
        tiles.dedup();
        let program_bytes: Vec<f64> = cores.iter().map(|core| planner.program_bytes(core)).collect();
        Ok(LaunchPlan {
            name: launch.name.clone(),
            configuration: configuration(launch),
            identity: digest(launch),
            registers: launch.resident.then(|| held::registers(launch, &program_bytes)),
            tiles: tiles.len(),
            program_bytes: program_bytes.iter().sum(),
            locks: launch.locks.clone(),
            buffers: launch.buffers.clone(),
            descriptors,
            channels: planner.channels,
            routes,
            cores,
            calls: planner.calls,
            starts,
            commands,
        })
    }

    /// Whether cores and channels access memory and locks of their own tile only.
    pub fn is_within_tiles(&self) -> bool {
        self.cores.iter().all(|core| core.code.iter().all(|op| self.is_within(core.tile, op)))
            && self.descriptors.iter().all(|one| {
                let locks = one.acquire.iter().chain(&one.release);
                let is_near = match one.place {
                    form::DmaAddress::Buffer(buffer, _) => self.buffers[buffer.0 as usize].tile == one.tile,
                    form::DmaAddress::Argument(..) => one.tile.kind() == TileKind::Shim,
                };
                is_near && locks.into_iter().all(|(lock, _)| self.locks[*lock as usize].tile == one.tile)
            })
    }

    fn is_within(&self, tile: Tile, op: &CoreOp) -> bool {
        match *op {
            CoreOp::Acquire(lock, _) | CoreOp::Release(lock, _) => self.locks[lock as usize].tile == tile,
            CoreOp::Call(call) => {
                let mut slots = self.calls[call as usize].operands.iter().flat_map(|operand| &operand.slots);
                slots.all(|slot| self.buffers[slot.0 as usize].tile == tile)
            }
            CoreOp::Enter { .. } | CoreOp::Repeat { .. } => true,
        }
    }
}

/// Returns a number that is equal for launches with the same configuration. The
/// offset of a transfer within an argument is excluded, because a push writes
/// it.
fn configuration(launch: &form::Launch) -> u64 {
    let mut launch = form::Launch { name: String::new(), commands: Vec::new(), ..launch.clone() };
    for descriptor in &mut launch.descriptors {
        if let form::DmaAddress::Argument(_, offset) = &mut descriptor.address {
            *offset = 0;
        }
    }
    digest(&launch)
}

/// Returns a number that is equal for equal launches.
fn digest(launch: &form::Launch) -> u64 {
    held::hash(&launch.to_string())
}

struct LaunchPlanner<'a> {
    launch: &'a form::Launch,
    target: &'a Target,
    table: &'a KernelTimes,
    channels: Vec<ChannelPlan>,
    calls: Vec<CallPlan>,
}

impl LaunchPlanner<'_> {
    fn fault(&self, text: impl std::fmt::Display) -> Error {
        Error::new(format!("launch {}: {text}", self.launch.name))
    }

    fn routes(&mut self) -> Result<Vec<RoutePlan>> {
        let mut routes = Vec::new();
        for (number, route) in self.launch.routes.iter().enumerate() {
            let from = self.open(route.from, number, Direction::Mm2s)?;
            let mut to = Vec::new();
            for hop in &route.to {
                to.push(self.open(hop.channel, number, Direction::S2mm)?);
            }
            let hops = route.to.iter().map(|hop| u64::from(hop.hops)).max().unwrap_or(0);
            routes.push(RoutePlan { from, to, hops });
        }
        Ok(routes)
    }

    fn open(&mut self, channel: Channel, route: usize, way: Direction) -> Result<ChannelIndex> {
        if channel.direction != way {
            return Err(self.fault(format!("channel {channel} is at the wrong end of a route")));
        }
        if self.channels.iter().any(|plan| plan.channel == channel) {
            return Err(self.fault(format!("channel {channel} has two routes")));
        }
        let dram = &self.target.dram;
        let (dma, latency) = match (channel.tile.kind(), way) {
            (TileKind::Shim, Direction::Mm2s) => (&self.target.shim.dma, dram.read_cycles),
            (TileKind::Shim, Direction::S2mm) => (&self.target.shim.dma, dram.write_cycles),
            (TileKind::Memory, _) => (&self.target.memory.dma, 0),
            (TileKind::Compute, _) => (&self.target.compute.dma, 0),
        };
        let (queue, latency) = (dma.queue as usize, u64::from(latency));
        self.channels.push(ChannelPlan { channel, route: route as u32, queue, latency });
        Ok(self.channels.len() as u32 - 1)
    }

    fn channel(&self, channel: Channel) -> Result<ChannelIndex> {
        let at = self.channels.iter().position(|plan| plan.channel == channel);
        at.map(|at| at as u32)
            .ok_or_else(|| self.fault(format!("channel {channel} is given a task but has no route")))
    }

    fn descriptor(&self, tile: Tile, id: u8) -> Result<u32> {
        let found = self.launch.descriptors.iter().position(|one| one.tile == tile && one.id == id);
        found.map(|at| at as u32).ok_or_else(|| self.fault(format!("tile {tile} has no descriptor {id}")))
    }

    fn step(&self, step: form::LockChange) -> Result<(LockIndex, u32)> {
        if step.lock.0 as usize >= self.launch.locks.len() {
            return Err(self.fault(format!("lock l{} does not exist", step.lock.0)));
        }
        Ok((step.lock.0, u32::from(step.value)))
    }

    fn descriptors(&self, schedule: &Schedule) -> Result<Vec<DescriptorPlan>> {
        let ids: HashMap<(Tile, u8), u32> =
            (0..).zip(&self.launch.descriptors).map(|(at, one)| ((one.tile, one.id), at)).collect();
        let mut all = Vec::new();
        for one in &self.launch.descriptors {
            let known = match one.address {
                form::DmaAddress::Buffer(buffer, _) => (buffer.0 as usize) < self.launch.buffers.len(),
                form::DmaAddress::Argument(argument, _) => (argument as usize) < schedule.arguments.len(),
            };
            if !known || one.dims.is_empty() {
                return Err(self.fault(format!(
                    "descriptor {} of tile {} names no buffer or argument, or no words",
                    one.id, one.tile
                )));
            }
            let next = match one.next.map(|id| ids.get(&(one.tile, id))) {
                Some(None) => {
                    return Err(self.fault(format!(
                        "descriptor {} of tile {} names a next one that does not exist",
                        one.id, one.tile
                    )));
                }
                found => found.flatten().copied(),
            };
            if let Some(sentence) = stride_fault(&one.dims, one.iteration) {
                return Err(self.fault(format!("descriptor {} of tile {}: {sentence}", one.id, one.tile)));
            }
            all.push(DescriptorPlan {
                id: one.id,
                place: one.address,
                words: one.words(),
                order: WordRuns::new(&one.dims),
                ascending: WordRuns::ascending(&one.dims),
                distinct: WordRuns::distinct(&one.dims),
                tile: one.tile,
                iteration: one.iteration.map(|dim| (u64::from(dim.size), u64::from(dim.stride))),
                acquire: one.acquire.map(|step| self.step(step)).transpose()?,
                release: one.release.map(|step| self.step(step)).transpose()?,
                next,
            });
        }
        Ok(all)
    }

    fn cores(&mut self) -> Result<Vec<CorePlan>> {
        let launch = self.launch;
        let at = |tile: Tile| launch.cores.iter().position(|core| core.tile == tile).map(|at| at as u32);
        let mut cores = Vec::new();
        for core in &launch.cores {
            let mut code = Vec::new();
            self.instructions(&core.program, &mut code)?;
            let sends = launch.cascades.iter().find(|link| link.from == core.tile);
            let receives = launch.cascades.iter().find(|link| link.to == core.tile);
            cores.push(CorePlan {
                tile: core.tile,
                code,
                sends_to: sends.and_then(|link| at(link.to)),
                receives_from: receives.and_then(|link| at(link.from)),
            });
        }
        Ok(cores)
    }

    fn instructions(&mut self, body: &[form::CoreInstruction], code: &mut Vec<CoreOp>) -> Result<()> {
        for instruction in body {
            match instruction {
                form::CoreInstruction::Loop { count, body } => {
                    let start = code.len();
                    code.push(CoreOp::Enter { count: *count, end: 0 });
                    self.instructions(body, code)?;
                    code[start] = CoreOp::Enter { count: *count, end: code.len() as u32 };
                    code.push(CoreOp::Repeat { start: start as u32 });
                }
                form::CoreInstruction::Acquire(step) => {
                    let (lock, value) = self.step(*step)?;
                    code.push(CoreOp::Acquire(lock, value));
                }
                form::CoreInstruction::Release(step) => {
                    let (lock, value) = self.step(*step)?;
                    code.push(CoreOp::Release(lock, value));
                }
                form::CoreInstruction::Call(call) => {
                    let plan = self.call(call)?;
                    code.push(CoreOp::Call(self.calls.len() as u32));
                    self.calls.push(plan);
                }
            }
        }
        Ok(())
    }

    fn call(&self, call: &form::CoreCall) -> Result<CallPlan> {
        let refuse = |text: String| Err(self.fault(format!("call of {}: {text}", call.entry)));
        let Some(at) = ENTRIES.iter().position(|entry| entry.name == call.entry) else {
            return refuse("no kernel has this name".to_owned());
        };
        let entry = &ENTRIES[at];
        if !self.table.knows(at) {
            return refuse(format!("{} cores do not have it", self.target.core));
        }
        if call.operands.len() != entry.operands.len() {
            return refuse(format!(
                "{} operands given, {} needed",
                call.operands.len(),
                entry.operands.len()
            ));
        }
        let slots = call.operands.iter().flat_map(|operand| &operand.slots);
        if slots.clone().any(|slot| slot.0 as usize >= self.launch.buffers.len())
            || call.operands.iter().any(|operand| operand.slots.is_empty())
        {
            return refuse("an operand has no buffer".to_owned());
        }
        let names = entry.params.iter().map(|param| param.name);
        if !names.eq(call.parameters.iter().map(|parameter| parameter.name.as_str())) {
            return refuse(format!("its parameters are not {:?}", entry.params));
        }
        let numbers: Vec<ParameterValue> =
            call.parameters.iter().map(|parameter| parameter.value.clone()).collect();
        for (param, number) in entry.params.iter().zip(&numbers) {
            if (param.kind == ParamKind::Real) != matches!(number, ParameterValue::Float(_)) {
                return refuse(format!("{} has the wrong kind of number", param.name));
            }
        }
        let fixed = |number: &ParameterValue| match number {
            ParameterValue::Int(affine) => affine.terms.is_empty(),
            ParameterValue::Float(_) => true,
        };
        let mut constant = None;
        if numbers.iter().all(fixed) {
            let values = values(entry, &numbers, &[]).map_err(|error| self.fault(error))?;
            entry.check(&values).map_err(|error| self.fault(error))?;
            constant = Some(values);
        }
        let bytes = constant.as_ref().map(|numbers| entry.bytes(numbers));
        Ok(CallPlan { entry: at, operands: call.operands.clone(), numbers, constant, bytes })
    }

    /// Bytes of a core's program: the fixed part, and each kernel once.
    fn program_bytes(&self, core: &CorePlan) -> f64 {
        let called = core.code.iter().filter_map(|op| match op {
            CoreOp::Call(call) => Some(self.calls[*call as usize].entry),
            _ => None,
        });
        let entries: BTreeSet<usize> = called.collect();
        let kernels: f64 = entries.into_iter().map(|entry| self.table.program_bytes(entry)).sum();
        f64::from(self.target.core_unit.program_bytes) + kernels
    }

    fn commands(&self, body: &[form::ProcessorCommand], orders: &mut Vec<ControlOp>) -> Result<()> {
        for command in body {
            match command {
                form::ProcessorCommand::Loop { count, body } => {
                    let start = orders.len();
                    orders.push(ControlOp::Enter { count: *count, end: 0 });
                    self.commands(body, orders)?;
                    orders[start] = ControlOp::Enter { count: *count, end: orders.len() as u32 };
                    orders.push(ControlOp::Repeat { start: start as u32 });
                }
                form::ProcessorCommand::Push(push) => {
                    let task = TaskPlan {
                        descriptor: self.descriptor(push.channel.tile, push.descriptor)?,
                        repeats: push.repeats,
                        token: push.token,
                        offset: 0,
                        pushed: true,
                    };
                    orders.push(ControlOp::Push(self.channel(push.channel)?, task, push.offset.clone()));
                }
                form::ProcessorCommand::Wait(channel) => {
                    orders.push(ControlOp::Wait { channel: self.channel(*channel)?, is_last: true })
                }
            }
        }
        Ok(())
    }
}

impl LaunchPlanner<'_> {
    /// Joins waits for the same channel of neighbouring columns: one command waits for them (mlir-aie,
    /// `aiex.npu.sync` with `column_num`).
    fn join_waits(&self, commands: &mut [ControlOp]) {
        let column_after = |channel: u32| {
            let Channel { tile, direction, number } = self.channels[channel as usize].channel;
            Tile { column: tile.column + 1, ..tile }.channel(direction, number)
        };
        for at in 1..commands.len() {
            let [ControlOp::Wait { channel, is_last }, ControlOp::Wait { channel: next, .. }] =
                &mut commands[at - 1..=at]
            else {
                continue;
            };
            *is_last = column_after(*channel) != self.channels[*next as usize].channel;
        }
    }
}

/// The parameter values of a call at these loop counters.
///
/// # Errors
/// When a value is negative or exceeds `u32::MAX`.
pub(super) fn values(
    entry: &kernel::KernelEntry,
    numbers: &[ParameterValue],
    counters: &[u32],
) -> Result<Vec<u32>> {
    let value = |(param, number): (&kernel::Param, &ParameterValue)| match number {
        ParameterValue::Float(value) => Ok(value.to_bits()),
        ParameterValue::Int(affine) => {
            let value = affine.at(counters);
            u32::try_from(value).map_err(|_| {
                Error::new(format!(
                    "kernel {}: {} is {value}: it must lie in 0..={}",
                    entry.name,
                    param.name,
                    u32::MAX
                ))
            })
        }
    };
    entry.params.iter().zip(numbers).map(value).collect()
}

impl WordRuns {
    /// The words of these dimensions, outermost first. Dimensions that only
    /// continue a run are merged into it.
    fn new(dims: &[form::Dim]) -> WordRuns {
        let (mut run, mut outer) = (1u64, Vec::new());
        for dim in dims.iter().rev().filter(|dim| dim.size != 1) {
            if outer.is_empty() && u64::from(dim.stride) == run {
                run = run.saturating_mul(u64::from(dim.size));
            } else {
                outer.push((u64::from(dim.size), u64::from(dim.stride)));
            }
        }
        WordRuns { run, outer }
    }

    /// The same words in ascending order, with larger strides outside. Returns
    /// none unless each stride exceeds the extent within it, so that no word
    /// appears twice.
    fn ascending(dims: &[form::Dim]) -> Option<WordRuns> {
        let mut sorted: Vec<form::Dim> = dims.iter().filter(|dim| dim.size != 1).copied().collect();
        sorted.sort_by_key(|dim| std::cmp::Reverse(dim.stride));
        let mut extent = 1u64;
        for dim in sorted.iter().rev() {
            let (size, stride) = (u64::from(dim.size), u64::from(dim.stride));
            if stride < extent || size == 0 {
                return None;
            }
            extent = extent.checked_add(stride.checked_mul(size - 1)?)?;
        }
        Some(WordRuns::new(&sorted))
    }

    /// The words of these dimensions without repeats of stride 0: in ascending order, or if others
    /// overlap, in their order.
    fn distinct(dims: &[form::Dim]) -> WordRuns {
        let moves: Vec<form::Dim> = dims.iter().filter(|dim| dim.stride != 0).copied().collect();
        WordRuns::ascending(&moves).unwrap_or_else(|| WordRuns::new(&moves))
    }

    /// The number of words, with repeats.
    pub fn words(&self) -> u64 {
        self.outer.iter().fold(self.run, |words, &(size, _)| words.saturating_mul(size))
    }

    /// The word behind the last one.
    pub fn extent(&self) -> u64 {
        let reach = |extent: u64, &(size, stride): &(u64, u64)| {
            extent.saturating_add(size.saturating_sub(1).saturating_mul(stride))
        };
        self.outer.iter().fold(self.run, reach)
    }

    /// Calls `piece` with the start and length of each contiguous piece among
    /// the `words` words after the first `done` of a pass; starts are relative
    /// to the descriptor.
    pub fn walk(&self, done: u64, words: u64, mut piece: impl FnMut(u64, u64)) {
        if self.outer.is_empty() && done + words <= self.run {
            if words > 0 {
                piece(done, words);
            }
            return;
        }
        let (mut index, mut within, mut left) = (done / self.run, done % self.run, words);
        let mut counters: Vec<u64> = Vec::with_capacity(self.outer.len());
        let mut start = 0;
        for &(size, stride) in &self.outer {
            counters.push(index % size);
            start += index % size * stride;
            index /= size;
        }
        while left > 0 {
            let many = (self.run - within).min(left);
            piece(start + within, many);
            (left, within) = (left - many, 0);
            for (counter, &(size, stride)) in counters.iter_mut().zip(&self.outer) {
                *counter += 1;
                start += stride;
                if *counter < size {
                    break;
                }
                start -= size * stride;
                *counter = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::schedule::Dim;

    fn dims(list: &[(u32, u32)]) -> Vec<Dim> {
        list.iter().map(|&(size, stride)| Dim { size, stride }).collect()
    }

    #[test]
    fn dimensions_that_continue_a_run_are_merged_into_it() {
        let runs = |list: &[(u32, u32)]| {
            let WordRuns { run, outer } = WordRuns::new(&dims(list));
            (run, outer)
        };
        assert_eq!(runs(&[(4, 8), (8, 1)]), (32, vec![]));
        assert_eq!(runs(&[(4, 16), (8, 1)]), (8, vec![(4, 16)]));
        assert_eq!(runs(&[(3, 1), (4, 16), (2, 32)]), (1, vec![(2, 32), (4, 16), (3, 1)]));
        assert_eq!(runs(&[(1, 99)]), (1, vec![]));
    }

    fn walked(runs: &WordRuns, done: u64, many: u64) -> Vec<u64> {
        let mut words = Vec::new();
        runs.walk(done, many, |word, count| words.extend(word..word + count));
        words
    }

    #[test]
    fn a_walk_visits_the_words_of_the_dimensions_in_order() {
        let runs = WordRuns::new(&dims(&[(2, 100), (3, 10), (4, 1)]));
        let all: Vec<u64> = (0..2)
            .flat_map(|a| (0..3).flat_map(move |b| (0..4).map(move |c| 100 * a + 10 * b + c)))
            .collect();
        for done in 0..24 {
            for many in 1..=24 - done {
                let want = &all[done as usize..(done + many) as usize];
                assert_eq!(walked(&runs, done, many), want, "{many} after {done}");
            }
        }
    }

    /// A matrix moved in blocks is one run when the order does not matter;
    /// repeated words have no ascending order.
    #[test]
    fn the_ascending_order_has_the_same_words() {
        let blocks = dims(&[(4, 64), (2, 4), (4, 16), (4, 1)]);
        let ascending = WordRuns::ascending(&blocks).unwrap();
        assert_eq!((WordRuns::new(&blocks).run, ascending.run), (4, 8));
        let mut sorted = walked(&WordRuns::new(&blocks), 0, 128);
        sorted.sort_unstable();
        assert_eq!(walked(&ascending, 0, 128), sorted);
        assert_eq!(WordRuns::ascending(&dims(&[(4, 8), (2, 4), (8, 1)])), None);
        assert_eq!(WordRuns::ascending(&dims(&[(2, 0), (8, 1)])), None);
        assert_eq!(
            WordRuns::ascending(&dims(&[(2, 4), (4, 8), (4, 1)])),
            Some(WordRuns { run: 32, outer: vec![] })
        );
    }
}
