//! Timeouts and retries of a download.

use std::time::Duration;

/// Timeouts and retries of a download.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// The timeout of resolving a host and of connecting to it.
    pub connect_timeout: Duration,
    /// The timeout without progress; a slow trickle of bytes counts as no progress.
    pub stall_timeout: Duration,
    /// The time over which `rate_min` is measured.
    pub rate_window: Duration,
    /// The minimum rate of a file's download, in bytes per second. A slower server would hold the
    /// pull for ever.
    pub rate_min: u64,
    /// The time in which the list of a repository's files, with their sizes and digests, must
    /// arrive, with all retries.
    pub listing_timeout: Duration,
    /// The time to wait for another process that writes the same model.
    pub lock_wait: Duration,
    /// The number of retries of a file's request, after the first attempt.
    pub retries: u32,
    /// The wait before the first retry; each further retry doubles it.
    pub backoff: Duration,
    /// The maximum wait between retries. If a server's `Retry-After` is longer,
    /// the pull fails with an error that states it.
    pub wait_max: Duration,
    /// The maximum number of bytes that are downloaded; `None` for what the disk has.
    pub max_fetched: Option<u64>,
}

impl Default for PullOptions {
    fn default() -> PullOptions {
        PullOptions {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            rate_window: Duration::from_secs(60),
            rate_min: 1024,
            listing_timeout: Duration::from_secs(60),
            lock_wait: Duration::from_secs(10),
            retries: 5,
            backoff: Duration::from_secs(1),
            wait_max: Duration::from_secs(60),
            max_fetched: None,
        }
    }
}
