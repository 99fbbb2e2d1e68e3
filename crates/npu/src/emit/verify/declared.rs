//! What a device declares: tiles, locks, buffers, functions and flows, by value.

use std::collections::{BTreeMap, BTreeSet};

use crate::emit::mlir::{MlirAttribute, MlirDevice, MlirOp, MlirType, MlirValue};
use crate::form::schedule::{Channel, Direction, Tile, TileKind};
use crate::target::{DmaSpec, Target};

/// The result of a check: the sentence of what is wrong.
pub(super) type Checked<T = ()> = Result<T, String>;

/// The declarations of a device.
pub(super) struct Declared<'a> {
    pub target: &'a Target,
    pub tiles: BTreeMap<MlirValue, Tile>,
    /// The tile and the number of each lock.
    pub locks: BTreeMap<MlirValue, (Tile, i64)>,
    /// The tile, the address and the bytes of each buffer.
    pub buffers: BTreeMap<MlirValue, (Tile, i64, i64)>,
    /// The types of the arguments of each function.
    pub functions: BTreeMap<&'a str, &'a [MlirType]>,
    /// The channels with a flow.
    pub routed: BTreeSet<Channel>,
}

/// Returns an integer attribute.
pub(super) fn number(op: &MlirOp, name: &str) -> Checked<i64> {
    op.number(name).ok_or_else(|| format!("lacks the number {name}"))
}

/// Returns an integer attribute that lies in a range.
pub(super) fn within(op: &MlirOp, name: &str, range: std::ops::RangeInclusive<i64>) -> Checked<i64> {
    let value = number(op, name)?;
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!("has {name} = {value}; {}..={} is allowed", range.start(), range.end()))
}

/// Returns an operand.
pub(super) fn operand(op: &MlirOp, index: usize) -> Checked<MlirValue> {
    op.operands.get(index).copied().ok_or_else(|| format!("lacks operand {index}"))
}

/// Returns the direction that an attribute names (`DMAChannelDir` of AIEAttrs.td).
pub(super) fn direction(op: &MlirOp, name: &str) -> Checked<Direction> {
    Ok(if within(op, name, 0..=1)? == 0 { Direction::S2mm } else { Direction::Mm2s })
}

impl<'a> Declared<'a> {
    /// Collects the declarations; those without their attributes are left out, and refused elsewhere.
    pub fn of(device: &'a MlirDevice, target: &'a Target) -> Declared<'a> {
        let mut declared = Declared {
            target,
            tiles: BTreeMap::new(),
            locks: BTreeMap::new(),
            buffers: BTreeMap::new(),
            functions: BTreeMap::new(),
            routed: BTreeSet::new(),
        };
        for op in &device.ops {
            declared.add(op);
        }
        declared
    }

    fn add(&mut self, op: &'a MlirOp) -> Option<()> {
        let place = |name| u8::try_from(op.number(name)?).ok();
        match op.name {
            "aie.tile" => drop(self.tiles.insert(op.result?, Tile::new(place("col")?, place("row")?))),
            "aie.lock" => {
                let tile = *self.tiles.get(op.operands.first()?)?;
                self.locks.insert(op.result?, (tile, op.number("lockID")?));
            }
            "aie.buffer" => {
                let tile = *self.tiles.get(op.operands.first()?)?;
                let MlirType::Words(words) = op.result?.of else { return None };
                let bytes = i64::try_from(words).ok()?.checked_mul(4)?;
                self.buffers.insert(op.result?, (tile, op.number("address")?, bytes));
            }
            "func.func" => match (op.attribute("sym_name")?, op.attribute("function_type")?) {
                (MlirAttribute::Text(name), MlirAttribute::Function(types)) => {
                    self.functions.insert(name, types);
                }
                _ => return None,
            },
            "aie.flow" => {
                let (from, to) = self.flow(op).ok()?;
                self.routed.extend([from, to]);
            }
            _ => {}
        }
        Some(())
    }

    /// Returns the tile that an operand stands for.
    pub fn tile(&self, op: &MlirOp, index: usize) -> Checked<Tile> {
        let found = self.tiles.get(&operand(op, index)?).copied();
        found.ok_or_else(|| "names a tile that is not declared".to_owned())
    }

    /// Returns the ends of a flow between DMA channels that exist: `TileOp::getNumSourceConnections`
    /// and `getNumDestConnections` of AIEDialect.cpp.
    pub fn flow(&self, op: &MlirOp) -> Checked<(Channel, Channel)> {
        within(op, "source_bundle", 1..=1)?;
        within(op, "dest_bundle", 1..=1)?;
        let (from, to) = (self.tile(op, 0)?, self.tile(op, 1)?);
        let source = self.channel(from, Direction::Mm2s, number(op, "source_channel")?)?;
        let dest = self.channel(to, Direction::S2mm, number(op, "dest_channel")?)?;
        Ok((source, dest))
    }

    /// Returns a channel that the array has.
    pub fn channel(&self, tile: Tile, direction: Direction, number: i64) -> Checked<Channel> {
        let dma = self.dma(tile);
        let have = if direction == Direction::Mm2s { dma.channels_out } else { dma.channels_in };
        let has_dma =
            tile.kind() != TileKind::Shim || u32::from(tile.column) < self.target.array.shim_columns;
        match u8::try_from(number) {
            Ok(number) if has_dma && u32::from(number) < have => Ok(tile.channel(direction, number)),
            _ => Err(format!("names channel {number} of tile {tile}; it has {have} in that direction")),
        }
    }

    /// The limits of a tile's DMA.
    pub fn dma(&self, tile: Tile) -> &'a DmaSpec {
        match tile.kind() {
            TileKind::Shim => &self.target.shim.dma,
            TileKind::Memory => &self.target.memory.dma,
            TileKind::Compute => &self.target.compute.dma,
        }
    }
}
