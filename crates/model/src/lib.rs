//! From an id to facts, weights and words: finds a model's files and says what
//! they mean. It knows no devices and does no arithmetic on activations.
#![forbid(unsafe_code)]

pub mod arch;
mod build;
pub mod convert;
pub mod file;
#[doc(hidden)]
pub mod fuzz;
mod generation;
pub mod hub;
mod limits;
mod model;
mod weights;
pub mod words;

pub use build::layer_output;
pub use generation::{Generation, Ids};
pub use girih_tensor::{Error, Result};
pub use limits::Limits;
pub use model::{Embedded, Model};
pub use weights::Weights;
