//! The error type of the whole workspace: a kind and one sentence.
//!
//! The sentence is for a person; the kind is for a program, such as a server that
//! chooses a status code. One type in the lowest crate suffices, and `?` needs no
//! conversions.

use std::fmt;

/// An error: a kind, and one sentence that names the thing, what was found, what was
/// needed, and what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    sentence: String,
}

/// What went wrong, for code that decides by it. The list may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A parameter or a request is wrong, or not supported.
    Refused,
    /// A prompt, or a prompt with its reply, exceeds the context.
    TooLong,
    /// The queue of requests is full; the same request may succeed later.
    QueueFull,
    /// The request waited longer than is allowed, or was expected to; the same request may succeed later.
    WaitTooLong,
    /// The caller cancelled the work.
    Cancelled,
    /// There is no model, file, backend or device of this name.
    NotFound,
    /// Memory does not suffice.
    OutOfMemory,
    /// The device, or the thread that drives it, failed.
    DeviceFailed,
    /// The model produced NaN.
    NotANumber,
    /// The model produced a key or value that the type of the KV cache cannot hold.
    OutOfRange,
    /// Any other error, such as a malformed file.
    Other,
}

/// A result with this error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an error of the kind [`ErrorKind::Other`] with this sentence.
    pub fn new(sentence: impl Into<String>) -> Error {
        Error::with_kind(ErrorKind::Other, sentence)
    }

    /// Returns an error of a kind with this sentence.
    ///
    /// ```
    /// use girih_tensor::{Error, ErrorKind};
    ///
    /// let error = Error::with_kind(ErrorKind::NotFound, "there is no model 'a'").of("list.txt");
    /// assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::NotFound, "list.txt: there is no model 'a'"));
    /// ```
    pub fn with_kind(kind: ErrorKind, sentence: impl Into<String>) -> Error {
        Error { kind, sentence: sentence.into() }
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Prefixes the sentence with the name of a file or another thing: `name: sentence`.
    pub fn of(self, name: impl fmt::Display) -> Error {
        Error { sentence: format!("{name}: {}", self.sentence), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl fmt::Debug for Error {
    /// `Kind: sentence`, which is what a `main` that returns an error prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.sentence)
    }
}

impl std::error::Error for Error {}
