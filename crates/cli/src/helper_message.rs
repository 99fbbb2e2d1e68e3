//! What a server and its helpers, processes of their own, tell each other: lines of JSON.

use std::io::{self, BufRead, Read, Write};

use girih::{Error, ErrorKind, Result};
use girih_file::shorten_parse;
use serde::{Deserialize, Serialize};

/// The maximum length of a line in bytes.
const LINE_BYTES: usize = 64 << 10;

/// A line to a helper.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order<T> {
    /// The number of the task.
    pub number: u64,
    /// What is to be done; `None` cancels the task.
    pub task: Option<T>,
}

/// A line from a helper.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct HelperReport<P> {
    /// The number of the task; 0 for an order that has none.
    pub number: u64,
    /// How far it is.
    pub progress: Option<P>,
    /// How it ended.
    pub end: Option<End>,
}

/// How a task ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum End {
    /// It is done.
    Done,
    /// It cannot be done so.
    Refused(String),
    /// There is no such thing.
    NotFound(String),
    /// Too much is asked for at once.
    Full(String),
    /// It failed.
    Failed(String),
}

impl End {
    /// The end of a task with this result.
    pub fn of(result: Result<()>) -> End {
        let Err(error) = result else { return End::Done };
        let sentence = error.to_string();
        match error.kind() {
            ErrorKind::Refused => End::Refused(sentence),
            ErrorKind::NotFound => End::NotFound(sentence),
            ErrorKind::QueueFull => End::Full(sentence),
            _ => End::Failed(sentence),
        }
    }

    /// The result of the task.
    ///
    /// # Errors
    /// When it was not done.
    pub fn result(self) -> Result<()> {
        let (kind, sentence) = match self {
            End::Done => return Ok(()),
            End::Refused(sentence) => (ErrorKind::Refused, sentence),
            End::NotFound(sentence) => (ErrorKind::NotFound, sentence),
            End::Full(sentence) => (ErrorKind::QueueFull, sentence),
            End::Failed(sentence) => (ErrorKind::Other, sentence),
        };
        Err(Error::with_kind(kind, sentence))
    }
}

/// A line as bytes.
///
/// # Errors
/// When it is too long to be read.
pub fn line_of(line: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    if bytes.len() > LINE_BYTES {
        let sentence = format!("a line of {} bytes is too long: at most {LINE_BYTES} are read", bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    Ok(bytes)
}

/// Writes a line.
///
/// # Errors
/// When it is too long, or nobody reads it.
pub fn write_line(mut to: impl Write, line: &impl Serialize) -> io::Result<()> {
    to.write_all(&line_of(line)?)?;
    to.flush()
}

/// A line that was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<T> {
    /// One of the form.
    Read(T),
    /// One of another form: the number of its task, if it has one, and what is wrong.
    Faulty(Option<u64>, String),
    /// There is none any more.
    End,
}

/// Reads a line, and all of one that is too long.
pub fn read_line<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> Line<T> {
    let mut line = Vec::new();
    let limit = LINE_BYTES as u64;
    match from.by_ref().take(limit).read_until(b'\n', &mut line) {
        Err(_) | Ok(0) => return Line::End,
        Ok(_) if line.len() == LINE_BYTES && line.last() != Some(&b'\n') => {
            // Without what was read of it, which may be the beginning of anything.
            return match from.skip_until(b'\n') {
                Err(_) => Line::End,
                Ok(_) => Line::Faulty(None, format!("a line is longer than {LINE_BYTES} bytes")),
            };
        }
        Ok(_) => {}
    }
    serde_json::from_slice(&line).map_or_else(
        |error| {
            let number = serde_json::from_slice(&line).ok().map(|Numbered { number }| number);
            Line::Faulty(number, format!("a line is not of the expected form: {}", shorten_parse(&error)))
        },
        Line::Read,
    )
}

/// What all lines have.
#[derive(Deserialize)]
struct Numbered {
    number: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    use girih_serve::ModelChange;

    type ChangeOrder = Order<ModelChange>;

    #[test]
    fn lines_of_another_form_are_skipped() {
        let long = "x".repeat(3 * LINE_BYTES);
        let delete = r#"{"number":2,"task":{"change":"delete","model":"a"}}"#;
        let input =
            format!("{{\"number\":1}}\n{long}\n{delete}\nno JSON\n{{\"number\":3,\"task\":4}}\n\n{delete}");
        let mut input = input.as_bytes();
        let mut next = || read_line::<ChangeOrder>(&mut input);
        assert!(matches!(next(), Line::Read(Order { number: 1, task: None })));
        assert!(
            matches!(next(), Line::Faulty(None, sentence) if sentence == "a line is longer than 65536 bytes")
        );
        let is_delete = |line| matches!(line, Line::Read(Order { number: 2, task: Some(_) }));
        assert!(is_delete(next()));
        assert!(matches!(next(), Line::Faulty(None, _)));
        assert!(matches!(next(), Line::Faulty(Some(3), sentence) if sentence.contains("expected form")));
        assert!(matches!(next(), Line::Faulty(None, _)));
        assert!(is_delete(next()), "the last one needs no end of line");
        assert!(matches!(next(), Line::End));
        let change = |length| Some(ModelChange::Delete { model: "x".repeat(length) });
        assert!(line_of(&Order { number: 1, task: change(LINE_BYTES) }).is_err());
        let longest = line_of(&Order { number: 1, task: change(LINE_BYTES - 51) }).unwrap();
        assert_eq!(longest.len(), LINE_BYTES);
        assert!(matches!(read_line::<ChangeOrder>(&mut longest.as_slice()), Line::Read(_)));
    }
}
