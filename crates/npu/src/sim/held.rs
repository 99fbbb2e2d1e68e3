//! The registers that resident launches leave on the array: a launch writes only those that hold
//! another value.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::time::Cycle;
use crate::form::schedule as form;
use crate::form::schedule::check::streams::{SwitchPort, circuit_registers, overloaded_ports, switches};
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

/// The registers of a resident launch.
#[derive(Debug, Default)]
pub(super) struct ResidentRegisters {
    pub registers: Vec<Register>,
    /// The paths of circuits, by the value of their ends.
    paths: Vec<(u64, CircuitPath)>,
}

/// The registers of switches between the ends of a circuit.
#[derive(Clone, Debug)]
struct CircuitPath {
    /// The number of registers.
    registers: u32,
    /// Those that also change when the path is held, because other circuits have the same ends: the port
    /// that the source had before and the one that it has now, and the port of each destination.
    at_ends: u32,
    ports: Vec<SwitchPort>,
    /// The registers of its ends, by name.
    ends: Vec<u64>,
}

/// The cost of writing a register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RegisterCost {
    /// A share of configuring its tile.
    OfTile,
    /// The end of a circuit, which other circuits and what runs on the tile do not use. All ends of a circuit
    /// have one value; the command processor writes the registers of switches for it.
    OfCircuit,
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
    /// The paths of circuits that are held. Each has ports of its own.
    paths: HashMap<u64, CircuitPath>,
}

impl HeldConfiguration {
    /// Replaces everything by the configuration of a launch that is not resident. Returns whether
    /// the array already had it.
    pub fn replace(&mut self, configuration: u64) -> bool {
        self.registers.clear();
        self.paths.clear();
        self.whole.replace(configuration) == Some(configuration)
    }

    /// Writes the registers of a resident launch that hold other values, and returns the cycles
    /// that this takes. If it configures a tile, it also writes what the launches that follow in its
    /// program need and no launch before them uses, so that they share the fixed cost.
    pub fn write<'a>(
        &mut self,
        launch: &ResidentRegisters,
        following: impl Iterator<Item = &'a ResidentRegisters>,
        target: &Target,
    ) -> Cycle {
        self.whole = None;
        let mut written = Written::default();
        launch.registers.iter().for_each(|register| self.put(register, &mut written));
        let mut words = self.connect(launch, &mut written, target);
        let mut used = InUse::default();
        used.add(&launch.registers);
        for launch in following {
            if written.tiles.is_empty() {
                break;
            }
            for register in used.unused(&launch.registers) {
                self.put(register, &mut written);
            }
            words += self.connect(launch, &mut written, target);
            used.add(&launch.registers);
        }
        let control = &target.control;
        let fixed = if written.tiles.is_empty() { 0.0 } else { control.configure_us };
        let micros = fixed + control.configure_tile_us * written.tiles.len() as f64;
        let words = words + written.words;
        let nanos = control.configure_byte_ns * written.bytes + control.write_ns * f64::from(words);
        target.cycles(micros * 1e-6 + nanos * 1e-9)
    }

    /// Writes the circuits of a launch whose ends have just been written, and returns the number of registers. Paths
    /// stay while the switches have ports for all of them; otherwise only those of the launch do.
    fn connect(&mut self, launch: &ResidentRegisters, written: &mut Written, target: &Target) -> u32 {
        let mut words = 0;
        for (value, path) in launch.paths.iter().filter(|(value, _)| written.circuits.remove(value)) {
            let is_held = self.paths.insert(*value, path.clone()).is_some();
            words += if is_held { path.at_ends } else { path.registers };
        }
        let ports = self.paths.values().flat_map(|path| path.ports.iter().copied());
        if words > 0 && !overloaded_ports(ports, target).is_empty() {
            let own = |value: &u64| launch.paths.iter().any(|(own, _)| own == value);
            // The next launch with a removed circuit writes all of it.
            for (value, path) in self.paths.extract_if(|value, _| !own(value)) {
                for end in path.ends {
                    if self.registers.get(&end) == Some(&value) {
                        self.registers.remove(&end);
                    }
                }
            }
        }
        words
    }

    /// Writes a register if it holds another value.
    fn put(&mut self, register: &Register, written: &mut Written) {
        let is_held = self.registers.insert(register.name, register.value) == Some(register.value);
        match register.cost {
            RegisterCost::EachLaunch => written.words += 1,
            _ if is_held => {}
            RegisterCost::Word => written.words += 1,
            RegisterCost::OfTile => _ = written.tiles.insert(register.tile),
            RegisterCost::OfCircuit => _ = written.circuits.insert(register.value),
            RegisterCost::Program(program) => {
                written.tiles.insert(register.tile);
                written.bytes += program;
            }
        }
    }

    /// Forgets everything.
    pub fn forget(&mut self) {
        *self = HeldConfiguration::default();
    }
}

/// What is written before a launch.
#[derive(Default)]
struct Written {
    /// The tiles that are configured.
    tiles: BTreeSet<Tile>,
    /// The bytes of programs.
    bytes: f64,
    /// The circuits with an end that was written, by value.
    circuits: HashSet<u64>,
    /// The other writes of the command processor.
    words: u32,
}

/// What a sequence of launches uses.
#[derive(Default)]
struct InUse {
    /// The ends of circuits, by name.
    ends: HashSet<u64>,
    /// The tiles with other registers.
    tiles: BTreeSet<Tile>,
}

impl InUse {
    fn add(&mut self, launch: &[Register]) {
        for register in launch {
            if register.cost == RegisterCost::OfCircuit {
                self.ends.insert(register.name);
            } else {
                self.tiles.insert(register.tile);
            }
        }
    }

    /// Returns the registers of a later launch that can be written before the sequence: whole
    /// circuits, and tiles on which nothing runs.
    fn unused<'r>(&self, launch: &'r [Register]) -> impl Iterator<Item = &'r Register> {
        let circuits = launch.iter().filter(|register| register.cost == RegisterCost::OfCircuit);
        let taken = circuits.filter(|register| self.ends.contains(&register.name));
        // The ends of a circuit have one value.
        let taken: HashSet<u64> = taken.map(|register| register.value).collect();
        launch.iter().filter(move |register| match register.cost {
            RegisterCost::OfCircuit => !taken.contains(&register.value),
            RegisterCost::OfTile | RegisterCost::Program(_) => !self.tiles.contains(&register.tile),
            RegisterCost::Word | RegisterCost::EachLaunch => false,
        })
    }
}

/// Returns the registers of a launch whose cores have programs of these sizes. Descriptors of shim
/// tiles are excluded, because each push writes them.
pub(super) fn registers(launch: &form::Launch, program_bytes: &[f64]) -> ResidentRegisters {
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
        for end in ends(route) {
            add(end_name(end), end.tile, format!("{route:?}"), RegisterCost::OfCircuit);
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
    let path = |route: &form::Route| {
        let at_ends = 2 + route.to.len() as u32;
        let ports = switches(route).into_iter().collect();
        let ends = ends(route).map(|end| hash(&end_name(end))).collect();
        (
            hash(&format!("{route:?}")),
            CircuitPath { registers: circuit_registers(route), at_ends, ports, ends },
        )
    };
    ResidentRegisters { registers, paths: launch.routes.iter().map(path).collect() }
}

/// The ends of a circuit: its source and its destinations.
fn ends(route: &form::Route) -> impl Iterator<Item = form::Channel> {
    std::iter::once(route.from).chain(route.to.iter().map(|hop| hop.channel))
}

/// The name of the register of a circuit's end.
fn end_name(end: form::Channel) -> String {
    format!("route {end}")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn register(name: u64, tile: Tile, value: u64, cost: RegisterCost) -> Register {
        Register { name, tile, value, cost }
    }

    /// Writes the registers of launches, one after another, and returns the microseconds of each.
    fn micros(launches: &[&[Register]]) -> Vec<f64> {
        let of = |registers: &&[Register]| {
            let circuits = || registers.iter().filter(|register| register.cost == RegisterCost::OfCircuit);
            let values: BTreeSet<u64> = circuits().map(|register| register.value).collect();
            // A circuit that leaves two switches, the first with as many streams as its value.
            let path = |value: u64| {
                let ports =
                    [vec![(Tile::new(0, 0), "north"); value as usize], vec![(Tile::new(0, 1), "north")]];
                let ends = circuits().filter(|one| one.value == value).map(|one| one.name).collect();
                (value, CircuitPath { registers: 6, at_ends: 3, ports: ports.concat(), ends })
            };
            let paths = values.into_iter().map(path).collect();
            ResidentRegisters { registers: registers.to_vec(), paths }
        };
        let launches: Vec<ResidentRegisters> = launches.iter().map(of).collect();
        let target = Target::named("xdna2-strix").unwrap();
        let mut held = HeldConfiguration::default();
        let write = |number: usize| {
            let following = launches[number + 1..].iter();
            target.seconds(held.write(&launches[number], following, &target)) * 1e6
        };
        (0..launches.len()).map(write).collect()
    }

    fn assert_micros(launches: &[&[Register]], want: &[f64]) {
        let found = micros(launches);
        let is_near = |(found, want): (&f64, &f64)| (found - want).abs() < 0.01;
        assert!(found.len() == want.len() && found.iter().zip(want).all(is_near), "{found:?}, not {want:?}");
    }

    #[test]
    fn tiles_without_earlier_use_share_the_fixed_cost() {
        let control = Target::named("xdna2-strix").unwrap().control;
        let (fixed, tile) = (control.configure_us, control.configure_tile_us);
        let one = [register(0, Tile::new(0, 2), 5, RegisterCost::OfTile)];
        let other = [register(1, Tile::new(1, 2), 5, RegisterCost::OfTile)];
        let changed = [register(0, Tile::new(0, 2), 6, RegisterCost::OfTile)];
        assert_micros(&[&one, &other, &one], &[fixed + 2.0 * tile, 0.0, 0.0]);
        assert_micros(&[&one, &other, &changed], &[fixed + 2.0 * tile, 0.0, fixed + tile]);
        // Another register of a tile on which an earlier launch runs.
        let beside = [register(2, Tile::new(0, 2), 5, RegisterCost::OfTile)];
        assert_micros(&[&one, &beside], &[fixed + tile, fixed + tile]);
    }

    #[test]
    fn a_circuit_is_written_early_if_none_of_its_ends_is_used() {
        let control = Target::named("xdna2-strix").unwrap().control;
        let [left, right] = [0, 1].map(|column| Tile::new(column, 0));
        let words = |count: f64| control.write_ns * 1e-3 * count;
        let end = |name, tile, value| register(name, tile, value, RegisterCost::OfCircuit);
        let configured = control.configure_us + control.configure_tile_us;
        let first = [register(9, left, 5, RegisterCost::OfTile), end(0, left, 2)];
        // Its ends are other channels, of a tile that the first launch uses too.
        let apart = [end(1, left, 3), end(2, right, 3)];
        assert_micros(&[&first, &apart], &[configured + words(12.0), 0.0]);
        let joined = [end(0, left, 3), end(2, right, 3)];
        assert_micros(&[&first, &joined, &joined], &[configured + words(6.0), words(6.0), 0.0]);
        // Six ports lead north: both paths are held, and only the ends change.
        assert_micros(&[&first, &joined, &first], &[configured + words(6.0), words(6.0), words(3.0)]);
        let wide = [end(0, left, 5), end(2, right, 5)];
        assert_micros(&[&first, &wide, &first], &[configured + words(6.0), words(6.0), words(6.0)]);
        // Nobody wrote the ends of the first circuit since, but it made room for the other.
        let apart = [end(1, left, 5), end(2, right, 5)];
        assert_micros(&[&first, &apart, &first], &[configured + words(12.0), 0.0, words(6.0)]);
    }

    #[test]
    fn loop_counts_are_written_with_their_launch() {
        let control = Target::named("xdna2-strix").unwrap().control;
        let one = [register(0, Tile::new(0, 2), 5, RegisterCost::OfTile)];
        let count = [register(1, Tile::new(1, 2), 5, RegisterCost::Word)];
        let written = control.configure_us + control.configure_tile_us;
        assert_micros(&[&one, &count], &[written, control.write_ns * 1e-3]);
    }
}
