//! The identity of a file, without reading it: its device, inode, size and times.
//!
//! The name of a file is no identity, even where it is a digest: anybody can give any file that
//! name. So equal files in two places have two identities, and so has a file that was copied. A
//! change that updates none of the five is not noticed: one through a memory map that is not
//! yet written back, or one on a disk whose inodes and times somebody else has chosen.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock of a file's times in Linux is the timer of the kernel, with at least 100 ticks in a
/// second (`CONFIG_HZ`), where the file system stores fractions of a second.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// The coarsest step of the times that a file system stores: FAT stores even seconds, and others
/// whole ones.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// The maximum number of waits for a file that is being changed.
const WAITS: usize = 3;

/// What identifies an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Seconds and nanoseconds; no program can set it.
    changed: (i64, i64),
}

impl FileIdentity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// When the system does not tell it.
    pub fn of(file: &File) -> io::Result<FileIdentity> {
        file.metadata().map(|status| FileIdentity::of_status(&status))
    }

    /// The identity of the file to which a path leads now.
    ///
    /// # Errors
    /// When there is none.
    pub fn at(path: &Path) -> io::Result<FileIdentity> {
        fs::metadata(path).map(|status| FileIdentity::of_status(&status))
    }

    fn of_status(status: &Metadata) -> FileIdentity {
        FileIdentity {
            device: status.dev(),
            inode: status.ino(),
            size: status.size(),
            modified: (status.mtime(), status.mtime_nsec()),
            changed: (status.ctime(), status.ctime_nsec()),
        }
    }

    /// As [`FileIdentity::of`]; waits for the clock if the file was changed within its last
    /// tick, because a further change in the same tick would not show.
    ///
    /// # Errors
    /// As [`FileIdentity::of`], and when the file is still changed after three waits.
    pub fn settled(file: &File) -> io::Result<FileIdentity> {
        settle(|| {
            let identity = FileIdentity::of(file)?;
            Ok((identity, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
        })
    }

    /// The time to wait until a change would show; `None` if it would at the time `now`.
    fn unsettled(&self, now: Duration) -> Option<Duration> {
        // Times without fractions may be those of a file system that stores none.
        let tick = if (self.modified.1, self.changed.1) == (0, 0) { COARSE_TICK } else { CLOCK_TICK };
        let (seconds, nanoseconds) = self.changed;
        let changed = Duration::new(seconds.try_into().unwrap_or(0), nanoseconds.try_into().unwrap_or(0));
        // Another machine's clock may be ahead.
        (now.abs_diff(changed) <= tick).then_some(2 * tick)
    }

    /// Whether the file has the contents of another time, as far as its size and the time of its last modification
    /// tell: a further name, other permissions or another owner change no contents.
    pub fn has_contents_of(&self, other: &FileIdentity) -> bool {
        FileIdentity { changed: other.changed, ..*self } == *other
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

/// Calls `read`, which returns an identity and the time, until a further change would show.
fn settle(mut read: impl FnMut() -> io::Result<(FileIdentity, Duration)>) -> io::Result<FileIdentity> {
    for waits in 0..=WAITS {
        let (identity, now) = read()?;
        let Some(left) = identity.unsettled(now) else { return Ok(identity) };
        if waits < WAITS {
            thread::sleep(left);
        }
    }
    Err(io::Error::other("is being changed; try again when it is complete"))
}

impl fmt::Display for FileIdentity {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileIdentity { device, inode, size, modified, changed } = self;
        write!(
            f,
            "device {device} inode {inode} of {size} bytes, modified {}.{:09}, changed {}.{:09}",
            modified.0, modified.1, changed.0, changed.1
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn identity(path: &Path) -> FileIdentity {
        FileIdentity::settled(&File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn a_name_that_is_a_digest_is_no_identity() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let digest = "ab".repeat(32);
        for cache in ["a", "b"] {
            let (blobs, snapshot) = (root.join(cache).join("blobs"), root.join(cache).join("snapshot"));
            fs::create_dir_all(&blobs).unwrap();
            fs::create_dir_all(&snapshot).unwrap();
            fs::write(blobs.join(&digest), "numbers").unwrap();
            symlink(blobs.join(&digest), snapshot.join("model.gguf")).unwrap();
        }
        let [a, b] = ["a", "b"].map(|cache| identity(&root.join(cache).join("snapshot/model.gguf")));
        assert_ne!(a, b);
        assert_eq!(identity(&root.join("a/blobs").join(&digest)), a, "a link has the identity of its file");
    }

    #[test]
    fn whole_seconds_settle_later() {
        let at = |modified, changed| FileIdentity {
            device: 1,
            inode: 2,
            size: 3,
            modified: (100, modified),
            changed: (100, changed),
        };
        let milliseconds = |after: u64| Duration::from_millis(100_000 + after);
        assert_eq!(at(0, 0).unsettled(milliseconds(1990)), Some(2 * COARSE_TICK));
        assert_eq!(at(0, 0).unsettled(milliseconds(2010)), None);
        for fine in [at(1, 0), at(0, 1)] {
            assert_eq!(fine.unsettled(milliseconds(9)), Some(2 * CLOCK_TICK));
            assert_eq!(fine.unsettled(milliseconds(20)), None);
        }
    }

    #[test]
    fn a_file_is_read_again_until_it_settles() {
        let changed = FileIdentity { device: 1, inode: 2, size: 3, modified: (100, 1), changed: (100, 1) };
        let later = FileIdentity { size: 4, ..changed };
        let at = Duration::from_secs;
        let mut reads = [(changed, at(100)), (changed, at(100)), (later, at(101))].into_iter();
        assert_eq!(settle(|| Ok(reads.next().unwrap())).unwrap(), later);
        let mut count = 0;
        let settled = settle(|| {
            count += 1;
            Ok((changed, at(100)))
        });
        assert!(settled.unwrap_err().to_string().contains("is being changed"));
        assert_eq!(count, WAITS + 1);
    }

    #[test]
    fn files_are_identified_by_inode_size_and_times() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let (path, other) = (root.join("model.gguf"), root.join("other.gguf"));
        fs::write(&path, "numbers").unwrap();
        fs::write(&other, "numbers").unwrap();
        let first = identity(&path);
        let line = first.to_string();
        assert!(line.starts_with("device ") && line.contains(" of 7 bytes"), "{line}");
        assert_eq!(identity(&path), first);
        assert_ne!(identity(&other), first);
        // A further name is no change of the contents; a further byte is.
        fs::hard_link(&path, root.join("second.gguf")).unwrap();
        let linked = identity(&path);
        assert!(
            linked != first && linked.has_contents_of(&first) && !identity(&other).has_contents_of(&first)
        );
        fs::write(&other, "numbers!").unwrap();
        assert!(!identity(&other).has_contents_of(&FileIdentity { size: 7, ..identity(&other) }));
        let first = linked;
        // The same size and modification time, written at once.
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "Numbers").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_ne!(identity(&path), first);
    }
}
