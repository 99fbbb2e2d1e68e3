//! The runtime: buffer objects, resident weights, programs with their command
//! lists, and the cost of steps.
//!
//! | part | file |
//! |---|---|
//! | from a graph to schedules, cached on disk | `compiler` |
//! | the choices of the runtime | `runtime` |
//! | buffer objects, submissions | `device` |
//! | the words of a command list that are written | `list` |
//! | transfers between host and array | `traffic` |
//! | values that share an object | `scratch` |
//! | the tensor of each value | `tensors` |
//! | resident keys and values | `keys` |
//! | where their blocks lie | `ring` |
//! | weights and their location | `weights` |
//! | a compiled graph bound to memory, and its steps | `program`, `run` |
//! | the cost, counted while a step runs | `ledger` |
//! | the cost, counted without values | `estimate` |
//! | whether attention costs less on the array or on the host | `placement` |
//! | whether a token takes less time if its launches stay configured | `grouping` |

mod compiled;
mod compiler;
mod device;
mod estimate;
mod grouping;
mod keys;
mod ledger;
mod list;
mod placement;
mod program;
mod ring;
mod run;
mod runtime;
mod scratch;
mod tensors;
mod traffic;
mod weights;

pub use compiled::CompiledGraph;
pub use compiler::{Compiler, WarningSink};
pub use device::{Device, ListId, Sync};
pub use estimate::{
    Costs, Estimate, HostSeconds, HostSpread, Scenario, TimedProgram, costs, estimate, estimate_step,
    host_spread, laid_bytes, settle, time_programs,
};
pub use ledger::Ledger;
pub use placement::{AttentionCost, COMPARED_POSITIONS};
pub use program::NpuProgram;
pub use runtime::{Completion, Dispatch, KeyUse, ListUse, Runtime, ValueUse, WeightUse};
pub use weights::{LoadCost, NpuWeights};
