//! The folder of packed weights: its files, their size, and eviction.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The suffix of complete files.
pub(crate) const PACKED_SUFFIX: &str = ".packed";

/// The suffix of files that are being written.
pub(crate) const PARTIAL_SUFFIX: &str = ".part";

/// The maximum of the default limit, in bytes.
const MAX_DEFAULT_LIMIT: u64 = 32 << 30;

/// The default limit is the free space divided by this.
const FREE_SPACE_DIVISOR: u64 = 5;

/// The age since the last write at which a partial file counts as abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// A folder of packed weights. Other files in it are ignored.
///
/// ```
/// use girih::OpenOptions;
/// use girih::tools::PackedFolder;
///
/// // The folder of packed weights.
/// let options = OpenOptions::from_vars(|name| std::env::var(name).ok());
/// let folder = options.cache.map(|cache| PackedFolder::new(cache.join("packed")));
/// ```
#[derive(Clone, Debug)]
pub struct PackedFolder(PathBuf);

/// A complete file of packed weights.
///
/// ```
/// let folder = girih::tools::PackedFolder::new("/no/such/folder");
/// assert_eq!(folder.files().expect("a folder that does not exist is empty"), []);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFile {
    /// Its name, which begins with that of its model.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The time when a run last read it.
    pub used: SystemTime,
}

impl PackedFolder {
    /// The folder at this path, which need not exist.
    ///
    /// ```
    /// let folder = girih::tools::PackedFolder::new("/no/such/folder");
    /// assert_eq!(folder.path(), std::path::Path::new("/no/such/folder"));
    /// ```
    pub fn new(path: impl Into<PathBuf>) -> PackedFolder {
        PackedFolder(path.into())
    }

    /// Its path.
    ///
    /// ```
    /// # let folder = girih::tools::PackedFolder::new("/no/such/folder");
    /// println!("{}", folder.path().display());
    /// ```
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The complete files, least recently used first; none if the folder does
    /// not exist.
    ///
    /// ```
    /// # let folder = girih::tools::PackedFolder::new("/no/such/folder");
    /// let bytes: u64 = folder.files()?.iter().map(|file| file.bytes).sum();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn files(&self) -> io::Result<Vec<PackedFile>> {
        let mut files = Vec::new();
        for (name, status) in self.entries()? {
            if name.ends_with(PACKED_SUFFIX) {
                files.push(PackedFile { name, bytes: status.len(), used: status.modified()? });
            }
        }
        files.sort_by(|a, b| a.used.cmp(&b.used).then_with(|| a.name.cmp(&b.name)));
        Ok(files)
    }

    /// The names and metadata of the regular files.
    pub(crate) fn entries(&self) -> io::Result<Vec<(String, Metadata)>> {
        let listing = match self.0.read_dir() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing?,
        };
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry?;
            // Another process may have removed it meanwhile.
            let Ok(status) = entry.metadata() else { continue };
            if let (true, Ok(name)) = (status.is_file(), entry.file_name().into_string()) {
                entries.push((name, status));
            }
        }
        Ok(entries)
    }

    /// The default limit in bytes: a fifth of the free space plus `kept`, the bytes of the files
    /// that it has, and at most 32 GiB.
    ///
    /// ```
    /// # let folder = girih::tools::PackedFolder::new("/no/such/folder");
    /// assert!(folder.default_limit(0)? <= 32 << 30);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the free space cannot be determined.
    pub fn default_limit(&self, kept: u64) -> io::Result<u64> {
        Ok((self.free()?.saturating_add(kept) / FREE_SPACE_DIVISOR).min(MAX_DEFAULT_LIMIT))
    }

    /// The free bytes that the file system grants this user.
    fn free(&self) -> io::Result<u64> {
        let existing = self.0.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        let disk = rustix::fs::statvfs(existing)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Removes files, least recently used first, until `bytes` more are within
    /// `limit`.
    ///
    /// # Errors
    /// When `bytes` alone exceed `limit` or the free space, or a file cannot be removed.
    pub(crate) fn make_room(&self, bytes: u64, limit: u64) -> io::Result<()> {
        let files = self.files()?;
        let mut kept = files.iter().map(|file| file.bytes).sum::<u64>();
        if bytes > limit {
            return Err(io::Error::other(format!("{bytes} bytes exceed the limit of {limit}")));
        }
        for file in files {
            if kept.saturating_add(bytes) <= limit {
                break;
            }
            remove(&self.0.join(file.name))?;
            kept -= file.bytes;
        }
        let free = self.free()?;
        if free < bytes {
            return Err(io::Error::other(format!("the disk has {free} bytes free; {bytes} are needed")));
        }
        Ok(())
    }

    /// Removes partial files that ended processes have left.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for (name, status) in self.entries()? {
            let is_old = status.modified()?.elapsed().is_ok_and(|age| age > ABANDONED_AFTER);
            if name.ends_with(PARTIAL_SUFFIX) && is_old {
                remove(&self.0.join(name))?;
            }
        }
        Ok(())
    }

    /// Removes all of its files, including partial ones. Returns the number of
    /// files and their bytes. Processes that have a file open can still read it.
    ///
    /// ```
    /// # let folder = girih::tools::PackedFolder::new("/no/such/folder");
    /// let (files, bytes) = folder.clear()?;
    /// assert_eq!((files, bytes), (0, 0));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let entries = self.entries()?.into_iter();
        let ours: Vec<_> = entries
            .filter(|(name, _)| name.ends_with(PACKED_SUFFIX) || name.ends_with(PARTIAL_SUFFIX))
            .collect();
        ours.iter().try_for_each(|(name, _)| remove(&self.0.join(name)))?;
        Ok((ours.len(), ours.iter().map(|(_, status)| status.len()).sum()))
    }
}

/// Removes a file if it still exists.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
