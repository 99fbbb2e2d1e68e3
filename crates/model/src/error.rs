//! The one error of this crate: a sentence that names the thing, what was
//! found, what was needed, and what to do.

use std::fmt;

/// Why a model, or a part of one, was refused.
#[derive(Debug)]
pub struct Error {
    sentence: String,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with this sentence.
    pub fn new(sentence: impl Into<String>) -> Error {
        Error { sentence: sentence.into() }
    }

    /// The same error, told of a file or another thing: `name: sentence`.
    pub fn of(self, name: impl fmt::Display) -> Error {
        Error { sentence: format!("{name}: {}", self.sentence) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

impl From<girih_tensor::Error> for Error {
    fn from(error: girih_tensor::Error) -> Error {
        Error::new(error.to_string())
    }
}
