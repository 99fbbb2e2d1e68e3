//! Texts from outside: files and standard input, read no further than a text of
//! its kind may be long, whatever the system says of its length.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;

use crate::error::{Error, Result};

/// The most bytes of a text that a model is to read, or of a line that holds one.
pub const PROSE_BYTES: u64 = 64 << 20;

/// The most bytes of a description that a person writes, such as of an
/// architecture, of what is to become of each tensor, or of how girih is set up.
pub const DESCRIPTION_BYTES: u64 = 1 << 20;

/// What errors call it.
const STANDARD_INPUT: &str = "standard input";

/// The text on standard input.
///
/// # Errors
/// When it is no text, or too long for one.
pub fn standard_input() -> Result<String> {
    text(io::stdin().lock(), PROSE_BYTES, STANDARD_INPUT)
}

/// The text of a file that has at most `most` bytes.
///
/// # Errors
/// When it cannot be read, is no text, or is longer.
pub fn text_file(path: &Path, most: u64) -> Result<String> {
    text(open(path)?, most, path.display())
}

/// Hands each line of a file to `take`; `-` is standard input. A line has at
/// most [`PROSE_BYTES`] bytes, and is handed on without its end.
///
/// # Errors
/// When the file cannot be read or a line is longer, and what `take` says.
pub fn each_line(file: &Path, mut take: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
    let take = |line| take(line).map(ControlFlow::Continue);
    if file == Path::new("-") {
        return lines(io::stdin().lock(), PROSE_BYTES, STANDARD_INPUT, take);
    }
    lines(BufReader::new(open(file)?), PROSE_BYTES, file.display(), take)
}

/// Hands each line of text on standard input to `take`, until that says that
/// it has enough. A line has at most [`PROSE_BYTES`] bytes, and is handed on
/// without its end.
///
/// # Errors
/// When a line cannot be read, is longer or no text, and what `take` says.
pub fn each_line_of_text(mut take: impl FnMut(&str) -> Result<ControlFlow<()>>) -> Result<()> {
    lines(io::stdin().lock(), PROSE_BYTES, STANDARD_INPUT, |line| {
        let line = String::from_utf8(line);
        let line = line.map_err(|error| Error::call(format!("{STANDARD_INPUT}: is no UTF-8: {error}")))?;
        take(line.strip_suffix('\r').unwrap_or(&line))
    })
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| unreadable(path.display(), &error))
}

fn text(from: impl Read, most: u64, name: impl Display) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&name, &error))?;
    if bytes.len() as u64 > most {
        return Err(Error::call(format!("{name}: has over {most} bytes, the most of such a text")));
    }
    String::from_utf8(bytes).map_err(|error| Error::call(format!("{name}: is no UTF-8: {error}")))
}

fn lines(
    mut from: impl BufRead,
    most: u64,
    name: impl Display,
    mut take: impl FnMut(Vec<u8>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    for number in 1.. {
        let mut line = Vec::new();
        // One more for the line's end.
        let read = from.by_ref().take(most + 1).read_until(b'\n', &mut line);
        if read.map_err(|error| unreadable(&name, &error))? == 0 {
            break;
        }
        line.pop_if(|byte| *byte == b'\n');
        if line.len() as u64 > most {
            let sentence =
                format!("{name} line {number}: has over {most} bytes, the most of a line: divide its text");
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
    fn a_text_is_as_long_as_it_may_be_and_no_longer() {
        let refusal = |bytes: &[u8], most| match text(bytes, most, "a") {
            Err(Error::Call(sentence)) => sentence,
            other => panic!("{other:?}"),
        };
        assert_eq!(text(&b"four"[..], 4, "a").unwrap(), "four");
        assert_eq!(refusal(b"fiver", 4), "a: has over 4 bytes, the most of such a text");
        assert!(refusal(b"\xff", 4).starts_with("a: is no UTF-8"));
    }

    /// A device may say that it has no bytes, and have no end of them.
    #[test]
    fn what_never_ends_is_not_read_to_its_end() {
        let Err(Error::Call(sentence)) = text(io::repeat(b'a'), 1000, "a") else { panic!("read") };
        assert_eq!(sentence, "a: has over 1000 bytes, the most of such a text");
        let read = lines(BufReader::new(io::repeat(b'a')), 1000, "a", |_| panic!("a line"));
        let Err(Error::Call(sentence)) = read else { panic!("read") };
        assert_eq!(sentence, "a line 1: has over 1000 bytes, the most of a line: divide its text");
    }

    #[test]
    fn lines_come_without_their_ends_and_as_long_as_they_may_be() {
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
        assert!(refusal.contains("a line 2: has over 4 bytes"), "{refusal}");
    }
}
