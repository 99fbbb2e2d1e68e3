//! The descriptors of memory tiles and cores: `aie.memtile_dma` and `aie.mem`.
//!
//! The region of such an operation has a block for each channel that starts, a block that ends it,
//! and a block for each descriptor.

use std::collections::BTreeSet;

use girih_tensor::{Error, Result};

use super::mlir::{MlirAttribute, MlirBlock, MlirOp, MlirRegion, MlirType};
use super::resources::{ACQUIRE_GREATER_EQUAL, Numbering, RELEASE, Resources};
use crate::form::schedule::registers::merged;
use crate::form::schedule::{
    Descriptor, Dim, Direction, DmaAddress, Launch, LockChange, Start, Tile, TileKind,
};

/// `DMAChannelDir` of mlir-aie's AIEAttrs.td.
pub(super) fn direction(direction: Direction) -> i64 {
    match direction {
        Direction::S2mm => 0,
        Direction::Mm2s => 1,
    }
}

/// Whether dimensions are one run of contiguous words.
pub(super) fn is_contiguous(dims: &[Dim]) -> bool {
    matches!(merged(dims)[..], [Dim { stride: 1, .. }])
}

/// Returns the operations of all tiles with descriptors, except shims.
///
/// # Errors
/// When the dialect cannot express a descriptor or a first task.
pub(super) fn memories(
    launch: &Launch,
    resources: &Resources,
    numbering: &mut Numbering,
) -> Result<Vec<MlirOp>> {
    let tiles = launch.descriptors.iter().map(|descriptor| descriptor.tile);
    let tiles = tiles.chain(launch.starts.iter().map(|start| start.channel.tile));
    let tiles: BTreeSet<Tile> = tiles.filter(|tile| tile.kind() != TileKind::Shim).collect();
    tiles.into_iter().map(|tile| memory(tile, launch, resources, numbering)).collect()
}

fn memory(tile: Tile, launch: &Launch, resources: &Resources, numbering: &mut Numbering) -> Result<MlirOp> {
    let starts: Vec<&Start> = launch.starts.iter().filter(|start| start.channel.tile == tile).collect();
    let of_tile = launch.descriptors.iter().filter(|descriptor| descriptor.tile == tile);
    let descriptors: Vec<&Descriptor> = of_tile.collect();
    let end = starts.len();
    let block_of = |id: u8| {
        let found = descriptors.iter().position(|descriptor| descriptor.id == id);
        let missing = || Error::new(format!("descriptor {id} of tile {tile} is not declared"));
        found.map(|index| end + 1 + index).ok_or_else(missing)
    };
    check_starts(tile, &starts, &descriptors)?;
    let mut blocks = Vec::new();
    for (index, start) in starts.iter().enumerate() {
        let mut op = MlirOp::new("aie.dma_start").defines(numbering.value(MlirType::I1));
        op.successors = vec![block_of(start.descriptor)?, index + 1];
        let op = op.int("channel_dir", direction(start.channel.direction));
        let op = op.int("channel_index", start.channel.number);
        // The dialect counts the runs after the first.
        blocks.push(MlirBlock::of(vec![op.int("repeat_count", i64::from(start.repeats) - 1)]));
    }
    blocks.push(MlirBlock::of(vec![MlirOp::new("aie.end")]));
    for descriptor in &descriptors {
        let next = descriptor.next.map_or(Ok(end), block_of)?;
        blocks.push(descriptor_block(descriptor, next, resources)?);
    }
    let name = if tile.kind() == TileKind::Memory { "aie.memtile_dma" } else { "aie.mem" };
    let op = MlirOp::new(name).uses([resources.tiles[&tile]]).region(MlirRegion { blocks });
    Ok(op.defines(numbering.value(MlirType::Index)))
}

/// Checks that each channel starts once, and that a start leads to each descriptor: mlir-aie
/// removes blocks that none leads to.
fn check_starts(tile: Tile, starts: &[&Start], descriptors: &[&Descriptor]) -> Result<()> {
    let mut channels = BTreeSet::new();
    let mut reached = BTreeSet::new();
    for start in starts {
        if !channels.insert(start.channel) {
            let channel = start.channel;
            return Err(Error::new(format!(
                "channel {channel} has several first tasks; aie.dma_start starts one"
            )));
        }
        let mut at = Some(start.descriptor);
        while let Some(id) = at.filter(|id| reached.insert(*id)) {
            let found = descriptors.iter().find(|descriptor| descriptor.id == id);
            at = found.and_then(|descriptor| descriptor.next);
        }
    }
    match descriptors.iter().find(|descriptor| !reached.contains(&descriptor.id)) {
        None => Ok(()),
        Some(Descriptor { id, .. }) => Err(Error::new(format!(
            "descriptor {id} of tile {tile} is in no first task; mlir-aie removes such descriptors"
        ))),
    }
}

fn descriptor_block(descriptor: &Descriptor, next: usize, resources: &Resources) -> Result<MlirBlock> {
    let Descriptor { tile, id, address, dims, iteration, .. } = descriptor;
    let what = format!("descriptor {id} of tile {tile}");
    let DmaAddress::Buffer(buffer, offset) = *address else {
        return Err(Error::new(format!("{what} accesses DRAM, which only shims can")));
    };
    if iteration.is_some_and(|dim| dim.size > 1) {
        return Err(Error::new(format!(
            "{what} advances from run to run, which aie.dma_bd of the emitted version cannot express"
        )));
    }
    let words = i64::try_from(descriptor.words())
        .map_err(|_| Error::new(format!("{what} moves more words than 64 bits count")))?;
    let op = MlirOp::new("aie.dma_bd").uses([resources.buffer(buffer)?]);
    let mut op = op.int("offset", offset / 4).int("len", words).int("bd_id", *id);
    if !is_contiguous(dims) {
        // Of a dimension of one step, only the place counts.
        let of = |dim: &Dim| (dim.size, if dim.size == 1 { 1 } else { dim.stride });
        op = op.with("dimensions", MlirAttribute::Dims(dims.iter().map(of).collect()));
    }
    let mut ops = vec![op];
    if let Some((acquire, release)) = locks(descriptor) {
        let first = resources.use_lock(acquire, ACQUIRE_GREATER_EQUAL)?;
        // A change by nothing never waits; the acquire is disabled besides.
        let enabled = MlirAttribute::Bool(acquire.value > 0);
        ops.insert(0, first.with("acq_en", enabled));
        ops.push(resources.use_lock(release, RELEASE)?);
    }
    let mut last = MlirOp::new("aie.next_bd");
    last.successors = vec![next];
    ops.push(last);
    Ok(MlirBlock::of(ops))
}

/// Returns what a descriptor acquires and releases. mlir-aie needs both or none (AIERT.cpp,
/// `configureLocksInBdBlock`), so the missing one changes the other's lock by nothing.
fn locks(descriptor: &Descriptor) -> Option<(LockChange, LockChange)> {
    let nothing = |change: LockChange| LockChange { value: 0, ..change };
    match (descriptor.acquire, descriptor.release) {
        (None, None) => None,
        (Some(acquire), None) => Some((acquire, nothing(acquire))),
        (None, Some(release)) => Some((nothing(release), release)),
        (Some(acquire), Some(release)) => Some((acquire, release)),
    }
}
