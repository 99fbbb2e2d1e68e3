//! Texts from files and standard input. Reading stops at a maximum length for
//! each kind of text, even if the system reports a shorter one.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::ops::ControlFlow;
use std::path::Path;

use crate::error::{Error, Result};
use crate::output::print_note;

/// The maximum size in bytes of a text for a model, or of a line that contains one.
pub const PROSE_BYTES: u64 = 64 << 20;

/// The maximum size in bytes of a file that a person writes: an architecture, a
/// recipe or a configuration.
pub const DESCRIPTION_BYTES: u64 = 1 << 20;

/// The name of standard input in errors.
const STANDARD_INPUT: &str = "standard input";

/// The text of an argument: `-` is standard input. Without the argument it is standard input, too,
/// if that is not a terminal. `what` names the argument.
///
/// # Errors
/// When there is no text, and as [`standard_input`].
pub fn text_argument(argument: Option<&str>, what: &str) -> Result<String> {
    match argument {
        Some("-") => standard_input(),
        Some(text) => Ok(text.to_owned()),
        None => piped_text()?.ok_or_else(|| missing(what)),
    }
}

/// The text on standard input, if that is not a terminal and not empty.
///
/// # Errors
/// As [`standard_input`].
pub fn piped_text() -> Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let text = text(io::stdin().lock(), PROSE_BYTES, STANDARD_INPUT)?;
    Ok((!text.is_empty()).then(|| without_line_end(text)))
}

/// The error of a call without a text. `what` names the argument.
pub fn missing(what: &str) -> Error {
    Error::call(format!("no {what} was given: add one, or '-' to read it from standard input"))
}

/// Reads the text on standard input that stands for an argument. It loses a final line end, as in
/// `$(command)` of a shell.
///
/// # Errors
/// When it cannot be read, is not UTF-8, or is longer than [`PROSE_BYTES`].
pub fn standard_input() -> Result<String> {
    Ok(without_line_end(text(typed_input(), PROSE_BYTES, STANDARD_INPUT)?))
}

/// The text of a file that the user has named, as it is; `-` is standard input. Without a file it
/// is standard input, too, if that is not a terminal. `what` names the argument. Also returns the
/// name of the file for errors.
///
/// # Errors
/// As [`text_argument`].
pub fn text_of_file(file: Option<&Path>, what: &str) -> Result<(String, String)> {
    match file {
        Some(path) if path != Path::new("-") => {
            Ok((path.display().to_string(), text_file(path, PROSE_BYTES)?))
        }
        None if io::stdin().is_terminal() => Err(missing(what)),
        _ => Ok((STANDARD_INPUT.to_owned(), text(typed_input(), PROSE_BYTES, STANDARD_INPUT)?)),
    }
}

/// A text without its final line end.
pub fn without_line_end(mut text: String) -> String {
    let line = text.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let length = line.unwrap_or(&text).len();
    text.truncate(length);
    text
}

/// Standard input. On a terminal, a note says that it is being read.
fn typed_input() -> io::StdinLock<'static> {
    if io::stdin().is_terminal() {
        print_note("reading standard input; Ctrl-D ends it");
    }
    io::stdin().lock()
}

/// Reads the text of a file.
///
/// # Errors
/// When it cannot be read, is not UTF-8, or has more than `max` bytes.
pub fn text_file(path: &Path, max: u64) -> Result<String> {
    text(open(path)?, max, path.display())
}

/// Whether what stands for a file is JSON itself: an object or a list. A file of such a name is written
/// with its folder, such as `./{a}`.
pub fn is_json_text(given: &Path) -> bool {
    given.to_str().is_some_and(|text| text.trim_start().starts_with(['{', '[']))
}

/// JSON that is given as text, or as the path of a file.
///
/// # Errors
/// As [`text_file`].
pub fn json_text(given: &Path) -> Result<String> {
    match given.to_str().filter(|_| is_json_text(given)) {
        Some(text) => Ok(text.to_owned()),
        None => text_file(given, DESCRIPTION_BYTES),
    }
}

/// Calls `take` with each line of a file, without the line's end; `-` is
/// standard input.
///
/// # Errors
/// When the file cannot be read or a line is longer than [`PROSE_BYTES`], and
/// the errors of `take`.
pub fn each_line(file: &Path, mut take: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
    let take = |line| take(line).map(ControlFlow::Continue);
    if file == Path::new("-") {
        return lines(typed_input(), PROSE_BYTES, STANDARD_INPUT, take);
    }
    lines(BufReader::new(open(file)?), PROSE_BYTES, file.display(), take)
}

/// Calls `take` with each line of standard input, without the line's end, until
/// it breaks.
///
/// # Errors
/// When a line cannot be read, is not UTF-8 or is longer than [`PROSE_BYTES`],
/// and the errors of `take`.
pub fn each_line_of_text(mut take: impl FnMut(&str) -> Result<ControlFlow<()>>) -> Result<()> {
    lines(io::stdin().lock(), PROSE_BYTES, STANDARD_INPUT, |line| {
        let line = String::from_utf8(line);
        let line =
            line.map_err(|error| Error::call(format!("{STANDARD_INPUT}: is not valid UTF-8: {error}")))?;
        take(line.strip_suffix('\r').unwrap_or(&line))
    })
}

/// Opens a file that the user has named. It may be a pipe, such as `<(command)` of a shell.
fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| unreadable(path.display(), &error))
}

/// The bytes of an image in a file.
///
/// # Errors
/// When it cannot be read, or has more than `max` bytes.
pub fn image_bytes(path: &Path, max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(max + 1).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(path.display(), &error))?;
    if bytes.len() as u64 > max {
        let name = path.display();
        return Err(Error::call(format!("{name}: is longer than {max} bytes, the maximum for an image")));
    }
    Ok(bytes)
}

fn text(from: impl Read, max: u64, name: impl Display) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(max + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&name, &error))?;
    if bytes.len() as u64 > max {
        return Err(Error::call(format!("{name}: is longer than {max} bytes, the maximum for such a text")));
    }
    String::from_utf8(bytes).map_err(|error| Error::call(format!("{name}: is not valid UTF-8: {error}")))
}

fn lines(
    mut from: impl BufRead,
    max: u64,
    name: impl Display,
    mut take: impl FnMut(Vec<u8>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    for number in 1.. {
        let mut line = Vec::new();
        // One byte more for the line's end.
        let read = from.by_ref().take(max + 1).read_until(b'\n', &mut line);
        if read.map_err(|error| unreadable(&name, &error))? == 0 {
            break;
        }
        line.pop_if(|byte| *byte == b'\n');
        if line.len() as u64 > max {
            let sentence =
                format!("{name} line {number}: is longer than {max} bytes, the maximum for a line: split it");
            return Err(Error::call(sentence));
        }
        if take(line)?.is_break() {
            break;
        }
    }
    Ok(())
}

fn unreadable(name: impl Display, error: &io::Error) -> Error {
    Error::call(format!("{name}: cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_the_maximum_length_is_read_and_a_longer_one_refused() {
        let refusal = |bytes: &[u8], max| match text(bytes, max, "a") {
            Err(Error::Call(sentence)) => sentence,
            other => panic!("{other:?}"),
        };
        assert_eq!(text(&b"four"[..], 4, "a").unwrap(), "four");
        assert_eq!(refusal(b"fiver", 4), "a: is longer than 4 bytes, the maximum for such a text");
        assert!(refusal(b"\xff", 4).starts_with("a: is not valid UTF-8"));
    }

    #[test]
    fn a_text_loses_one_line_end() {
        for (text, want) in
            [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("\n", ""), ("a\r", "a\r")]
        {
            assert_eq!(without_line_end(text.to_owned()), want, "{text:?}");
        }
    }

    /// A device may report 0 bytes and still be endless.
    #[test]
    fn an_endless_input_is_refused() {
        let Err(Error::Call(sentence)) = text(io::repeat(b'a'), 1000, "a") else { panic!("read") };
        assert_eq!(sentence, "a: is longer than 1000 bytes, the maximum for such a text");
        let read = lines(BufReader::new(io::repeat(b'a')), 1000, "a", |_| panic!("a line"));
        let Err(Error::Call(sentence)) = read else { panic!("read") };
        assert_eq!(sentence, "a line 1: is longer than 1000 bytes, the maximum for a line: split it");
    }

    #[test]
    fn lines_lose_their_ends_and_have_a_maximum_length() {
        let read = |bytes: &[u8]| {
            let mut all = Vec::new();
            let read = lines(bytes, 4, "a", |line| {
                let enough = line == b"stop";
                all.push(String::from_utf8(line).unwrap());
                Ok(if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            (all.join("|"), read.err().map(|error| format!("{error:?}")).unwrap_or_default())
        };
        assert_eq!(read(b"four\n\nend"), ("four||end".to_owned(), String::new()));
        assert_eq!(read(b"four\nfour"), ("four|four".to_owned(), String::new()));
        assert_eq!(read(b"stop\nhere"), ("stop".to_owned(), String::new()));
        assert_eq!(read(b""), (String::new(), String::new()));
        let (before, refusal) = read(b"four\nfiver\n");
        assert_eq!(before, "four");
        assert!(refusal.contains("a line 2: is longer than 4 bytes"), "{refusal}");
    }
}
