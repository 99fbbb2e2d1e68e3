//! A verifier of emitted modules: mlir-aie's public checks, and what its lowering and the device need.
//!
//! Each check names the function of mlir-aie that has it. Limits of tiles are the target's figures,
//! whose sources are AIETargetModel.h and AM020.

mod commands;
mod declared;
mod descriptors;
mod programs;

use std::collections::{BTreeMap, BTreeSet};

use self::declared::{Checked, Declared, within};
use super::mlir::{MlirDevice, MlirModule, MlirOp};
use crate::form::FormFault;
use crate::form::placed::on_grid;
use crate::form::schedule::check::streams::{distance, overloaded};
use crate::form::schedule::{Channel, Hop, Route, Tile, TileKind};
use crate::target::Target;

/// Returns every check that a module fails on this target.
pub fn faults(module: &MlirModule, target: &Target) -> Vec<FormFault> {
    module.devices.iter().flat_map(|device| DeviceCheck::faults(device, target)).collect()
}

/// A device being checked.
struct DeviceCheck<'a> {
    declared: Declared<'a>,
    seen: BTreeSet<(&'static str, Tile, i64)>,
    routes: BTreeMap<Channel, Vec<Hop>>,
    ends: BTreeSet<Channel>,
    sequences: usize,
}

impl<'a> DeviceCheck<'a> {
    fn faults(device: &'a MlirDevice, target: &'a Target) -> Vec<FormFault> {
        let declared = Declared::of(device, target);
        let (seen, ends) = (BTreeSet::new(), BTreeSet::new());
        let mut check = DeviceCheck { declared, seen, routes: BTreeMap::new(), ends, sequences: 0 };
        let part = |what: &str| format!("{}: {what}", device.symbol);
        let mut faults = Vec::new();
        for op in &device.ops {
            if let Err(sentence) = check.op(op) {
                faults.push(FormFault::new(part(op.name), sentence));
            }
        }
        let all = [check.overlap(), check.switches(), check.single_sequence()];
        faults.extend(
            all.into_iter().filter_map(Result::err).map(|sentence| FormFault::new(part("device"), sentence)),
        );
        faults
    }

    fn op(&mut self, op: &'a MlirOp) -> Checked {
        match op.name {
            "aie.tile" => self.tile(op),
            "aie.lock" => self.lock(op),
            "aie.buffer" => self.buffer(op),
            "aie.flow" => self.flow(op),
            "aie.cascade_flow" => self.cascade(op),
            "func.func" => Ok(()),
            "aie.mem" | "aie.memtile_dma" => {
                self.once("memory", op, 0)?;
                descriptors::memory(op, &self.declared)
            }
            "aie.core" => {
                self.once("core", op, 0)?;
                programs::core(op, &self.declared)
            }
            "aiex.runtime_sequence" => {
                self.sequences += 1;
                commands::sequence(op, &self.declared)
            }
            _ => Err("is not emitted".to_owned()),
        }
    }

    /// Checks that a tile has one thing of a kind.
    fn once(&mut self, what: &'static str, op: &MlirOp, number: i64) -> Checked {
        let tile = self.declared.tile(op, 0)?;
        self.seen
            .insert((what, tile, number))
            .then_some(())
            .ok_or_else(|| format!("is the second {what} of tile {tile}"))
    }

    /// `TileOp::verify`: a tile of the device; each is declared once.
    fn tile(&mut self, op: &MlirOp) -> Checked {
        let array = &self.declared.target.array;
        within(op, "col", 0..=i64::from(array.columns) - 1)?;
        within(op, "row", 0..=i64::from(array.memory_rows + array.compute_rows))?;
        let tile = op.result.and_then(|value| self.declared.tiles.get(&value)).ok_or("defines no tile")?;
        if !on_grid(*tile, self.declared.target) || !self.seen.insert(("tile", *tile, 0)) {
            return Err(format!("declares {tile} again"));
        }
        Ok(())
    }

    /// `LockOp::verify`: a number below `getNumLocks`; each is declared once (AIEAssignLockIDs.cpp), and begins
    /// with a value of six bits.
    fn lock(&mut self, op: &MlirOp) -> Checked {
        let dma = self.declared.dma(self.declared.tile(op, 0)?);
        let id = within(op, "lockID", 0..=i64::from(dma.locks) - 1)?;
        within(op, "init", 0..=dma.max_lock.into())?;
        self.once("lock", op, id)
    }

    /// `IsTileWithMemory` of `BufferOp`, and AIEAssignBuffers.cpp: a buffer is in the memory of its tile, above the
    /// stack of a core.
    fn buffer(&self, op: &MlirOp) -> Checked {
        let found = op.result.and_then(|value| self.declared.buffers.get(&value));
        let &(tile, address, bytes) = found.ok_or("has no tile, no address or no size")?;
        let target = self.declared.target;
        let memory = match tile.kind() {
            TileKind::Shim => return Err(format!("is in tile {tile}, which has no memory")),
            TileKind::Memory => &target.memory,
            TileKind::Compute => &target.compute,
        };
        let (first, last) = (i64::from(memory.reserved), i64::from(memory.bytes));
        if address % 4 != 0 || address < first || bytes == 0 || address > last || bytes > last - address {
            return Err(format!(
                "has {bytes} bytes at {address}; whole words in {first}..{last} are allowed"
            ));
        }
        Ok(())
    }

    /// AIEAssignBuffers.cpp: no two buffers of a tile overlap.
    fn overlap(&self) -> Checked {
        let mut buffers: Vec<_> = self.declared.buffers.values().copied().collect();
        buffers.sort_unstable();
        let overlaps = |pair: &&[(Tile, i64, i64)]| {
            pair[0].0 == pair[1].0 && pair[0].1.saturating_add(pair[0].2) > pair[1].1
        };
        match buffers.windows(2).find(overlaps) {
            None => Ok(()),
            Some(pair) => Err(format!("has two buffers at {} of tile {}", pair[1].1, pair[1].0)),
        }
    }

    /// A flow connects channels that exist, and a channel receives one (AIEPathFinder.cpp).
    fn flow(&mut self, op: &MlirOp) -> Checked {
        let (from, to) = self.declared.flow(op)?;
        if !self.ends.insert(to) {
            return Err(format!("is the second flow to {to}"));
        }
        let hop = Hop { channel: to, hops: distance(from.tile, to.tile) };
        self.routes.entry(from).or_default().push(hop);
        Ok(())
    }

    /// The ports of switches: AIETargetModel.cpp, `getNumSourceSwitchboxConnections` and
    /// `getNumDestSwitchboxConnections`, for paths along the column first, then along the row.
    fn switches(&self) -> Checked {
        let routes: Vec<Route> =
            self.routes.iter().map(|(from, to)| Route { from: *from, to: to.clone() }).collect();
        match overloaded(&routes, self.declared.target).into_iter().next() {
            None => Ok(()),
            Some((tile, sentence)) => Err(format!("has a switch of tile {tile}: {sentence}")),
        }
    }

    /// `CascadeFlowOp::verify`: from a core to that in the south or the east; a core has one each way.
    fn cascade(&mut self, op: &MlirOp) -> Checked {
        let (from, to) = (self.declared.tile(op, 0)?, self.declared.tile(op, 1)?);
        let south = from.column == to.column && from.row == to.row + 1;
        let east = from.row == to.row && from.column + 1 == to.column;
        if from.kind() != TileKind::Compute || to.kind() != TileKind::Compute || !(south || east) {
            return Err(format!("leads from {from} to {to}, not to the core in the south or east"));
        }
        if !self.seen.insert(("cascade from", from, 0)) || !self.seen.insert(("cascade to", to, 0)) {
            return Err(format!("is the second from {from} or to {to}"));
        }
        Ok(())
    }

    fn single_sequence(&self) -> Checked {
        let count = self.sequences;
        if count == 1 { Ok(()) } else { Err(format!("has {count} sequences; one is needed")) }
    }
}
