//! The one error of this crate, shared by every backend.

use std::fmt;

/// Why a graph was refused, or a step failed: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

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

impl From<girih_tensor::Error> for Error {
    fn from(error: girih_tensor::Error) -> Error {
        Error(error.to_string())
    }
}
