//! The location of test data that is too large, or not licensed, to be committed.

use std::path::PathBuf;

/// The folder in `GIRIH_TEST_DATA`. Without the variable, prints that the test is
/// skipped.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("GIRIH_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
    }
    folder
}
