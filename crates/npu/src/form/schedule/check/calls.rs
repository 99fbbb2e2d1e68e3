//! The rules of cores:
//!
//! * cores are on compute tiles, one program each, which fits the program memory;
//! * calls name kernel entries that the cores have, with parameters and operands
//!   that fit, in memory that the core can access: its own, and that of its
//!   neighbours in the north, south and west;
//! * a core that sends or receives accumulators has a cascade link for it.

use std::collections::BTreeSet;

use super::{LaunchCheck, affine_is_small};
use crate::form::placed::on_grid;
use crate::form::schedule::text::MAX_LOOPS;
use crate::form::schedule::{
    Affine, CallOperand, Core, CoreCall, CoreInstruction, ParameterValue, Tile, TileKind,
};
use crate::kernel::{self, CascadeUse, KernelEntry, ParamKind};
use crate::target::Target;

impl LaunchCheck<'_> {
    pub(super) fn cores(&mut self) {
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
            sentences.extend(self.program_fault(core));
            for sentence in sentences {
                self.fault(what.clone(), sentence);
            }
        }
    }

    /// Returns the fault of the size of a program.
    fn program_fault(&self, core: &Core) -> Option<String> {
        let (need, have) = (program_bytes(&core.program, self.target), self.target.compute.program_bytes);
        (!core.program.is_empty() && need > f64::from(have))
            .then(|| format!("needs {need} bytes of program memory; it has {have}"))
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
                    found.extend(self.lock_fault(*change, |of| can_access(tile, of)));
                }
                CoreInstruction::Call(call) => {
                    let Some(entry) = kernel::entry(&call.entry) else {
                        found.push(format!("calls {}, which is not a kernel entry", call.entry));
                        continue;
                    };
                    found.extend(self.call_fault(tile, call, entry, loops));
                }
            }
        }
    }

    fn call_fault(&self, tile: Tile, call: &CoreCall, entry: &KernelEntry, loops: &[u32]) -> Option<String> {
        if kernel::program_bytes(&self.target.core, entry.name).is_none() {
            return Some(format!("calls {}, which {} cores do not have", call.entry, self.target.core));
        }
        if entry.operands.len() != call.operands.len() {
            let (have, need) = (call.operands.len(), entry.operands.len());
            return Some(format!("calls {} with {have} operands; {need} are needed", call.entry));
        }
        let names = call.parameters.iter().map(|parameter| parameter.name.as_str());
        if !names.eq(entry.params.iter().map(|param| param.name)) {
            let names: Vec<&str> = entry.params.iter().map(|param| param.name).collect();
            return Some(format!("calls {} with parameters other than {}", call.entry, names.join(", ")));
        }
        let is_real = |value: &ParameterValue| matches!(value, ParameterValue::Float(_));
        let mut numbers = entry.params.iter().zip(&call.parameters);
        if let Some((param, _)) =
            numbers.find(|(param, given)| (param.kind == ParamKind::Real) != is_real(&given.value))
        {
            return Some(format!("calls {}: {} has the wrong kind of number", call.entry, param.name));
        }
        if let Some(sentence) = self.link_fault(tile, entry.cascade) {
            return Some(format!("calls {}: {sentence}", call.entry));
        }
        let operand_fault = call.operands.iter().find_map(|operand| self.slots_fault(tile, operand));
        if operand_fault.is_some() {
            return operand_fault.map(|sentence| format!("calls {}: {sentence}", call.entry));
        }
        for counters in corners(call, loops) {
            let numbers = parameter_values(call, &counters);
            if let Err(error) = entry.check(&numbers) {
                return Some(error.to_string());
            }
            let sizes = entry.bytes(&numbers);
            let mut operands = call.operands.iter().zip(sizes);
            let fault = operands.find_map(|(operand, need)| self.extent_fault(operand, need, &counters));
            if fault.is_some() {
                return fault.map(|sentence| format!("calls {}: {sentence}", call.entry));
            }
        }
        None
    }

    /// Returns the fault of a call that uses the cascade without a link.
    fn link_fault(&self, tile: Tile, uses: CascadeUse) -> Option<String> {
        let mut links = self.launch.cascades.iter();
        let (found, need) = match uses {
            CascadeUse::None => return None,
            CascadeUse::Send => (links.any(|link| link.from == tile), "from"),
            CascadeUse::Receive => (links.any(|link| link.to == tile), "to"),
        };
        (!found).then(|| format!("no cascade leads {need} the core"))
    }

    /// Returns the fault of the buffers of an operand.
    fn slots_fault(&self, tile: Tile, operand: &CallOperand) -> Option<String> {
        if operand.slots.is_empty() || !affine_is_small(&operand.offset) || !affine_is_small(&operand.slot) {
            return Some(format!("the operand {operand} has no buffer or too large an offset"));
        }
        operand.slots.iter().find_map(|slot| match self.launch.buffers.get(slot.0 as usize) {
            None => Some(format!("the operand {operand} names b{}, which is not declared", slot.0)),
            Some(buffer) => (!can_access(tile, buffer.tile)).then(|| {
                format!("buffer {} is in tile {}, which the core cannot access", buffer.name, buffer.tile)
            }),
        })
    }

    /// Returns the fault of the bytes that an operand needs at these loop counters.
    fn extent_fault(&self, operand: &CallOperand, need: u64, counters: &[u32]) -> Option<String> {
        let offset = operand.offset.at(counters);
        let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(need));
        let buffers = operand.slots.iter().filter_map(|slot| self.launch.buffers.get(slot.0 as usize));
        let mut small = buffers.filter(|buffer| end.is_none_or(|end| end > u64::from(buffer.bytes)));
        small.next().map(|buffer| {
            format!("{need} bytes at {offset} exceed buffer {} of {} bytes", buffer.name, buffer.bytes)
        })
    }
}

/// Returns the bytes of a core's program: its own code, and each kernel once.
pub(crate) fn program_bytes(program: &[CoreInstruction], target: &Target) -> f64 {
    fn entries<'a>(body: &'a [CoreInstruction], found: &mut BTreeSet<&'a str>) {
        for instruction in body {
            match instruction {
                CoreInstruction::Loop { body, .. } => entries(body, found),
                CoreInstruction::Call(call) => drop(found.insert(&call.entry)),
                CoreInstruction::Acquire(_) | CoreInstruction::Release(_) => (),
            }
        }
    }
    let mut found = BTreeSet::new();
    entries(program, &mut found);
    let kernels = found.into_iter().filter_map(|entry| kernel::program_bytes(&target.core, entry));
    f64::from(target.core_unit.program_bytes) + kernels.sum::<f64>()
}

/// Returns the first and last counters of the loops that a call's numbers depend on, in every
/// combination; at most 2 to the power of [`MAX_LOOPS`].
fn corners(call: &CoreCall, loops: &[u32]) -> Vec<Vec<u32>> {
    let offsets = call.operands.iter().map(|operand| &operand.offset);
    let numbers = call.parameters.iter().filter_map(|parameter| match &parameter.value {
        ParameterValue::Int(value) => Some(value),
        ParameterValue::Float(_) => None,
    });
    let affines: Vec<&Affine> = offsets.chain(numbers).collect();
    let mut all = vec![vec![0; loops.len()]];
    for (depth, &count) in loops.iter().enumerate().take(MAX_LOOPS) {
        let is_used = |affine: &&Affine| affine.terms.iter().any(|term| usize::from(term.depth) == depth);
        if count > 1 && affines.iter().any(is_used) {
            let last = |mut corner: Vec<u32>| {
                corner[depth] = count - 1;
                corner
            };
            all.extend(all.clone().into_iter().map(last));
        }
    }
    all
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

/// Whether a core can access memory and locks of tile `of`: its own, and those of its
/// neighbours to the north, south and west.
pub(crate) fn can_access(tile: Tile, of: Tile) -> bool {
    if tile.kind() != TileKind::Compute || of.kind() != TileKind::Compute {
        return tile == of;
    }
    let vertical = tile.column == of.column && tile.row.abs_diff(of.row) <= 1;
    vertical || (tile.row == of.row && of.column.checked_add(1) == Some(tile.column))
}
