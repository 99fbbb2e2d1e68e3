//! Runs a schedule on a target and reports the values it computes, the time it
//! takes and the rules it breaks. The simulator uses schedules, kernels and
//! targets; it contains no ops.
//!
//! Values are exact. Times come from a model whose figures are in the target
//! and kernel files: cores call kernels, channels move words at the rate of
//! their stream, all shims share one DRAM, and one command processor starts
//! everything. The model leaves out the FIFOs of the streams (a word leaves
//! when it can arrive), bank conflicts between cores and DMA, and DRAM refresh.
//!
//! | part | file |
//! |---|---|
//! | the entry point: configuration and launches | `simulator` |
//! | the registers that resident launches leave | `held` |
//! | a launch with its ids resolved | `plan` |
//! | the event queue and the loop that wakes agents | `launch` |
//! | the agents, and what each of them waits for | `agent`, `state` |
//! | semaphores | `semaphore` |
//! | DMA channels and the streams between them | `channel` |
//! | programs of the cores, and the cascade | `core` |
//! | the command processor | `control` |
//! | DRAM as a shared server | `dram` |
//! | bytes of tiles and of buffer objects | `store`, `memory` |
//! | unordered accesses | `hazard` |
//! | events for an observer, and totals | `watch` |
//! | rules that a run can break | `fault` |

mod agent;
mod channel;
mod control;
mod core;
mod dram;
mod fault;
mod hazard;
mod held;
mod launch;
mod memory;
mod plan;
mod semaphore;
mod simulator;
mod state;
mod store;
mod time;
mod watch;

pub use fault::{FaultKind, SimFault};
pub use plan::PreparedSchedule;
pub use simulator::Simulator;
pub use time::{Cycle, EventOrder};
pub use watch::{Cause, CoreTotals, LaunchReport, SimEvent, SimReport, SimUnwatched, SimWatch, Totals};

#[cfg(test)]
mod tests;
