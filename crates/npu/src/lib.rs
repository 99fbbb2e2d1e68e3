//! The backend for a static-shape, tiled dataflow array: a compiler of six
//! passes, the blob that it makes, and a simulator of values and time. It knows
//! no models, text or requests.
#![forbid(unsafe_code)]

pub mod backend;
pub mod blob;
pub mod driver;
pub mod form;
pub mod host;
pub mod kernel;
pub mod memory;
pub mod pass;
pub mod sim;
pub mod target;

pub use backend::{Npu, ONE_ROW, Options};
pub use girih_tensor::{Error, Result};
pub use target::Target;
