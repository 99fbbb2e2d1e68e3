//! Errors of the library as exceptions by kind, whose classes `girih.errors` has.

use girih::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The word for a kind; one that this module does not know is `other`.
fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Refused => "refused",
        ErrorKind::TooLong => "too_long",
        ErrorKind::QueueFull => "queue_full",
        ErrorKind::WaitTooLong => "wait_too_long",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::NotFound => "not_found",
        ErrorKind::OutOfMemory => "out_of_memory",
        ErrorKind::DeviceFailed => "device_failed",
        ErrorKind::NotANumber => "not_a_number",
        ErrorKind::OutOfRange => "out_of_range",
        _ => "other",
    }
}

/// The exception of an error.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    static EXCEPTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let exception = EXCEPTION
        .get_or_try_init(py, || py.import("girih.errors")?.getattr("exception").map(Bound::unbind))
        .and_then(|exception| exception.call1(py, (kind_name(error.kind()), error.to_string())));
    match exception {
        Ok(exception) => PyErr::from_value(exception.into_bound(py)),
        Err(fault) => fault,
    }
}

/// The exception of an error of the caller.
pub fn refused(py: Python<'_>, sentence: impl Into<String>) -> PyErr {
    raised(py, &Error::with_kind(ErrorKind::Refused, sentence))
}

/// The exception of something that was used after it was closed.
pub fn closed(py: Python<'_>, what: &str) -> PyErr {
    refused(py, format!("the {what} is closed; open it again"))
}

/// The value of a JSON text that the Python part wrote; `what` names it in errors.
pub fn parsed(py: Python<'_>, what: &str, text: &str) -> PyResult<serde_json::Value> {
    girih::json::parse(what, text).map_err(|error| raised(py, &error))
}
