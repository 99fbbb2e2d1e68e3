//! Standard output and standard error. A closed pipe is an error, not a panic.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use crate::error::{Error, Result};

/// Prints a line of the result, like `println!`, and returns whether it could.
macro_rules! print_line {
    ($($text:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints a part of the result as it is.
///
/// # Errors
/// When standard output is closed or cannot be written.
pub fn print(text: impl Display) -> Result<()> {
    write!(io::stdout(), "{text}").map_err(failed)
}

/// Prints one line of JSON.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print_line!("{}", serde_json::to_string(value)?)
}

/// Prints a part of the result and flushes it.
///
/// # Errors
/// As [`print()`].
pub fn stream(text: &str) -> Result<()> {
    print(text)?;
    io::stdout().flush().map_err(failed)
}

/// Prints a line to standard error. A failure is ignored, as it could not be reported.
pub fn print_note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Formats a number of bytes for people: `1.50 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => format!("{:.2} {unit}", count as f64 / *size as f64),
        None => format!("{count} B"),
    }
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::work(format!("standard output cannot be written: {error}")),
    }
}
