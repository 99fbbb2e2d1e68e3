//! The registers that resident launches leave on the array: a launch writes only those that hold
//! another value.

use std::collections::{BTreeSet, HashMap};

use super::time::Cycle;
use crate::form::schedule::Tile;
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
