//! The runtime: buffer objects, weights that stay on the device, programs with
//! their command lists, and what a step costs.
//!
//! | part | file |
//! |---|---|
//! | from a graph to schedules, kept on disk | `compiler` |
//! | what can be done in one way or another | `runtime` |
//! | buffer objects, submissions | `device` |
//! | what of a command list is written | `list` |
//! | what passes between host and array | `traffic` |
//! | values that share an object | `scratch` |
//! | keys and values that stay with the array | `keys` |
//! | weights and where they lie | `weights` |
//! | a compiled graph bound to memory, and its steps | `program`, `run` |
//! | what all that cost, counted while it runs | `ledger` |
//! | the same without values | `estimate` |

mod compiler;
mod device;
mod estimate;
mod keys;
mod ledger;
mod list;
mod program;
mod run;
mod runtime;
mod scratch;
mod traffic;
mod weights;

pub use compiler::{Compiled, Compiler, Tell};
pub use device::{Device, ListId, Sync};
pub use estimate::{Costs, Estimate, Scene, Timed, costs, estimate, estimate_scene, laid_bytes, times};
pub use ledger::Ledger;
pub use program::Program;
pub use runtime::{Completion, Dispatch, KeyUse, ListUse, Runtime, ValueUse, WeightUse};
pub use weights::{LoadCost, Weights};
