//! What fetches images that requests name by URL. Another process does, as the server may not connect to other machines.

use std::fmt::Debug;
use std::time::Duration;

use girih::Result;

/// What fetches images that requests name by URL.
pub trait ImageFetcher: Debug + Send + Sync {
    /// The bytes at a URL of http or https, at most `max_bytes`. It blocks, for little more than `time`.
    ///
    /// # Errors
    /// When they cannot be fetched; of the kind [`ErrorKind::Refused`](girih::ErrorKind::Refused) if that is the URL's fault.
    fn fetch(&self, url: &str, max_bytes: u64, time: Duration) -> Result<Vec<u8>>;
}
