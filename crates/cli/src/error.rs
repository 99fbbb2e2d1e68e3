//! Errors of commands: one sentence, and the kind that decides the exit code.

use std::fmt::Display;

use girih::ErrorKind;

/// Why a command did not do its work.
#[derive(Debug)]
pub enum Error {
    /// The call was wrong: exit code 2.
    Call(String),
    /// The work failed: exit code 1.
    Work(String),
    /// Standard output was closed: exit code 1, as the work was not done, and no
    /// sentence, as `head` closes it on purpose.
    Closed,
    /// The command-line parser's message, including help.
    Usage(Box<clap::Error>),
}

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The call was wrong.
    pub fn call(sentence: impl Into<String>) -> Error {
        Error::Call(sentence.into())
    }

    /// What went wrong, in one sentence.
    pub fn sentence(&self) -> String {
        match self {
            Error::Call(sentence) | Error::Work(sentence) => sentence.clone(),
            Error::Usage(error) => error.to_string(),
            Error::Closed => "standard output is closed".to_owned(),
        }
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

from_work!(std::io::Error, serde_json::Error);

impl From<girih::Error> for Error {
    /// A request that is refused, or that names what does not exist, is a wrong call; everything
    /// else is work that failed.
    fn from(error: girih::Error) -> Error {
        match error.kind() {
            ErrorKind::Refused | ErrorKind::TooLong | ErrorKind::NotFound => Error::call(error.to_string()),
            _ => Error::work(error),
        }
    }
}
