//! Standard output and standard error. A closed pipe is an error, not a panic.
//!
//! Lines of sentences are broken between words on a terminal. Text of a model or a file reaches a pipe as it is, and a terminal without characters that the
//! terminal would obey. Standard error has only messages; they never contain such characters.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::visible::{Visible, VisibleJson, capped};
use crate::word_wrap::wrapped;

/// Prints a line of the result, like `println!`, and returns whether it could.
macro_rules! print_line {
    ($($text:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints a part of the result: as it is, or on a terminal as [`Visible`].
///
/// # Errors
/// When standard output is closed or cannot be written.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = io::stdout();
    let written = if out.is_terminal() { write!(out, "{}", Visible(text)) } else { write!(out, "{text}") };
    written.map_err(failed)
}

/// Prints lines of sentences, on a terminal broken between words.
///
/// # Errors
/// As [`print()`].
pub fn print_sentences(text: &str) -> Result<()> {
    match columns(io::stdout()) {
        Some(columns) => print_line!("{}", wrapped(&Visible(text).to_string(), columns)),
        None => print_line!("{text}"),
    }
}

/// The number of columns of a stream that is a terminal, if the terminal tells it.
pub fn columns(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Prints one line of JSON, on a terminal with more characters escaped than JSON demands.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value)?;
    if io::stdout().is_terminal() { print_line!("{}", VisibleJson(line)) } else { print_line!("{line}") }
}

/// Prints a part of the result and flushes it.
///
/// # Errors
/// As [`print()`].
pub fn stream(text: &str) -> Result<()> {
    print(text)?;
    io::stdout().flush().map_err(failed)
}

/// As [`stream`], dimmed; standard output must be a terminal.
///
/// # Errors
/// As [`print()`].
pub fn stream_dimmed(text: &str) -> Result<()> {
    // Each part ends its own style, so that whatever ends the reply leaves the terminal as it was.
    write!(io::stdout(), "\u{1b}[2m{}\u{1b}[22m", Visible(text)).map_err(failed)?;
    io::stdout().flush().map_err(failed)
}

/// Whether escape codes may style the text on a terminal.
pub fn allows_style() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Prints a line to standard error, as [`Visible`] and [`capped`], on a terminal broken between words. A
/// failure is ignored, as it could not be reported.
pub fn print_note(line: impl Display) {
    let line = Visible(line).to_string();
    let line = capped(&line);
    let line = columns(io::stderr()).map_or_else(|| line.to_string(), |columns| wrapped(&line, columns));
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

/// A count with its noun: `1 file`, `2 files`.
pub fn counted<N: Display + From<u8> + PartialEq>(count: N, noun: &str) -> String {
    format!("{count} {noun}{}", if count == N::from(1) { "" } else { "s" })
}

/// Creates a folder for outputs, unless it exists.
///
/// # Errors
/// When it cannot be created.
pub fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path)
        .map_err(|error| Error::work(format!("{}: the folder cannot be created: {error}", path.display())))
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::work(format!("standard output cannot be written: {error}")),
    }
}
