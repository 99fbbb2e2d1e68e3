//! The one error of this crate: a sentence, not a classification.

use std::fmt;

/// Why a tensor's description or its bytes were refused.
///
/// The text names the thing, what was found and what was needed.
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
