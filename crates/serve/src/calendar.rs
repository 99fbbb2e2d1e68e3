//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since the beginning of 1970 in UTC; zero if the clock is set before it.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
