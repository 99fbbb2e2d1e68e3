//! Progress reports of a download.

use std::time::Duration;

use girih_tensor::Error;

use super::select::GgufChoice;

/// A progress report of a pull.
#[derive(Clone, Debug)]
pub enum PullProgress<'a> {
    /// The id names none of several GGUF models, so one was chosen.
    Chosen(&'a GgufChoice),
    /// The files are selected.
    Planned {
        /// The number of files.
        files: usize,
        /// The size of all files, in bytes.
        bytes: u64,
        /// The bytes that are already in the cache, those of unfinished files included.
        present: u64,
    },
    /// Bytes of a file were written.
    Received {
        /// Its name in the repository.
        file: &'a str,
        /// Its digest: 64 hexadecimal digits of SHA-256, or 40 of git's SHA-1.
        digest: &'a str,
        /// The bytes of the file on disk.
        bytes: u64,
        /// The size of the whole file, in bytes.
        of: u64,
        /// The bytes of all files that are still to arrive.
        left: u64,
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
