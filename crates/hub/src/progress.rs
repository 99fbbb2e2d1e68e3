//! What a download reports while it runs.

use std::time::Duration;

use girih_tensor::Error;

/// What a pull is doing.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    /// The files are chosen.
    Planned {
        /// How many.
        files: usize,
        /// Their bytes.
        bytes: u64,
        /// How many of the bytes are in the cache already, in whole files.
        present: u64,
    },
    /// More of a file is on disk.
    Received {
        /// Its name in the repository.
        file: &'a str,
        /// Bytes on disk, counted from the file's start.
        bytes: u64,
        /// Bytes of the whole file.
        of: u64,
    },
    /// A file is in the cache, checked.
    Finished {
        /// Its name in the repository.
        file: &'a str,
        /// Its bytes.
        bytes: u64,
    },
    /// Something failed that may pass.
    Retrying {
        /// What failed.
        why: &'a Error,
        /// The time until the next try.
        wait: Duration,
    },
}
