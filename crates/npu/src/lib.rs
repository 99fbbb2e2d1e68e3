//! The backend for a tiled dataflow array with static shapes: a compiler of six
//! passes, the blobs it writes, and a simulator of values and time. It contains
//! no models, text or requests.
#![forbid(unsafe_code)]

pub mod backend;
pub mod blob;
pub mod driver;
pub mod emit;
pub mod form;
#[doc(hidden)]
pub mod fuzz;
mod host;
mod info;
pub mod kernel;
pub mod memory;
pub mod pass;
pub mod sim;
pub mod target;

pub use backend::{Npu, NpuOptions, ONE_ROW_NOTE};
pub use girih_tensor::{Error, Result};
pub use host::HostCost;
pub use info::INFO;
pub use target::Target;
