//! What the machine offers.

use std::num::NonZero;
use std::thread;

/// The threads that this process may use at once: the system's processors, less
/// those that affinity or a cgroup's quota withholds; one where it cannot be told.
pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
