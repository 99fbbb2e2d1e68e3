//! A lock for a file that several processes read, change and replace.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use girih_tensor::{Error, Result};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use crate::staged::folder_of;

/// The time between two attempts to take a lock.
const PAUSE: Duration = Duration::from_millis(5);

/// The right to change a file; dropping it gives it up.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

/// Waits, at most for `wait`, for the right to change the file `path`, which need not exist. The lock is
/// of the file `.NAME.lock` beside it, which stays: the file itself is replaced, and a removed lock would
/// let two processes hold locks of the same name.
///
/// # Errors
/// When another process keeps the lock, the name is a link, or the folder does not exist or cannot be
/// written.
pub fn lock_file(path: &Path, wait: Duration) -> Result<FileLock> {
    let failed = |sentence: String| Error::new(sentence).of(path.display());
    let name = path.file_name().ok_or_else(|| failed("has no file name".to_owned()))?;
    let name = format!(".{}.lock", name.to_string_lossy());
    let unlocked =
        |error: Errno| failed(format!("cannot be locked by the file {name}: {}", io::Error::from(error)));
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(CWD, folder_of(path).join(&name), flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(unlocked)?);
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(FileLock { _file: file }),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < wait => sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let seconds = wait.as_secs_f64();
                return Err(failed(format!(
                    "another process has locked it for {seconds:.0} s; try again when that has ended"
                )));
            }
            Err(error) => return Err(unlocked(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_lock_at_a_time_and_a_link_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        let path = folder.join("a.toml");
        let held = lock_file(&path, Duration::ZERO).unwrap();
        let error = lock_file(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("a.toml: another process has locked it"), "{error}");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || lock_file(&path, Duration::from_secs(60)).map(drop)
        });
        drop(held);
        waiting.join().unwrap().unwrap();
        assert!(!path.exists(), "only the lock is made");
        std::os::unix::fs::symlink(&path, folder.join(".b.toml.lock")).unwrap();
        assert!(lock_file(&folder.join("b.toml"), Duration::ZERO).is_err());
        assert!(lock_file(&folder.join("none/c.toml"), Duration::ZERO).is_err());
    }
}
