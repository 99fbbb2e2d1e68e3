//! How patient a download is.

use std::time::Duration;

/// How long to wait, and how often to try again.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// For finding a host and for connecting to it.
    pub connect_timeout: Duration,
    /// For a first byte, and between bytes; a drip counts as no progress.
    pub stall_timeout: Duration,
    /// For another process that writes the same model.
    pub lock_wait: Duration,
    /// Tries after the first one, for each file.
    pub retries: u32,
    /// Before the first retry; doubles with each further one.
    pub backoff: Duration,
    /// The longest wait, by doubling or by a server's `Retry-After`. A server
    /// that asks for more is told of in the error.
    pub wait_max: Duration,
}

impl Default for PullOptions {
    fn default() -> PullOptions {
        PullOptions {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            lock_wait: Duration::from_secs(10),
            retries: 5,
            backoff: Duration::from_secs(1),
            wait_max: Duration::from_secs(60),
        }
    }
}
