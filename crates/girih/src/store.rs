//! The store of packed weights: files in a folder, each written by a thread of the lowest
//! priority. The backend defines and checks their contents.
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
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use girih_graph::store::{Store, StoreOptions, StoreWriter, StoredItem, UnsavedItem};
use girih_graph::{Error, Result};

use crate::folder::{PACKED_SUFFIX, PARTIAL_SUFFIX, PackedFolder};
use crate::priority::set_lowest_priority;
use crate::progress::{LoadControl, cancelled};

/// The minimum size of a file in bytes; smaller weights are packed again faster than a user
/// notices.
const MIN_BYTES: u64 = 16 << 20;

/// The maximum number of characters of a model's name in a file's name.
const MAX_NAME_LENGTH: usize = 80;

/// The store of one model in a folder.
///
/// New items are written by a thread of the lowest priority, so that no token
/// waits for the disk. Dropping the store writes the rest and waits until the
/// file has its final name. A program that is killed earlier leaves a partial
/// file, which a later start removes.
#[derive(Debug)]
pub(crate) struct FileStore {
    folder: PackedFolder,
    options: StoreOptions,
    /// The prefix of this model's file names.
    model: String,
    /// The minimum size of a file in bytes.
    min_bytes: u64,
    control: Arc<LoadControl>,
    /// The files that are being written, each with its thread.
    writes: Mutex<Vec<(Arc<FileWrite>, JoinHandle<()>)>>,
}

impl FileStore {
    /// A store for the model whose first file is at `path`; once loading is cancelled,
    /// reading from it fails.
    pub fn new(
        folder: PackedFolder,
        options: StoreOptions,
        path: &Path,
        control: Arc<LoadControl>,
    ) -> FileStore {
        let (model, writes) = (label(path), Mutex::default());
        FileStore { folder, options, model, min_bytes: MIN_BYTES, control, writes }
    }

    fn open(&self, key: &str) -> io::Result<Option<FileReader>> {
        let end = format!("-{key}{PACKED_SUFFIX}");
        let Some(packed) = self.folder.files()?.into_iter().find(|file| file.name.ends_with(&end)) else {
            return Ok(None);
        };
        let file = File::open(self.folder.path().join(packed.name))?;
        // A file whose time cannot be set is only evicted sooner.
        let _ = file.set_modified(SystemTime::now());
        let control = Arc::clone(&self.control);
        Ok(Some(FileReader { length: file.metadata()?.len(), file, control }))
    }

    fn begin(&self, item: Box<dyn UnsavedItem>) -> io::Result<FileWrite> {
        let (key, bytes) = (item.key(), item.bytes());
        DirBuilder::new().recursive(true).mode(0o700).create(self.folder.path())?;
        self.folder.sweep()?;
        let limit = match self.options.limit {
            Some(limit) => limit,
            None => {
                let kept = self.folder.files()?.iter().map(|file| file.bytes).sum();
                self.folder.default_limit(kept)?
            }
        };
        self.folder.make_room(bytes, limit)?;
        let name = format!("{}-{key}{PACKED_SUFFIX}", self.model);
        let random = RandomState::new().hash_one(0);
        let partial = self.folder.path().join(format!("{name}.{random:016x}{PARTIAL_SUFFIX}"));
        let file = File::options().write(true).create_new(true).open(&partial)?;
        let target = self.folder.path().join(name);
        let write = FileWrite { item, file, partial, target, control: Arc::clone(&self.control) };
        write.file.set_len(bytes)?;
        Ok(write)
    }

    /// Starts a thread that writes `item`.
    fn write(&self, item: Box<dyn UnsavedItem>) -> io::Result<()> {
        let write = Arc::new(self.begin(item)?);
        let of_thread = write.clone();
        let body = move || {
            set_lowest_priority();
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

    fn keep(&self, item: Box<dyn UnsavedItem>) {
        if !self.options.writes || item.bytes() < self.min_bytes {
            return;
        }
        if let Err(error) = self.write(item) {
            self.note(&Error::new(format!("not kept: {error}")));
        }
    }

    fn note(&self, why: &Error) {
        self.control.note(format!("packed weights in {}: {why}", self.folder.path().display()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the lock")
}

struct FileReader {
    file: File,
    length: u64,
    control: Arc<LoadControl>,
}

impl StoredItem for FileReader {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.control.cancelled.load(Ordering::Relaxed) {
            return Err(cancelled());
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
    item: Box<dyn UnsavedItem>,
    file: File,
    partial: PathBuf,
    target: PathBuf,
    control: Arc<LoadControl>,
}

impl FileWrite {
    /// Writes parts that no other thread has taken; the last thread renames the file.
    fn write(&self) {
        let outcome = self.item.write(self).and_then(|is_last| match is_last {
            true => self.finish().map_err(|error| Error::new(format!("not kept: {error}"))),
            false => Ok(()),
        });
        if let Err(error) = outcome {
            self.control.note(format!("{}: {error}", self.target.display()));
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
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
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

#[cfg(all(test, feature = "cpu"))]
mod tests;
