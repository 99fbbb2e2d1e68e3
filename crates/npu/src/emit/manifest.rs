//! The manifest of an emitted program: what a loader must know besides the module.

use serde::Serialize;

use super::cores::{KERNEL_OBJECT, UsedEntries};
use super::sequence::SEQUENCE;
use crate::form::schedule::Schedule;
use crate::kernel::{Access, CascadeUse, KernelEntry, ParamKind};

/// The functions of cores in C++, in AIE's vector API: those that are written.
pub const KERNELS: &str = include_str!("../../kernels/kernels.cc");

/// The version of the manifest's layout.
const MANIFEST_FORMAT: u32 = 1;

/// The files whose operations are emitted. Versions of mlir-aie after them renamed
/// `aiex.runtime_sequence` and gave `aie.dma_bd` other attributes.
const DIALECTS: &str = "mlir-aie AIEOps.td at 2741ca50, AIEAttrs.td at a3897048, AIEX.td at 97737142";

/// The manifest of a program.
#[derive(Clone, Debug, Serialize)]
pub struct AieManifest {
    /// The version of this layout.
    pub format: u32,
    /// The program's name.
    pub program: String,
    /// The target that it was compiled for.
    pub target: String,
    /// The device in mlir-aie.
    pub device: &'static str,
    /// The files that define the operations of the module.
    pub dialects: &'static str,
    /// The symbol of each launch's sequence.
    pub sequence: &'static str,
    /// The object file that cores are linked with, which defines `functions`.
    pub kernel_object: &'static str,
    /// The program's buffers in DRAM.
    pub arguments: Vec<ManifestArgument>,
    /// The launches, in the order in which they run.
    pub launches: Vec<ManifestLaunch>,
    /// The functions that cores call.
    pub functions: Vec<ManifestFunction>,
}

/// A buffer in DRAM.
#[derive(Clone, Debug, Serialize)]
pub struct ManifestArgument {
    /// The name.
    pub name: String,
    /// How the program uses it, as in printed schedules.
    pub role: &'static str,
    /// The size in bytes.
    pub bytes: u64,
}

/// A launch: one device of the module, so one xclbin.
#[derive(Clone, Debug, Serialize)]
pub struct ManifestLaunch {
    /// The name within the program.
    pub name: String,
    /// The symbol of the device.
    pub device: String,
    /// Whether girih keeps its configuration on the array; the emission configures each launch.
    pub resident: bool,
    /// The program's arguments that the sequence takes, in order, as indices.
    pub arguments: Vec<u32>,
}

/// A function that cores call. Its arguments are a pointer to words of four bytes and a byte offset
/// (`int32_t`) for each operand, then the parameters.
#[derive(Clone, Debug, Serialize)]
pub struct ManifestFunction {
    /// The symbol.
    pub name: &'static str,
    /// Whether `kernels.cc` defines it.
    pub is_written: bool,
    /// How it uses the cascade: `none`, `send` or `receive`.
    pub cascade: &'static str,
    /// The operands, in order.
    pub operands: Vec<ManifestOperand>,
    /// The parameters, in order.
    pub parameters: Vec<ManifestParameter>,
}

/// An operand of a function.
#[derive(Clone, Debug, Serialize)]
pub struct ManifestOperand {
    /// The name.
    pub name: &'static str,
    /// The type of its elements.
    pub dtype: String,
    /// `read`, `write` or `update`.
    pub access: &'static str,
}

/// A parameter of a function.
#[derive(Clone, Debug, Serialize)]
pub struct ManifestParameter {
    /// The name.
    pub name: &'static str,
    /// The type in C.
    pub kind: &'static str,
}

/// What one launch adds to the manifest.
pub(super) struct LaunchParts {
    pub device: String,
    pub arguments: Vec<u32>,
}

/// Returns the manifest of a program.
pub(super) fn manifest(
    schedule: &Schedule,
    device: &'static str,
    launches: Vec<LaunchParts>,
    used: &UsedEntries,
) -> AieManifest {
    let arguments = schedule.arguments.iter().map(|argument| ManifestArgument {
        name: argument.name.clone(),
        role: argument.role.name(),
        bytes: argument.bytes,
    });
    let launches = schedule.launches.iter().zip(launches).map(|(launch, parts)| ManifestLaunch {
        name: launch.name.clone(),
        device: parts.device,
        resident: launch.resident,
        arguments: parts.arguments,
    });
    AieManifest {
        format: MANIFEST_FORMAT,
        program: schedule.name.clone(),
        target: schedule.target.clone(),
        device,
        dialects: DIALECTS,
        sequence: SEQUENCE,
        kernel_object: KERNEL_OBJECT,
        arguments: arguments.collect(),
        launches: launches.collect(),
        functions: used.values().map(|entry| function(entry)).collect(),
    }
}

fn function(entry: &KernelEntry) -> ManifestFunction {
    let operands = entry.operands.iter().map(|operand| ManifestOperand {
        name: operand.name,
        dtype: operand.dtype.to_string(),
        access: match operand.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::Update => "update",
        },
    });
    let parameters = entry.params.iter().map(|param| ManifestParameter {
        name: param.name,
        kind: match param.kind {
            ParamKind::Real => "float",
            ParamKind::Size | ParamKind::Index => "int32_t",
        },
    });
    let cascade = match entry.cascade {
        CascadeUse::None => "none",
        CascadeUse::Send => "send",
        CascadeUse::Receive => "receive",
    };
    let (operands, parameters) = (operands.collect(), parameters.collect());
    let is_written = KERNELS.contains(&format!("void {}(", entry.name));
    ManifestFunction { name: entry.name, is_written, cascade, operands, parameters }
}
