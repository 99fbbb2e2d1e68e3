//! Standard output and standard error, where a reader that has gone is an end
//! and no panic.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use crate::error::{Error, Result};

/// Prints a line of the result, like `println!`, and says whether it could.
macro_rules! print_line {
    ($($text:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints a part of the result as it is.
///
/// # Errors
/// When nobody reads it, or it cannot be written.
pub fn print(text: impl Display) -> Result<()> {
    write!(io::stdout(), "{text}").map_err(failed)
}

/// Prints a part of the result and lets it be seen at once.
///
/// # Errors
/// As [`print()`].
pub fn stream(text: &str) -> Result<()> {
    print(text)?;
    io::stdout().flush().map_err(failed)
}

/// Says a line that is no result. There is nobody to tell if that fails.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::work(format!("standard output cannot be written: {error}")),
    }
}
