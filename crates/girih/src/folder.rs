//! The folder of packed weights: its files, their size, and eviction.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use girih_file::{PrivateFolder, try_lock_file};

/// The suffix of complete files.
pub(crate) const PACKED_SUFFIX: &str = ".packed";

/// The suffix of files that are being written.
pub(crate) const PARTIAL_SUFFIX: &str = ".part";

/// The maximum number of characters of a model's name in a file's name.
const MAX_NAME_LENGTH: usize = 80;

/// The maximum number of characters of a repository's name in a file's name. The hub's names are
/// shorter: two parts of at most 96 characters together, and two dashes.
const MAX_REPOSITORY_LENGTH: usize = 98;

/// The maximum number of characters of what follows a repository's name, so that the whole has
/// less than 255 bytes, with the key and the suffixes.
const MAX_FILE_LENGTH: usize = 40;

/// The maximum of the default limit, in bytes.
const MAX_DEFAULT_LIMIT: u64 = 32 << 30;

/// The default limit is the free space divided by this.
const FREE_SPACE_DIVISOR: u64 = 5;

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

    /// The complete regular files, least recently used first; none if the folder does
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
            if name.ends_with(PACKED_SUFFIX) && status.is_file() {
                files.push(PackedFile { name, bytes: status.len(), used: status.modified()? });
            }
        }
        files.sort_by(|a, b| a.used.cmp(&b.used).then_with(|| a.name.cmp(&b.name)));
        Ok(files)
    }

    /// The names and metadata of everything in it that is not a folder; links are not followed.
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
            if let (false, Ok(name)) = (status.is_dir(), entry.file_name().into_string()) {
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

    /// The bytes of partial files.
    pub(crate) fn partial_bytes(&self) -> io::Result<u64> {
        let entries = self.entries()?.into_iter().filter(|(name, _)| name.ends_with(PARTIAL_SUFFIX));
        Ok(entries.fold(0, |sum: u64, (_, status)| sum.saturating_add(status.len())))
    }

    /// Removes files, least recently used first, until `bytes` more are within
    /// `limit`. Partial files count.
    ///
    /// # Errors
    /// When `bytes` alone exceed `limit` or the free space, or a file cannot be removed.
    pub(crate) fn make_room(&self, bytes: u64, limit: u64) -> io::Result<()> {
        let files = self.files()?;
        let mut kept = files.iter().map(|file| file.bytes).sum::<u64>().saturating_add(self.partial_bytes()?);
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

    /// Removes partial files that ended processes have left: those that nobody has locked. The caller holds the lock
    /// of the folder, so none is between its creation and its lock.
    pub(crate) fn sweep(&self, folder: &PrivateFolder) -> io::Result<()> {
        for (name, _) in self.entries()?.into_iter().filter(|(name, _)| name.ends_with(PARTIAL_SUFFIX)) {
            // What is no file of this user is none of its partial files.
            let Ok(Some(file)) = folder.file(&name) else { continue };
            if try_lock_file(&file)? {
                folder.remove(&name)?;
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
        self.remove_all("")
    }

    /// Removes the packed weights of the models of a repository, whose file in the Hugging Face
    /// cache is at `path`. Returns the number of files and their bytes. A path that is not in
    /// such a cache removes nothing.
    ///
    /// ```
    /// # let folder = girih::tools::PackedFolder::new("/no/such/folder");
    /// let blob = std::path::Path::new("hub/models--org--name/blobs/0123");
    /// assert_eq!(folder.remove_repository_of(blob)?, (0, 0));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn remove_repository_of(&self, path: &Path) -> io::Result<(usize, u64)> {
        match repository_of(path) {
            Some(repository) => self.remove_all(&of_repository(&repository)),
            None => Ok((0, 0)),
        }
    }

    /// Removes its files whose names begin with `prefix`.
    fn remove_all(&self, prefix: &str) -> io::Result<(usize, u64)> {
        let entries = self.entries()?.into_iter().filter(|(name, _)| name.starts_with(prefix));
        let ours: Vec<_> = entries
            .filter(|(name, _)| name.ends_with(PACKED_SUFFIX) || name.ends_with(PARTIAL_SUFFIX))
            .collect();
        ours.iter().try_for_each(|(name, _)| remove(&self.0.join(name)))?;
        Ok((ours.len(), ours.iter().map(|(_, status)| status.len()).sum()))
    }
}

/// The beginning of the names of a repository's files. No other text of a name has its last
/// character, so no other repository's names begin with it.
fn of_repository(repository: &str) -> String {
    plain(repository, MAX_REPOSITORY_LENGTH) + "@"
}

/// A readable name of the model whose first file is at `path`: the repository
/// if it is in the Hugging Face cache, or else the folder if the file is called
/// `model…`; then the file.
pub(crate) fn label(path: &Path) -> String {
    let text = |name: Option<&OsStr>| name.and_then(OsStr::to_str).unwrap_or("model").to_owned();
    let file = text(path.file_stem());
    match repository_of(path) {
        Some(repository) => of_repository(&repository) + &plain(&file, MAX_FILE_LENGTH),
        None if file.starts_with("model") => {
            let folder = text(path.parent().and_then(Path::file_name));
            plain(&format!("{folder}-{file}"), MAX_NAME_LENGTH)
        }
        None => plain(&file, MAX_NAME_LENGTH),
    }
}

/// The name of the repository in the Hugging Face cache that holds the file at `path`, through
/// links too.
fn repository_of(path: &Path) -> Option<String> {
    let named = |path: &Path| {
        path.iter()
            .filter_map(OsStr::to_str)
            .find_map(|name| name.strip_prefix("models--"))
            .map(str::to_owned)
    };
    named(path).or_else(|| named(&path.canonicalize().ok()?))
}

/// A text as a part of a file's name.
fn plain(text: &str, max: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    text.chars().map(plain).take(max).collect()
}

/// Removes a file if it still exists.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_the_name_that_a_person_uses() {
        let cases = [
            ("/m/llama-1b-Q4_0.gguf", "llama-1b-Q4_0"),
            ("/m/my llama/model-00001-of-00002.safetensors", "my_llama-model-00001-of-00002"),
            ("/h/models--org--name/snapshots/0123/a.gguf", "org--name@a"),
            ("a/é\n.gguf", "__"),
            ("/", "model-model"),
        ];
        for (path, name) in cases {
            assert_eq!(label(Path::new(path)), name);
        }
        assert_eq!(label(Path::new(&format!("/{}.gguf", "x".repeat(300)))).len(), MAX_NAME_LENGTH);
    }

    #[test]
    fn the_packed_weights_of_a_repository_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        let names = [
            "org--name@model-1.packed",
            "org--name@b.2.packed.3.part",
            "org--names@model-4.packed",
            "name-model-5.packed",
            "org--name-b@model-6.packed",
            "org--name@notes.txt",
        ];
        names.iter().for_each(|name| fs::write(folder.join(name), "four").unwrap());
        let packed = PackedFolder::new(folder);
        assert_eq!(packed.remove_repository_of(Path::new("/models/name/model.gguf")).unwrap(), (0, 0));
        let blob = Path::new("/h/models--org--name/blobs/0123");
        assert_eq!(packed.remove_repository_of(blob).unwrap(), (2, 8));
        let left = |name: &&str| folder.join(name).exists();
        assert_eq!(names.iter().copied().filter(left).collect::<Vec<_>>(), names[2..]);
        assert_eq!(packed.clear().unwrap().0, 3);
    }
}
