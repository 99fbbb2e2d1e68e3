//! Checks of `aie.mem` and `aie.memtile_dma`.

use std::collections::BTreeSet;

use super::declared::{Checked, Declared, direction, number, operand, within};
use crate::emit::mlir::{MlirAttribute, MlirBlock, MlirOp};
use crate::form::schedule::registers::register_fault;
use crate::form::schedule::{Channel, Dim, Tile, TileKind};

/// The largest size of a dimension that `DMABDOp::verify` (AIEDialect.cpp) lets pass; its sentence says
/// 1023.
const MAX_SIZE: u32 = 1 << 9;

/// The stride in elements from which on `DMABDOp::verify` refuses a dimension.
const STRIDE_LIMIT: u32 = 1 << 19;

/// Checks the operation of a tile.
///
/// * the tile is of the kind: traits `IsCoreTile` and `IsMemTile`;
/// * blocks end as `HasSomeTerminator` says;
/// * a tile has no more descriptors than `HasValidBDs` allows, and `bd_id` is below their number, each
///   once;
/// * a channel starts once: `HasValidDMAChannels`; it exists, and has a flow;
/// * descriptors: see `descriptor`.
pub(super) fn memory(op: &MlirOp, declared: &Declared<'_>) -> Checked {
    let tile = declared.tile(op, 0)?;
    let kind = if op.name == "aie.mem" { TileKind::Compute } else { TileKind::Memory };
    if tile.kind() != kind {
        return Err(format!("is of tile {tile}, which is of another kind"));
    }
    let [region] = op.regions.as_slice() else { return Err("needs one region".to_owned()) };
    let blocks = &region.blocks;
    let mut ids = BTreeSet::new();
    for (index, block) in blocks.iter().enumerate() {
        let last = block.ops.last().ok_or_else(|| format!("has an empty block {index}"))?;
        if !matches!(last.name, "aie.dma_start" | "aie.next_bd" | "aie.end") {
            return Err(format!("ends block {index} with {}", last.name));
        }
        if last.successors.iter().any(|next| *next >= blocks.len() || *next == 0) {
            return Err(format!("continues block {index} in a block that it does not have"));
        }
        if last.name == "aie.next_bd" {
            let id = descriptor(block, tile, declared)?;
            if !ids.insert(id) {
                return Err(format!("has two descriptors {id}"));
            }
        }
    }
    let have = declared.dma(tile).descriptors as usize;
    if ids.len() > have {
        return Err(format!("has {} descriptors; the tile has {have}", ids.len()));
    }
    starts(blocks, tile, declared)
}

/// Checks the first tasks: the chain of `aie.dma_start` from the entry to `aie.end`.
fn starts(blocks: &[MlirBlock], tile: Tile, declared: &Declared<'_>) -> Checked {
    let (mut seen, mut reached) = (BTreeSet::new(), BTreeSet::new());
    let mut at = 0;
    loop {
        let block = blocks.get(at).filter(|_| reached.insert(at)).ok_or("has first tasks in a circle")?;
        let [start] = block.ops.as_slice() else {
            return Err("has no first task where one is due".to_owned());
        };
        if start.name == "aie.end" {
            break;
        }
        let (direction, index) = (direction(start, "channel_dir")?, number(start, "channel_index")?);
        let channel = declared.channel(tile, direction, index)?;
        if !seen.insert(channel) {
            return Err(format!("starts {channel} twice"));
        }
        if !declared.routed.contains(&channel) {
            return Err(format!("starts {channel}, which has no flow"));
        }
        // The field of the queue register has eight bits (XAie_DmaChannelSetStartQueue).
        within(start, "repeat_count", 0..=255)?;
        let [first, next] = start.successors[..] else {
            return Err("has a start without successors".to_owned());
        };
        chain(blocks, first, channel, &mut reached)?;
        at = next;
    }
    // mlir-aie removes blocks that are not reached.
    match (0..blocks.len()).find(|index| !reached.contains(index)) {
        None => Ok(()),
        Some(index) => Err(format!("has the block {index}, which no start reaches")),
    }
}

/// Checks that a channel can use the descriptors of its chain: even channels of a memory tile the lower half,
/// odd ones the upper (AIETargetModel.h, `isBdChannelAccessible`).
fn chain(blocks: &[MlirBlock], first: usize, channel: Channel, reached: &mut BTreeSet<usize>) -> Checked {
    let mut own = BTreeSet::new();
    let mut at = first;
    while own.insert(at) {
        let block = &blocks[at];
        let bd = block.ops.iter().find(|op| op.name == "aie.dma_bd");
        let Some(bd) = bd else {
            // A chain ends at the block that ends the operation, after one descriptor or more.
            let ends = at != first && block.ops.len() == 1 && block.ops[0].name == "aie.end";
            return if ends { Ok(()) } else { Err(format!("starts {channel} without a descriptor")) };
        };
        let upper = number(bd, "bd_id")? >= 24;
        if channel.tile.kind() == TileKind::Memory && upper != (channel.number % 2 == 1) {
            return Err(format!("starts {channel} with descriptors of the other half"));
        }
        reached.insert(at);
        at = *block.ops.last().and_then(|op| op.successors.first()).ok_or("has a chain without an end")?;
    }
    Ok(())
}

/// Checks the block of a descriptor, and returns its number.
///
/// * two changes of locks or none (AIERT.cpp, `configureLocksInBdBlock`), of the own tile
///   (`AccessesLocalLocks`), by values of six bits;
/// * `DMABDOp::verify`: whole words, a buffer of the tile, at most three dimensions, four in a memory tile,
///   sizes and strides, no word outside the buffer;
/// * the registers of the tile: `verifyStridesWraps` of AIEXDialect.cpp.
fn descriptor(block: &MlirBlock, tile: Tile, declared: &Declared<'_>) -> Checked<i64> {
    let names: Vec<&str> = block.ops.iter().map(|op| op.name).collect();
    let bd = match names[..] {
        ["aie.dma_bd", "aie.next_bd"] => &block.ops[0],
        ["aie.use_lock", "aie.dma_bd", "aie.use_lock", "aie.next_bd"] => {
            change(&block.ops[0], 2, tile, declared)?;
            change(&block.ops[2], 1, tile, declared)?;
            &block.ops[1]
        }
        _ => return Err(format!("has a descriptor of {}", names.join(", "))),
    };
    let dma = declared.dma(tile);
    let id = within(bd, "bd_id", 0..=i64::from(dma.descriptors) - 1)?;
    let buffer = declared.buffers.get(&operand(bd, 0)?).ok_or("moves a buffer that is not declared")?;
    if buffer.0 != tile {
        return Err(format!("descriptor {id} moves a buffer of tile {}", buffer.0));
    }
    let words = buffer.2 / 4;
    let len = within(bd, "len", 1..=dma.max_words.cast_signed())?;
    let offset = within(bd, "offset", 0..=words)?;
    let (mut reach, dims) = (len - 1, bd.attribute("dimensions"));
    if let Some(dims) = dims {
        let MlirAttribute::Dims(dims) = dims else {
            return Err(format!("descriptor {id} has malformed dimensions"));
        };
        reach = dimensions(dims, len, words).map_err(|sentence| format!("descriptor {id} {sentence}"))?;
        let registers: Vec<Dim> = dims.iter().map(|&(size, stride)| Dim { size, stride }).collect();
        if let Some(sentence) = register_fault(&registers, None, dma) {
            return Err(format!("descriptor {id} {sentence}"));
        }
    }
    if offset + reach >= words {
        return Err(format!("descriptor {id} ends at word {} of {words}", offset + reach));
    }
    Ok(id)
}

/// Checks sizes and strides, and returns the last word.
fn dimensions(dims: &[(u32, u32)], len: i64, words: i64) -> Checked<i64> {
    let (mut reach, mut moved) = (0i64, 1i64);
    for &(size, stride) in dims {
        if size == 0 || size > MAX_SIZE {
            return Err(format!("has a size of {size}; 1..={MAX_SIZE} is allowed"));
        }
        if stride == 0 || stride >= STRIDE_LIMIT || i64::from(stride) > words {
            return Err(format!("has a stride of {stride} in a buffer of {words} words"));
        }
        reach += i64::from(stride) * i64::from(size - 1);
        moved = moved.saturating_mul(i64::from(size));
    }
    if moved != len {
        return Err(format!("moves {moved} words by its dimensions and {len} by its length"));
    }
    Ok(reach)
}

/// Checks a change of a lock by a descriptor.
fn change(op: &MlirOp, action: i64, tile: Tile, declared: &Declared<'_>) -> Checked {
    within(op, "action", action..=action)?;
    within(op, "value", 0..=declared.dma(tile).max_lock.into())?;
    match declared.locks.get(&operand(op, 0)?) {
        Some((of, _)) if *of == tile => Ok(()),
        _ => Err("uses a lock of another tile, or one that is not declared".to_owned()),
    }
}
