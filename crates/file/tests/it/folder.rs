//! Folders for the output of tests.

use std::path::{Path, PathBuf};

/// A new, empty folder for one test.
pub fn empty_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder); // it may not exist
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
