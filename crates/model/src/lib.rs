//! From an id to facts, weights and words: finds a model's files and says what
//! they mean. It knows no devices and does no arithmetic on activations.
#![forbid(unsafe_code)]

mod error;
pub mod file;
mod limits;
pub mod words;

pub use error::{Error, Result};
pub use limits::Limits;
