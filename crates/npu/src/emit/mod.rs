//! The emitter: a compiled program as MLIR in the dialects `aie` and `aiex` of mlir-aie, with a
//! manifest and a loader, for people with a device.
//!
//! Each launch becomes an `aie.device`: tiles, locks, buffers at their addresses, flows, the
//! descriptors of memory tiles and cores, the programs of cores, and a sequence of commands. Nothing
//! is left to allocate, except the paths of flows. `docs/silicon.md` says what becomes of it.
//!
//! What the dialects cannot express is refused. A launch that girih keeps on the array is emitted
//! like any other: a configuration of its own.

mod cores;
mod device;
mod dma;
mod manifest;
pub mod mlir;
mod resources;
mod sequence;
pub mod verify;

use girih_tensor::{Error, Result};

use self::cores::UsedEntries;
use self::device::device_name;
pub use self::manifest::{
    AieManifest, KERNELS, ManifestArgument, ManifestFunction, ManifestLaunch, ManifestOperand,
    ManifestParameter,
};
use self::manifest::{LaunchParts, manifest};
use self::mlir::MlirModule;
use self::resources::Numbering;
use crate::form::PassForm as _;
use crate::form::schedule::{Argument, ArgumentRole, Schedule};
use crate::target::Target;

/// A loader in Python that runs an emitted program through XRT.
pub const LOADER: &str = include_str!("run_xrt.py");

/// A script that measures the rows of published tables on a device, beside [`LOADER`].
pub const ROW_METER: &str = include_str!("measure_rows.py");

/// An emitted program.
#[derive(Clone, Debug)]
pub struct EmittedProgram {
    /// The module, which prints as text.
    pub module: MlirModule,
    /// What a loader must know.
    pub manifest: AieManifest,
}

/// Emits a compiled program.
///
/// # Errors
/// When the target is no device of mlir-aie, the schedule breaks a rule of the target or has state, the dialects
/// cannot express a part of it, or the module fails a check of [`verify`].
pub fn emit(schedule: &Schedule, target: &Target) -> Result<EmittedProgram> {
    let device = device_name(target)?;
    if let Some(fault) = schedule.faults(target).first() {
        return Err(Error::new(format!(
            "program {} breaks a rule of {}: {fault}",
            schedule.name, target.name
        )));
    }
    let is_state = |argument: &&Argument| argument.role == ArgumentRole::State;
    if let Some(state) = schedule.arguments.iter().find(is_state) {
        return Err(Error::new(format!(
            "program {} appends to {} at a place that follows from the position, which the manifest cannot express: \
             compile it with the grouping joined",
            schedule.name, state.name
        )));
    }
    let (mut module, mut parts, mut used) = (MlirModule::default(), Vec::new(), UsedEntries::new());
    let mut numbering = Numbering::default();
    for (number, launch) in schedule.launches.iter().enumerate() {
        let emitted = device::launch(number, launch, &schedule.arguments, target, &mut numbering);
        let emitted = emitted
            .map_err(|error| error.of(format!("program {}: launch {}", schedule.name, launch.name)))?;
        parts.push(LaunchParts { device: emitted.device.symbol.clone(), arguments: emitted.arguments });
        module.devices.push(emitted.device);
        used.extend(emitted.used);
    }
    if let Some(fault) = verify::faults(&module, target).first() {
        return Err(Error::new(format!("program {} breaks a rule of mlir-aie: {fault}", schedule.name)));
    }
    Ok(EmittedProgram { module, manifest: manifest(schedule, device, parts, &used) })
}
