//! The cache of packed weights on disk, which later starts read: its files,
//! their size, and eviction. The backend defines and checks the contents.
//!
//! A file is renamed to its final name once all of it is on the disk, so that no
//! start reads a partial file, even if several write at once. No failure here
//! ends a run.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use girih_graph::Error;
use girih_graph::store::{Store, StoreOptions, StoreWriter, StoredItem, UnsavedItem};
use serde_json::{Value, json};

use crate::output::bytes;
use crate::progress::Show;

/// The suffix of complete files.
const PACKED_SUFFIX: &str = ".packed";

/// The suffix of files that are being written.
const PARTIAL_SUFFIX: &str = ".part";

/// The minimum size of a file in bytes; less is packed before a user notices.
const MIN_BYTES: u64 = 16 << 20;

/// The maximum of the default limit, in bytes.
const MAX_DEFAULT_LIMIT: u64 = 32 << 30;

/// The default limit is the free space divided by this.
const FREE_SPACE_DIVISOR: u64 = 5;

/// The age since the last write at which a partial file counts as abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// The maximum number of characters of a model's name in a file's name.
const MAX_NAME_LENGTH: usize = 80;

/// A folder of packed weights.
#[derive(Clone, Debug)]
pub struct PackedFolder(PathBuf);

/// A complete file of packed weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFile {
    name: String,
    bytes: u64,
    /// The time when a start last read it.
    used: SystemTime,
}

/// `$XDG_CACHE_HOME`, else `~/.cache`.
pub fn cache_home() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))
}

impl PackedFolder {
    /// `$XDG_CACHE_HOME/girih/packed`, else `~/.cache/girih/packed`.
    pub fn default_path() -> Option<PackedFolder> {
        Some(PackedFolder(cache_home()?.join("girih/packed")))
    }

    /// The complete files, least recently used first; none if the folder does
    /// not exist.
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
    fn entries(&self) -> io::Result<Vec<(String, fs::Metadata)>> {
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

    /// The default limit in bytes: a share of the space that was free before
    /// the present files, of `packed` bytes, were written.
    fn default_limit(&self, packed: u64) -> io::Result<u64> {
        Ok((self.free()?.saturating_add(packed) / FREE_SPACE_DIVISOR).min(MAX_DEFAULT_LIMIT))
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
    fn make_room(&self, bytes: u64, limit: u64) -> io::Result<()> {
        let files = self.files()?;
        let mut packed = bytes_of(&files);
        if bytes > limit {
            return Err(io::Error::other(format!("{bytes} bytes exceed the limit of {limit}")));
        }
        for file in files {
            if packed.saturating_add(bytes) <= limit {
                break;
            }
            remove(&self.0.join(file.name))?;
            packed -= file.bytes;
        }
        let free = self.free()?;
        if free < bytes {
            return Err(io::Error::other(format!("the disk has {free} bytes free; {bytes} are needed")));
        }
        Ok(())
    }

    /// Removes partial files that ended processes have left.
    fn sweep(&self) -> io::Result<()> {
        for (name, status) in self.entries()? {
            let is_old = status.modified()?.elapsed().is_ok_and(|age| age > ABANDONED_AFTER);
            if name.ends_with(PARTIAL_SUFFIX) && is_old {
                remove(&self.0.join(name))?;
            }
        }
        Ok(())
    }

    /// Removes all packed weights, including partial files. Returns the number of
    /// files and their bytes. Starts that are reading one are not disturbed.
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

/// The contents of the cache, for `girih doctor`.
#[derive(Debug)]
pub struct PackedStatus {
    path: PathBuf,
    files: io::Result<Vec<PackedFile>>,
    /// The default limit in bytes.
    limit: Option<u64>,
}

impl PackedStatus {
    /// The present contents; `None` if no cache folder is known.
    pub fn now() -> Option<PackedStatus> {
        let folder = PackedFolder::default_path()?;
        let files = folder.files();
        let limit = folder.default_limit(files.as_deref().map_or(0, bytes_of)).ok();
        Some(PackedStatus { path: folder.0, files, limit })
    }

    /// The folder, the bytes, the limit and the files as JSON; unknown values are `null`.
    pub fn json(&self) -> Value {
        let seconds = |time: SystemTime| Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs());
        let row =
            |file: &PackedFile| json!({"name": file.name, "bytes": file.bytes, "used": seconds(file.used)});
        let files = self.files.as_ref().ok();
        json!({
            "path": self.path,
            "bytes": files.map(|files| bytes_of(files)),
            "limit": self.limit,
            "files": files.map(|files| files.iter().map(row).collect::<Vec<_>>()),
        })
    }

    /// The same as readable lines: one for the folder, then one for each file,
    /// most recently used first.
    pub fn lines(&self) -> Vec<String> {
        let path = self.path.display();
        let files = match &self.files {
            Ok(files) => files,
            Err(error) => return vec![format!("packed weights: {path} cannot be read: {error}")],
        };
        let limit = self.limit.map_or("unknown".to_owned(), bytes);
        let mut lines = vec![format!("packed weights: {} in {path} (limit {limit})", bytes(bytes_of(files)))];
        lines.extend(files.iter().rev().map(|file| format!("  {}  {}", file.name, bytes(file.bytes))));
        lines
    }
}

fn bytes_of(files: &[PackedFile]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}

/// Removes a file if it still exists.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// The store that the backend uses: a folder and one model.
///
/// New weights are written by a thread of the lowest priority, so that no token
/// waits for the disk. Dropping the store writes the rest and waits until the
/// file has its final name. A program that is killed earlier leaves a partial
/// file, which a later start removes.
#[derive(Debug)]
pub struct FileStore {
    folder: PackedFolder,
    /// The default limit is a share of the free space.
    options: StoreOptions,
    /// The minimum size of a file in bytes.
    min_bytes: u64,
    /// The prefix of this model's file names.
    model: String,
    show: Show,
    /// Whether loading was cancelled; then reading fails.
    cancelled: Arc<AtomicBool>,
    /// The files that are being written, each with its thread.
    writes: Mutex<Vec<(Arc<FileWrite>, JoinHandle<()>)>>,
}

impl FileStore {
    /// A store for packed weights of the model whose first file is at `path`;
    /// once `cancelled` is set, reading from it fails.
    pub fn new(
        folder: PackedFolder,
        options: StoreOptions,
        path: &Path,
        show: Show,
        cancelled: Arc<AtomicBool>,
    ) -> FileStore {
        let (model, writes) = (label(path), Mutex::default());
        FileStore { folder, options, min_bytes: MIN_BYTES, model, show, cancelled, writes }
    }

    fn open(&self, key: &str) -> io::Result<Option<FileReader>> {
        let end = format!("-{key}{PACKED_SUFFIX}");
        let Some(packed) = self.folder.files()?.into_iter().find(|file| file.name.ends_with(&end)) else {
            return Ok(None);
        };
        let file = File::open(self.folder.0.join(packed.name))?;
        // A file whose time cannot be set is only evicted sooner.
        let _ = file.set_modified(SystemTime::now());
        let cancelled = self.cancelled.clone();
        Ok(Some(FileReader { length: file.metadata()?.len(), file, cancelled }))
    }

    fn begin(&self, weights: Box<dyn UnsavedItem>) -> io::Result<FileWrite> {
        let (key, bytes) = (weights.key(), weights.bytes());
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder.0)?;
        self.folder.sweep()?;
        let limit = match self.options.limit {
            Some(limit) => limit,
            None => self.folder.default_limit(bytes_of(&self.folder.files()?))?,
        };
        self.folder.make_room(bytes, limit)?;
        let name = format!("{}-{key}{PACKED_SUFFIX}", self.model);
        let random = RandomState::new().hash_one(0);
        let partial = self.folder.0.join(format!("{name}.{random:016x}{PARTIAL_SUFFIX}"));
        let file = File::options().write(true).create_new(true).open(&partial)?;
        let target = self.folder.0.join(name);
        let write = FileWrite { weights, file, partial, target, show: self.show };
        write.file.set_len(bytes)?;
        Ok(write)
    }

    /// Starts a thread that writes `weights`.
    fn write(&self, weights: Box<dyn UnsavedItem>) -> io::Result<()> {
        let write = Arc::new(self.begin(weights)?);
        let of_thread = write.clone();
        let body = move || {
            girih_cpu::set_lowest_priority();
            of_thread.write();
        };
        let thread = thread::Builder::new().name("packed weights".to_owned()).spawn(body)?;
        lock(&self.writes).push((write, thread));
        Ok(())
    }
}

impl Drop for FileStore {
    /// Writes the rest, and waits for the threads.
    fn drop(&mut self) {
        for (write, thread) in std::mem::take(&mut *lock(&self.writes)) {
            write.write();
            thread.join().expect("writing a file does not panic");
        }
    }
}

impl Store for FileStore {
    fn find(&self, key: &str) -> Option<Box<dyn StoredItem>> {
        let found =
            self.open(key).map_err(|error| self.note(&Error::new(format!("cannot be read: {error}"))));
        Some(Box::new(found.ok()??))
    }

    fn keep(&self, weights: Box<dyn UnsavedItem>) {
        if !self.options.writes || weights.bytes() < self.min_bytes {
            return;
        }
        if let Err(error) = self.write(weights) {
            self.note(&Error::new(format!("not kept: {error}")));
        }
    }

    fn note(&self, why: &Error) {
        if !self.cancelled.load(Ordering::Relaxed) {
            self.show.note(format!("packed weights in {}: {why}", self.folder.0.display()));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the lock")
}

struct FileReader {
    file: File,
    length: u64,
    cancelled: Arc<AtomicBool>,
}

impl StoredItem for FileReader {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Error::new("loading was cancelled"));
        }
        let bytes = into.len();
        let unread = |error| Error::new(format!("{bytes} bytes at {offset} cannot be read: {error}"));
        self.file.read_exact_at(into, offset).map_err(unread)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

/// A file that is being written.
#[derive(Debug)]
struct FileWrite {
    weights: Box<dyn UnsavedItem>,
    file: File,
    partial: PathBuf,
    target: PathBuf,
    show: Show,
}

impl FileWrite {
    /// Writes parts that no other thread has taken; the last thread renames the file.
    fn write(&self) {
        let outcome = self.weights.write(self).and_then(|is_last| match is_last {
            true => self.finish().map_err(|error| Error::new(format!("not kept: {error}"))),
            false => Ok(()),
        });
        if let Err(error) = outcome {
            self.show.note(format!("{}: {error}", self.target.display()));
        }
    }

    /// Syncs the file to the disk and renames it. It becomes read-only, as
    /// programs may map it.
    fn finish(&self) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(0o400))?;
        self.file.sync_all()?;
        fs::rename(&self.partial, &self.target)?;
        // The name must reach the disk as well.
        self.target.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

impl StoreWriter for FileWrite {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let unwritten =
            |error| Error::new(format!("not kept: {} bytes cannot be written: {error}", bytes.len()));
        self.file.write_all_at(bytes, offset).map_err(unwritten)
    }
}

impl Drop for FileWrite {
    fn drop(&mut self) {
        // Fails if the file was renamed.
        let _ = fs::remove_file(&self.partial);
    }
}

/// A readable name of the model whose first file is at `path`: the repository
/// if it is in the Hugging Face cache, or else the folder if the file is called
/// `model…`; then the file.
fn label(path: &Path) -> String {
    let text = |name: Option<&OsStr>| name.and_then(OsStr::to_str).unwrap_or("model").to_owned();
    let file = text(path.file_stem());
    let repository = path.iter().filter_map(OsStr::to_str).find_map(|name| name.strip_prefix("models--"));
    let owner = match repository {
        Some(repository) => Some(repository.to_owned()),
        None if file.starts_with("model") => Some(text(path.parent().and_then(Path::file_name))),
        None => None,
    };
    let name = [owner.as_deref(), Some(&file)].into_iter().flatten().collect::<Vec<_>>().join("-");
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().map(plain).take(MAX_NAME_LENGTH).collect()
}

#[cfg(test)]
mod tests;
