//! Where the test data lies that is too big, or not ours, to be committed.

use std::path::PathBuf;

/// The folder in `GIRIH_TEST_DATA`; without it the test says that it is skipped.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("GIRIH_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
    }
    folder
}
