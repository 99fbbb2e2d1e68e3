//! The backend for the host's CPU: kernels, threads, and the lowering of graphs to lists of
//! instructions. It knows no models, text or requests.
//!
//! Results do not depend on the number of threads, on the number of rows in a step, or on other
//! sequences: every sum has one fixed order.
//!
//! ```
//! use girih_cpu::{Cpu, CpuOptions};
//! use girih_graph::Backend;
//!
//! let cpu = Cpu::new(CpuOptions::default())?;
//! assert_eq!(cpu.name(), "cpu");
//! # Ok::<(), girih_graph::Error>(())
//! ```
#![deny(unsafe_code)]

#[cfg(not(unix))]
compile_error!("girih-cpu needs Linux or macOS: on Windows, build girih in the Windows Subsystem for Linux");

mod activations;
mod adapter_node;
pub mod affinity;
mod amount;
mod backend;
mod barrier;
#[cfg(test)]
mod barrier_model;
mod bind;
mod bound;
pub mod caches;
mod carried;
mod cut;
mod equal_weights;
mod filling;
mod fuse;
#[doc(hidden)]
pub mod fuzz;
mod info;
mod instruction;
pub mod kernels;
pub mod limits;
mod lower;
mod memory;
mod memory_policy;
pub mod ops;
mod os;
mod pack;
mod packed_matrix;
mod packed_store;
mod piece_queue;
mod pool;
#[cfg(test)]
mod pool_simulation;
#[cfg(test)]
mod pool_timing;
mod prefetch;
pub mod prefetch_distance;
mod present;
mod probe;
mod product_defaults;
mod replicate;
mod rounded_floats;
mod row_table;
mod run;
mod socket;
pub mod sparse_rate;
mod state;
mod state_layout;
mod step;
mod step_values;
pub mod topology;
mod weights;

pub use activations::{ActivationPrecision, PrecisionRule};
pub use affinity::Affinity;
pub use backend::{Cpu, CpuOptions};
pub use equal_weights::EqualWeights;
pub use info::INFO;
pub use memory_policy::MemoryPolicy;
pub use packed_store::Residence;
pub use present::ZeroBlocks;
pub use probe::{HostMachine, default_threads, huge_pages};
pub use run::CpuProgram;
pub use state::CpuState;
pub use weights::{AwaitPacked, CpuWeights};
