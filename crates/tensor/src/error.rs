//! The error type of the whole workspace: one sentence, without error kinds.
//!
//! Errors are shown to a person, and no code branches on their kind. So one type in the
//! lowest crate suffices, and `?` needs no conversions.

use std::fmt;

/// An error: one sentence that names the thing, what was found, what was needed, and
/// what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

/// A result with this error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an error with this sentence.
    pub fn new(sentence: impl Into<String>) -> Error {
        Error(sentence.into())
    }

    /// Prefixes the sentence with the name of a file or another thing: `name: sentence`.
    pub fn of(self, name: impl fmt::Display) -> Error {
        Error(format!("{name}: {}", self.0))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
