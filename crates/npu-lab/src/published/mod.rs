//! Compares the simulator with published measurements: each row of the tables
//! is simulated with the tile configuration that was measured.
//!
//! The designs of launches are built by hand, as the public builders lay them out; steps of models
//! are the programs that girih compiles, with the host's time. One set
//! of figures per target and kernel entry must explain all rows; the target and
//! kernel files name the rows that a figure was fitted to.

mod attend;
mod breakdown;
mod built_in;
mod compiled;
mod contradictions;
mod design;
mod energy;
mod fits;
mod gemm;
mod gemv;
mod measurement;
mod paper;
mod refit;
mod rows;
mod spread;
mod steps;
mod tables;
mod tower;
mod validation;
mod workload;

pub use breakdown::{HostTime, host_times, llama_layers};
pub use built_in::built_in_tables;
pub use compiled::CompiledRow;
pub use contradictions::contradictions;
pub use energy::EnergyRow;
pub use measurement::{Measurement, RowRole};
pub use refit::{KernelFamily, LeftOut, LeftOutRow, LeftOutTable, RefitFigure, RefitSource, leave_out};
pub use refit::{derived_core_figures, derived_kernel_figures};
pub use spread::ErrorSpread;
pub use validation::{PassTime, Prediction, Validation, ValidationProgress, pass_times, validate};
