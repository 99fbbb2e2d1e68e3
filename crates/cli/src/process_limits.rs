//! The limits of this process that its start adjusts, so that reaching one is an error with a sentence.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;

/// Makes a write beyond the limit of a file's size (`ulimit -f`) fail. By default, the signal SIGXFSZ ends the
/// process, also in a write that is optional, such as that of packed weights.
///
/// # Errors
/// When the signal cannot be caught.
pub fn survive_file_limit() -> io::Result<()> {
    // A signal that is caught changes nothing else; nobody reads the flag.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Raises the limit of open files (`ulimit -n`) as far as this user may, and returns it; `None` if there is none. Each
/// connection of a server takes a file.
pub fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    // If the system refuses, the old limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current
}
