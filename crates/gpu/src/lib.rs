//! The backend for GPUs: kernels in WGSL, the lowering of graphs to launches of them, and the device that runs these,
//! through Vulkan or Metal. It knows no models, text or requests.
//!
//! Results do not depend on the rows of a step, on other sequences or on the state of a cache: every sum has one order
//! on a device.
#![deny(unsafe_code)]

mod activation_words;
mod backend;
mod cuda;
mod device;
mod device_list;
mod driver;
mod faults;
mod group;
mod heads;
mod info;
mod integer_source;
mod kernel;
mod launch;
mod layout;
mod lower;
mod matmul;
mod matrix;
mod matrix_source;
#[cfg(not(target_os = "macos"))]
mod memory;
#[cfg(target_os = "macos")]
#[path = "memory_of_metal.rs"]
mod memory;
mod output;
mod picks;
mod precision;
mod program;
mod refuse;
mod slots;
mod source_marks;
mod state;
mod step_table;
mod temporary;
mod trusted;
mod weight_role;
mod weights;
mod wgpu_driver;

pub use backend::GpuBackend;
pub use device_list::{AdapterChoice, GpuAdapter, adapters};
pub use info::INFO;
pub use output::GpuOutput;
pub use precision::ActPrecision;
pub use program::GpuProgram;
pub use state::GpuState;
pub use weights::GpuWeights;
