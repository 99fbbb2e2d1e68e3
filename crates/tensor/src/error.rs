//! The one error of the whole workspace: a sentence, not a classification.
//!
//! Every crate hands errors on to a person, and none decides by their kind;
//! so there is one type, here at the bottom, and `?` needs no conversions.

use std::fmt;

/// Why something was refused, or failed: one sentence that names the thing,
/// what was found, what was needed, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

/// A result with this error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with this sentence.
    pub fn new(sentence: impl Into<String>) -> Error {
        Error(sentence.into())
    }

    /// The same error, told of a file or another thing: `name: sentence`.
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
