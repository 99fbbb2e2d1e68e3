//! A launch as `aie.device`: one configuration of the array with its sequence.

use girih_tensor::{Error, Result};

use super::cores::{self, UsedEntries};
use super::dma;
use super::mlir::{MlirDevice, MlirOp};
use super::resources::{Numbering, Resources};
use super::sequence::sequence;
use crate::form::schedule::{Argument, Channel, Launch};
use crate::target::Target;

/// `WireBundle` of mlir-aie's AIEAttrs.td: the DMA of a tile.
pub(super) const DMA_BUNDLE: i64 = 1;

/// A launch as a device, and the numbers of the program's arguments that its sequence has.
pub(super) struct EmittedLaunch {
    pub device: MlirDevice,
    pub arguments: Vec<u32>,
    pub used: UsedEntries,
}

/// The name of a target's device in mlir-aie: NPU has four usable columns, NPU2 has eight, and both
/// have a row of shims, one of memory tiles and four of cores (AIETargetModel.h).
///
/// # Errors
/// When mlir-aie has no such device.
pub(super) fn device_name(target: &Target) -> Result<&'static str> {
    let array = &target.array;
    match (target.core.as_str(), array.columns, array.memory_rows, array.compute_rows) {
        ("aie2", 4, 1, 4) => Ok("npu1"),
        ("aie2p", 8, 1, 4) => Ok("npu2"),
        _ => Err(Error::new(format!(
            "target {} is no device of mlir-aie: choose xdna1-phoenix, xdna2-strix or xdna2-kraken",
            target.name
        ))),
    }
}

/// Returns launch `number` as a device.
///
/// # Errors
/// When the dialects cannot express a part of it.
pub(super) fn launch(
    number: usize,
    launch: &Launch,
    arguments: &[Argument],
    target: &Target,
    numbering: &mut Numbering,
) -> Result<EmittedLaunch> {
    let mut ops = Vec::new();
    let resources = Resources::declared(launch, numbering, &mut ops)?;
    for route in &launch.routes {
        let flow = |to: Channel| flow(&resources, route.from, to);
        ops.extend(route.to.iter().map(|hop| flow(hop.channel)));
    }
    for link in &launch.cascades {
        let ends = [resources.tiles[&link.from], resources.tiles[&link.to]];
        ops.push(MlirOp::new("aie.cascade_flow").uses(ends));
    }
    let memories = dma::memories(launch, &resources, numbering)?;
    let (mut cores, mut used) = (Vec::new(), UsedEntries::new());
    for program in &launch.cores {
        cores.push(cores::core(program, target.compute.reserved, &resources, numbering, &mut used)?);
    }
    ops.extend(used.values().map(|entry| cores::declaration(entry)));
    ops.extend(memories);
    ops.extend(cores);
    let sequence = sequence(launch, arguments, target.shim.dma.queue, numbering)?;
    ops.push(sequence.op);
    let device = MlirDevice { symbol: format!("launch_{number}"), device: device_name(target)?, ops };
    Ok(EmittedLaunch { device, arguments: sequence.arguments, used })
}

/// Returns the circuit from one channel to another; circuits from one channel are a broadcast.
fn flow(resources: &Resources, from: Channel, to: Channel) -> MlirOp {
    let op = MlirOp::new("aie.flow").uses([resources.tiles[&from.tile], resources.tiles[&to.tile]]);
    let op = op.int("source_bundle", DMA_BUNDLE).int("source_channel", from.number);
    op.int("dest_bundle", DMA_BUNDLE).int("dest_channel", to.number)
}
