//! Progress reports of a download.

use std::time::Duration;

use girih_tensor::Error;

/// A progress report of a pull.
#[derive(Clone, Debug)]
pub enum PullProgress<'a> {
    /// The files are selected.
    Planned {
        /// The number of files.
        files: usize,
        /// The size of all files, in bytes.
        bytes: u64,
        /// The size of the files that are already in the cache, in bytes.
        present: u64,
    },
    /// Bytes of a file were written.
    Received {
        /// Its name in the repository.
        file: &'a str,
        /// The bytes of the file on disk.
        bytes: u64,
        /// The size of the whole file, in bytes.
        of: u64,
    },
    /// A file is in the cache and verified.
    Finished {
        /// Its name in the repository.
        file: &'a str,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A transient failure.
    Retrying {
        /// The failure.
        why: &'a Error,
        /// The time until the next attempt.
        wait: Duration,
    },
}
