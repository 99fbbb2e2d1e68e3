//! Executes a schedule on a target: what it computes, how long that takes, and
//! whether it breaks a rule. It knows schedules, kernels and targets, never ops.
//!
//! Values are exact. Times are those of a model whose figures stand in the
//! target and kernel files: cores call kernels, channels move words at the pace
//! of their stream, all shims share one DRAM, and one command processor starts
//! it all. Not modelled are the FIFOs of the streams (a word leaves when it can
//! arrive), conflicts between cores and DMA over a bank, and DRAM refresh.
//!
//! | part | file |
//! |---|---|
//! | a launch with its ids resolved | `plan` |
//! | time, the queue of events, who may go on | `machine` |
//! | semaphores | `lock` |
//! | DMA channels and the streams between them | `channel` |
//! | programs of the cores, and the cascade | `core` |
//! | the command processor | `control` |
//! | DRAM as a shared server | `ddr` |
//! | bytes of tiles and of buffer objects | `memory` |
//! | accesses that nothing orders | `hazard` |
//! | what an observer sees, and totals | `watch` |

mod agent;
mod channel;
mod control;
mod core;
mod dram;
mod fault;
mod hazard;
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
