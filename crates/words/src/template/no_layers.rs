//! The layers of a worker's sandbox on systems other than Linux, which have none.

/// Why a layer is off.
pub(crate) type Reason = String;

/// Says that a layer does not exist.
pub(crate) fn without() -> Result<(), Reason> {
    Err("this system does not have it".to_owned())
}

/// Returns an error: files cannot be forbidden.
pub(super) fn forbid_files() -> Result<(), Reason> {
    without()
}

/// Returns an error: calls cannot be filtered.
pub(super) fn filter_calls() -> Result<(), Reason> {
    without()
}
