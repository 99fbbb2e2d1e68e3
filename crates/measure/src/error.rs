//! The one error of this crate: a sentence.

use std::fmt;

/// Why a measurement could not be made.
#[derive(Debug)]
pub struct Error(String);

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with this sentence.
    pub fn new(sentence: impl Into<String>) -> Error {
        Error(sentence.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<girih_engine::Error> for Error {
    fn from(error: girih_engine::Error) -> Error {
        Error(error.to_string())
    }
}

impl From<girih_model::Error> for Error {
    fn from(error: girih_model::Error) -> Error {
        Error(error.to_string())
    }
}
