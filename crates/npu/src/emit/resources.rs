//! Tiles, locks and buffers of a launch as values.

use std::collections::{BTreeMap, BTreeSet};

use girih_tensor::{Error, Result};

use super::mlir::{MlirAttribute, MlirOp, MlirType, MlirValue};
use crate::form::schedule::{BufferId, Launch, LockChange, LockId, Tile};

/// The most characters of a buffer's own name in its symbol.
const NAME_CHARS: usize = 32;

/// `LockAction` of mlir-aie's AIEAttrs.td: waits for a value or more, and subtracts it.
pub(super) const ACQUIRE_GREATER_EQUAL: i64 = 2;

/// `LockAction` of AIEAttrs.td: adds a value.
pub(super) const RELEASE: i64 = 1;

/// Gives each value a number of its own.
#[derive(Default)]
pub(super) struct Numbering {
    next: u32,
}

impl Numbering {
    pub fn value(&mut self, of: MlirType) -> MlirValue {
        self.next += 1;
        MlirValue { number: self.next - 1, of }
    }
}

/// The values of a launch that stand for its tiles, locks and buffers.
pub(super) struct Resources {
    pub tiles: BTreeMap<Tile, MlirValue>,
    locks: Vec<MlirValue>,
    buffers: Vec<MlirValue>,
}

impl Resources {
    /// Declares all tiles, locks and buffers of a launch.
    ///
    /// # Errors
    /// When a buffer has no whole number of words.
    pub fn declared(launch: &Launch, numbering: &mut Numbering, ops: &mut Vec<MlirOp>) -> Result<Resources> {
        let mut tiles = BTreeMap::new();
        for tile in tiles_of(launch) {
            let value = numbering.value(MlirType::Index);
            let op = MlirOp::new("aie.tile").int("col", tile.column).int("row", tile.row);
            ops.push(op.defines(value));
            tiles.insert(tile, value);
        }
        let mut locks = Vec::new();
        for (index, lock) in launch.locks.iter().enumerate() {
            let value = numbering.value(MlirType::Index);
            let op = MlirOp::new("aie.lock").uses([tiles[&lock.tile]]);
            let op = op.int("lockID", lock.id).int("init", lock.initial);
            ops.push(op.with("sym_name", MlirAttribute::Text(format!("l{index}"))).defines(value));
            locks.push(value);
        }
        let mut buffers = Vec::new();
        for (index, buffer) in launch.buffers.iter().enumerate() {
            if !buffer.bytes.is_multiple_of(4) {
                let (name, bytes) = (&buffer.name, buffer.bytes);
                return Err(Error::new(format!("buffer {name} has {bytes} bytes; whole words are emitted")));
            }
            let value = numbering.value(MlirType::Words(u64::from(buffer.bytes / 4)));
            let symbol = MlirAttribute::Text(format!("b{index}_{}", symbol_text(&buffer.name)));
            let op = MlirOp::new("aie.buffer").uses([tiles[&buffer.tile]]).int("address", buffer.address);
            ops.push(op.with("sym_name", symbol).defines(value));
            buffers.push(value);
        }
        Ok(Resources { tiles, locks, buffers })
    }

    /// Returns a buffer.
    ///
    /// # Errors
    /// When it is not declared.
    pub fn buffer(&self, buffer: BufferId) -> Result<MlirValue> {
        let found = self.buffers.get(buffer.0 as usize).copied();
        found.ok_or_else(|| Error::new(format!("buffer b{} is not declared", buffer.0)))
    }

    /// Returns the operation of a change of a lock.
    ///
    /// # Errors
    /// When the lock is not declared.
    pub fn use_lock(&self, change: LockChange, action: i64) -> Result<MlirOp> {
        let op = MlirOp::new("aie.use_lock").uses([self.lock(change.lock)?]);
        Ok(op.int("action", action).int("value", change.value))
    }

    fn lock(&self, lock: LockId) -> Result<MlirValue> {
        let found = self.locks.get(lock.0 as usize).copied();
        found.ok_or_else(|| Error::new(format!("lock l{} is not declared", lock.0)))
    }
}

/// Returns all tiles that a launch uses.
fn tiles_of(launch: &Launch) -> BTreeSet<Tile> {
    let buffers = launch.buffers.iter().map(|buffer| buffer.tile);
    let locks = launch.locks.iter().map(|lock| lock.tile);
    let descriptors = launch.descriptors.iter().map(|descriptor| descriptor.tile);
    let ends = launch
        .routes
        .iter()
        .flat_map(|route| route.to.iter().map(|hop| hop.channel.tile).chain([route.from.tile]));
    let links = launch.cascades.iter().flat_map(|link| [link.from, link.to]);
    let cores = launch.cores.iter().map(|core| core.tile);
    buffers.chain(locks).chain(descriptors).chain(ends).chain(links).chain(cores).collect()
}

/// Returns a name as part of a symbol: letters, digits and underscores.
fn symbol_text(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.chars().take(NAME_CHARS).map(plain).collect()
}
