//! What the processes tell each other: lines of JSON.

use std::io::{self, BufRead, Read, Write};

use girih::{Error, ErrorKind, Result};
use girih_serve::{ChangeProgress, ModelChange};
use serde::{Deserialize, Serialize};

/// The maximum length of a line in bytes.
const LINE_BYTES: u64 = 64 << 10;

/// A line to the process that changes models.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The number of the change.
    pub number: u64,
    /// What is to be done; `None` cancels the change.
    pub change: Option<ModelChange>,
}

/// A line from it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ChangeReport {
    /// The number of the change.
    pub number: u64,
    /// How far it is.
    pub progress: Option<ChangeProgress>,
    /// How it ended.
    pub end: Option<End>,
}

/// How a change ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum End {
    /// It is done.
    Done,
    /// It cannot be done so.
    Refused(String),
    /// There is no such model.
    NotFound(String),
    /// Too much is asked for at once.
    Full(String),
    /// It failed.
    Failed(String),
}

impl End {
    /// The end of a change with this result.
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

    /// The result of the change.
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

/// Writes a line.
///
/// # Errors
/// When nobody reads it.
pub fn write_line(mut to: impl Write, line: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads a line; `None` at the end, and when it is none of this form.
pub fn read_line<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> Option<T> {
    let mut line = Vec::new();
    from.take(LINE_BYTES).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}
