//! The store of packed weights: files in a folder, each written by a thread of the lowest
//! priority. The backend defines and checks their contents.
//!
//! A file is renamed to its final name once all of it is on the disk, so that no
//! start reads a partial file, even if several write at once. A file that somebody
//! else could have written is named in a note and not read. No failure here ends a run.

use std::collections::hash_map::RandomState;
use std::fs::{File, Permissions};
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use girih_file::{PrivateFolder, try_lock_file};
use girih_graph::store::{Store, StoreOptions, StoreWriter, StoredItem, UnsavedItem};
use girih_graph::{Error, Result};

use crate::folder::{PACKED_SUFFIX, PARTIAL_SUFFIX, PackedFolder, label};
use crate::open_options::SyncProcess;
use crate::priority::set_lowest_priority;
use crate::progress::{LoadControl, cancelled};
use crate::sync_worker::{self, FileNames};

/// The minimum size of a file in bytes; smaller weights are packed again faster than a user
/// notices.
const MIN_BYTES: u64 = 16 << 20;

/// The store of one model in a folder.
///
/// New items are written by a thread of the lowest priority, so that no token
/// waits for the disk. Dropping the store writes the rest of items that are awaited and waits until the
/// file has its final name, unless a [`SyncProcess`] does the last part; other items are given up. A program that is killed
/// earlier leaves a partial file, which the next start that writes one removes, as nobody has it
/// locked any more.
#[derive(Debug)]
pub(crate) struct FileStore {
    folder: PackedFolder,
    options: StoreOptions,
    sync: SyncProcess,
    /// The prefix of this model's file names.
    model: String,
    /// The minimum size of a file in bytes.
    min_bytes: u64,
    control: Arc<LoadControl>,
    /// Whether the folder was refused, which one note says.
    is_refused: AtomicBool,
    /// The files that are being written, each with its thread.
    writes: Mutex<Vec<(Arc<FileWrite>, JoinHandle<()>)>>,
}

impl FileStore {
    /// A store for the model whose first file is at `path`; once loading is cancelled,
    /// reading from it fails.
    pub fn new(
        folder: PackedFolder,
        options: StoreOptions,
        sync: SyncProcess,
        path: &Path,
        control: Arc<LoadControl>,
    ) -> FileStore {
        FileStore {
            folder,
            options,
            sync,
            model: label(path),
            min_bytes: MIN_BYTES,
            control,
            is_refused: AtomicBool::new(false),
            writes: Mutex::default(),
        }
    }

    /// Opens the first file with this key that nobody else could have written, and notes the others.
    fn open(&self, key: &str) -> Result<Option<FileReader>> {
        let unread = |error: io::Error| Error::new(format!("cannot be read: {error}"));
        let end = format!("-{key}{PACKED_SUFFIX}");
        let Some(private) = PrivateFolder::open(self.folder.path()).map_err(of_folder)? else {
            return Ok(None);
        };
        for (name, _) in self.folder.entries().map_err(unread)? {
            if !name.ends_with(&end) {
                continue;
            }
            match private.file(&name) {
                // Another process has removed it meanwhile.
                Ok(None) => {}
                Ok(Some(file)) => {
                    // A file whose time cannot be set is only evicted sooner.
                    let _ = file.set_modified(SystemTime::now());
                    let length = file.metadata().map_err(unread)?.len();
                    return Ok(Some(FileReader { length, file, control: Arc::clone(&self.control) }));
                }
                Err(error) => self.note(&Error::new(format!("ignored: {error}"))),
            }
        }
        Ok(None)
    }

    fn begin(&self, item: Box<dyn UnsavedItem>) -> io::Result<FileWrite> {
        let (key, bytes) = (item.key(), item.bytes());
        let folder =
            PrivateFolder::create(self.folder.path()).map_err(of_folder).map_err(io::Error::other)?;
        // A file system without locks keeps the partial files of programs that were killed.
        let sweeping = folder.lock().ok();
        if sweeping.is_some() {
            self.folder.sweep(&folder)?;
        }
        let limit = match self.options.limit {
            Some(limit) => limit,
            None => {
                let kept: u64 = self.folder.files()?.iter().map(|file| file.bytes).sum();
                self.folder.default_limit(kept.saturating_add(self.folder.partial_bytes()?))?
            }
        };
        self.folder.make_room(bytes, limit)?;
        let name = format!("{}-{key}{PACKED_SUFFIX}", self.model);
        let random = RandomState::new().hash_one(0);
        let partial = format!("{name}.{random:016x}{PARTIAL_SUFFIX}");
        let file = folder.new_file(&partial)?;
        if sweeping.is_some() {
            try_lock_file(&file)?;
        }
        drop(sweeping);
        let (path, sync) = (self.folder.path().join(&name), self.sync.clone());
        let control = Arc::clone(&self.control);
        let (is_noted, is_given_up, worker) = Default::default();
        let write = FileWrite {
            item,
            file,
            folder,
            partial,
            name,
            path,
            control,
            is_noted,
            is_given_up,
            sync,
            worker,
        };
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
    /// Writes the rest of what is awaited, and waits for the threads.
    fn drop(&mut self) {
        let writes = std::mem::take(&mut *lock(&self.writes));
        for (write, _) in writes.iter().filter(|(write, _)| !write.item.is_awaited()) {
            write.is_given_up.store(true, Ordering::Relaxed);
        }
        for (write, thread) in writes {
            if write.item.is_awaited() {
                write.write();
            }
            thread.join().expect("writing a file does not panic");
        }
    }
}

impl Store for FileStore {
    fn find(&self, key: &str) -> Option<Box<dyn StoredItem>> {
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let found = self.open(key).map_err(|error| {
            self.is_refused.store(true, Ordering::Relaxed);
            self.note(&error);
        });
        Some(Box::new(found.ok()??))
    }

    fn keep(&self, item: Box<dyn UnsavedItem>) {
        let is_refused = self.is_refused.load(Ordering::Relaxed);
        if is_refused || !self.options.writes || item.bytes() < self.min_bytes {
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

/// Says that an error is of the folder, which notes already name.
fn of_folder(error: Error) -> Error {
    Error::new(format!("the folder {error}"))
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
    folder: PrivateFolder,
    /// Its names in the folder while it is written, and when it is complete.
    partial: String,
    name: String,
    /// The path of the complete file.
    path: PathBuf,
    control: Arc<LoadControl>,
    /// Whether a note says why the file is not kept.
    is_noted: AtomicBool,
    /// Whether the program ends without waiting for the rest.
    is_given_up: AtomicBool,
    sync: SyncProcess,
    /// The process that has taken over the file.
    worker: Mutex<Option<Child>>,
}

impl FileWrite {
    /// Writes parts that no other thread has taken; the last thread renames the file.
    fn write(&self) {
        let outcome = self.item.write(self).and_then(|is_last| match is_last {
            true => self.finish().map_err(|error| Error::new(format!("not kept: {error}"))),
            false => Ok(()),
        });
        // Several threads may find the same disk full.
        if let Err(error) = outcome
            && !self.is_given_up.load(Ordering::Relaxed)
            && !self.is_noted.swap(true, Ordering::Relaxed)
        {
            self.control.note(format!("{}: {error}", self.path.display()));
        }
    }

    /// Syncs the file to the disk and renames it, or leaves this to a worker. It becomes read-only,
    /// as programs may map it.
    fn finish(&self) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(0o400))?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let names = FileNames { folder, partial: &self.partial, name: &self.name };
        if let Some(worker) = sync_worker::start(&self.sync, &self.file, names)? {
            *lock(&self.worker) = Some(worker);
            return Ok(());
        }
        self.file.sync_all()?;
        self.folder.rename(&self.partial, &self.name)?;
        // The name must reach the disk as well.
        self.folder.sync()
    }
}

impl StoreWriter for FileWrite {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return Err(Error::new("not kept: the program ends"));
        }
        let unwritten =
            |error| Error::new(format!("not kept: {} bytes cannot be written: {error}", bytes.len()));
        self.file.write_all_at(bytes, offset).map_err(unwritten)
    }
}

impl Drop for FileWrite {
    fn drop(&mut self) {
        match &mut *lock(&self.worker) {
            // A long-lived program needs no trace of a worker that has ended.
            Some(worker) => _ = worker.try_wait(),
            // Fails if the file was renamed.
            None => _ = self.folder.remove(&self.partial),
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests;
