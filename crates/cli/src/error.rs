//! Errors as a user meets them: one sentence and an exit code.

use std::fmt::Display;
use std::process::ExitCode;

use crate::output;

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

    /// Prints the error and yields the exit code.
    pub fn report(self) -> ExitCode {
        let (sentence, code) = match self {
            Error::Call(sentence) => (sentence, 2),
            Error::Work(sentence) => (sentence, 1),
            Error::Closed => return ExitCode::from(1),
            Error::Usage(error) => {
                // Printing to a closed pipe is no reason for another exit code.
                let _ = error.print();
                return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            }
        };
        output::say(format_args!("girih: {}", visible(&sentence)));
        ExitCode::from(code)
    }
}

/// A sentence whose control characters are spelled out: it may repeat what
/// stands in a file, and a terminal would obey them.
fn visible(sentence: &str) -> String {
    let spelled = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    sentence.chars().map(spelled).collect()
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

from_work!(girih_tensor::Error, std::io::Error, serde_json::Error);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_commanded_by_an_error() {
        assert_eq!(visible("a\u{1b}[2J\u{7}b\nc"), "a\\u{1b}[2J\\u{7}b\nc");
    }
}
