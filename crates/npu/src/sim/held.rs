//! The registers that resident launches leave on the array: a launch writes only those that hold
//! another value.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::time::Cycle;
use crate::form::schedule as form;
use crate::form::schedule::{Affine, Tile, TileKind};
use crate::target::Target;

/// A register of the array, or the program of a core, with the value that a launch needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register {
    /// A number for its name: equal for the same register.
    pub name: u64,
    /// Its tile.
    pub tile: Tile,
    /// A number that is equal for equal values.
    pub value: u64,
    pub cost: RegisterCost,
}

/// The cost of writing a register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RegisterCost {
    /// A share of configuring its tile.
    OfTile,
    /// As [`RegisterCost::OfTile`], and bytes of a program.
    Program(f64),
    /// One write of the command processor.
    Word,
    /// One write of the command processor before every launch: the start of a chain that does not
    /// come back to its first descriptor.
    EachLaunch,
}

/// What the array holds.
#[derive(Debug, Default)]
pub(super) struct HeldConfiguration {
    /// The configuration of a launch that is not resident.
    whole: Option<u64>,
    registers: HashMap<u64, u64>,
}

impl HeldConfiguration {
    /// Replaces everything by the configuration of a launch that is not resident. Returns whether
    /// the array already had it.
    pub fn replace(&mut self, configuration: u64) -> bool {
        self.registers.clear();
        self.whole.replace(configuration) == Some(configuration)
    }

    /// Writes the registers of a resident launch that hold other values, and returns the cycles
    /// that this takes.
    pub fn write(&mut self, registers: &[Register], target: &Target) -> Cycle {
        self.whole = None;
        let control = &target.control;
        let (mut tiles, mut bytes, mut words) = (BTreeSet::new(), 0.0, 0);
        for register in registers {
            let is_held = self.registers.insert(register.name, register.value) == Some(register.value);
            match register.cost {
                RegisterCost::EachLaunch => words += 1,
                _ if is_held => {}
                RegisterCost::Word => words += 1,
                RegisterCost::OfTile => _ = tiles.insert(register.tile),
                RegisterCost::Program(program) => {
                    tiles.insert(register.tile);
                    bytes += program;
                }
            }
        }
        let fixed = if tiles.is_empty() { 0.0 } else { control.configure_us };
        let micros = fixed + control.configure_tile_us * tiles.len() as f64;
        let nanos = control.configure_byte_ns * bytes + control.write_ns * f64::from(words);
        target.cycles(micros * 1e-6 + nanos * 1e-9)
    }

    /// Forgets everything.
    pub fn forget(&mut self) {
        *self = HeldConfiguration::default();
    }
}

/// Returns the registers of a launch whose cores have programs of these sizes. Descriptors of shim
/// tiles are excluded, because each push writes them.
pub(super) fn registers(launch: &form::Launch, program_bytes: &[f64]) -> Vec<Register> {
    let mut registers = Vec::new();
    let mut add = |name: String, tile: Tile, value: String, cost: RegisterCost| {
        let value = hash(&value);
        registers.push(Register { name: hash(&name), tile, value, cost });
    };
    let lock = |change: Option<form::LockChange>| change.map(|one| (lock_id(launch, one), one.value));
    for form::TileLock { tile, id, initial } in &launch.locks {
        add(format!("lock {tile} {id}"), *tile, initial.to_string(), RegisterCost::OfTile);
    }
    for one in launch.descriptors.iter().filter(|one| one.tile.kind() != TileKind::Shim) {
        let address = match one.address {
            form::DmaAddress::Buffer(buffer, offset) => {
                u64::from(address(launch, buffer)) + u64::from(offset)
            }
            form::DmaAddress::Argument(_, offset) => offset,
        };
        let changes = [lock(one.acquire), lock(one.release)];
        let value = format!("{address} {:?} {:?} {changes:?} {:?}", one.dims, one.iteration, one.next);
        add(format!("descriptor {} {}", one.tile, one.id), one.tile, value, RegisterCost::OfTile);
    }
    for start in &launch.starts {
        let again = if is_cycle(launch, start) { RegisterCost::OfTile } else { RegisterCost::EachLaunch };
        add(format!("start {}", start.channel), start.channel.tile, format!("{start:?}"), again);
    }
    for route in &launch.routes {
        let ends = std::iter::once(route.from).chain(route.to.iter().map(|hop| hop.channel));
        for end in ends {
            add(format!("route {end}"), end.tile, format!("{route:?}"), RegisterCost::OfTile);
        }
    }
    for cascade in &launch.cascades {
        add(format!("cascade {}", cascade.from), cascade.from, cascade.to.to_string(), RegisterCost::OfTile);
    }
    for (core, &bytes) in launch.cores.iter().zip(program_bytes) {
        let mut counts = Vec::new();
        let program = counted(launch, &core.program, &mut counts);
        let cost = RegisterCost::Program(bytes);
        add(format!("program {}", core.tile), core.tile, format!("{program:?}"), cost);
        for (number, count) in counts.iter().enumerate() {
            add(format!("count {} {number}", core.tile), core.tile, count.to_string(), RegisterCost::Word);
        }
    }
    registers
}

/// Whether the chain of a channel comes back to its first descriptor: it continues from launch to
/// launch.
fn is_cycle(launch: &form::Launch, start: &form::Start) -> bool {
    let next =
        |id: u8| launch.descriptors.iter().find(|one| one.tile == start.channel.tile && one.id == id)?.next;
    let mut at = next(start.descriptor);
    for _ in 0..=u8::MAX {
        match at {
            Some(id) if id == start.descriptor => return true,
            Some(id) => at = next(id),
            None => return false,
        }
    }
    false
}

/// Returns the program without its loop counts, which are added to `counts`, and without the
/// turns of buffers, which a core counts from launch to launch; buffers and locks are those of the tile.
fn counted(
    launch: &form::Launch,
    program: &[form::CoreInstruction],
    counts: &mut Vec<u32>,
) -> Vec<form::CoreInstruction> {
    let lock = |change: &form::LockChange| form::LockChange {
        lock: form::LockId(lock_id(launch, *change).into()),
        ..*change
    };
    let mut all = Vec::new();
    for instruction in program {
        all.push(match instruction {
            form::CoreInstruction::Loop { count, body } => {
                counts.push(*count);
                form::CoreInstruction::Loop { count: 0, body: counted(launch, body, counts) }
            }
            form::CoreInstruction::Acquire(change) => form::CoreInstruction::Acquire(lock(change)),
            form::CoreInstruction::Release(change) => form::CoreInstruction::Release(lock(change)),
            form::CoreInstruction::Call(call) => {
                let mut call = call.clone();
                for operand in &mut call.operands {
                    operand.slot = Affine::default();
                    for slot in &mut operand.slots {
                        *slot = form::BufferId(address(launch, *slot));
                    }
                }
                form::CoreInstruction::Call(call)
            }
        });
    }
    all
}

/// The number of a lock in its tile. Plans are made of checked launches, which have every lock.
fn lock_id(launch: &form::Launch, change: form::LockChange) -> u8 {
    launch.locks.get(change.lock.0 as usize).map_or(u8::MAX, |lock| lock.id)
}

/// The address of a buffer in its tile, as [`lock_id`].
fn address(launch: &form::Launch, buffer: form::BufferId) -> u32 {
    launch.buffers.get(buffer.0 as usize).map_or(u32::MAX, |buffer| buffer.address)
}

/// A number that is equal for equal texts.
pub(super) fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
