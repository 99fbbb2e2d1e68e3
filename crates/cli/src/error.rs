//! Errors as a user meets them: one sentence and an exit code.

use std::fmt::Display;

/// Why a command did not do its work.
#[derive(Debug)]
pub enum Error {
    /// The call was wrong: exit code 2.
    Call(String),
    /// The work failed: exit code 1.
    Work(String),
    /// Whoever read the results has gone: exit code 1, for the work was not
    /// done, and no sentence, for nobody misses it.
    Closed,
    /// What the command-line parser has to say, help included.
    Usage(Box<clap::Error>),
}

/// A result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The call was wrong.
    pub fn call(sentence: impl Into<String>) -> Error {
        Error::Call(sentence.into())
    }

    /// The work failed.
    pub fn work(sentence: impl Display) -> Error {
        Error::Work(sentence.to_string())
    }
}

macro_rules! from_work {
    ($($error:ty),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::work(error)
            }
        }
    )*};
}

from_work!(girih_model::Error, std::io::Error, serde_json::Error);
