//! Packed weights in a folder of girih's own, so that the second start reads
//! them: which files there are, how many bytes, and which go first. What is in
//! them, and whether it is whole, the backend knows.
//!
//! A file gets its name only when all of it is on the disk, so that no start
//! sees half of one, however many write at once. No failure here ends a run.

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

use girih_cpu::{PackKey, PackReader, PackWriter, PackedStore, Unkept};
use girih_graph::Error;
use serde_json::{Value, json};

use crate::progress::Show;

/// How the names of whole files end.
const WHOLE: &str = ".packed";

/// How the names of files end that are being written.
const PART: &str = ".part";

/// What packs faster than a user notices is not kept.
const LEAST: u64 = 16 << 20;

/// The most bytes that are kept where nobody says how many.
const MOST: u64 = 32 << 30;

/// Which part of the free space is kept full at most, where nobody says so: one in so many.
const SHARE: u64 = 5;

/// How long nobody has written to what an ended process has left behind.
const LEFT: Duration = Duration::from_secs(3600);

/// Characters of a model's name in a file's name.
const NAME_LENGTH: usize = 80;

/// A folder of packed weights.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// A file of packed weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    name: String,
    bytes: u64,
    /// When a start last read it.
    used: SystemTime,
}

/// `$XDG_CACHE_HOME`, else `~/.cache`.
pub fn cache_home() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))
}

impl Folder {
    /// `$XDG_CACHE_HOME/girih/packed`, else `~/.cache/girih/packed`.
    pub fn usual() -> Option<Folder> {
        Some(Folder(cache_home()?.join("girih/packed")))
    }

    /// The whole files, the one that was read longest ago first; none where
    /// there is no folder.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn files(&self) -> io::Result<Vec<Held>> {
        let mut files = Vec::new();
        for (name, status) in self.entries()? {
            if name.ends_with(WHOLE) {
                files.push(Held { name, bytes: status.len(), used: status.modified()? });
            }
        }
        files.sort_by(|a, b| a.used.cmp(&b.used).then_with(|| a.name.cmp(&b.name)));
        Ok(files)
    }

    /// The names of regular files, and what the system says of them.
    fn entries(&self) -> io::Result<Vec<(String, fs::Metadata)>> {
        let listing = match self.0.read_dir() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing?,
        };
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry?;
            // Another process may have removed it in between.
            let Ok(status) = entry.metadata() else { continue };
            if let (true, Ok(name)) = (status.is_file(), entry.file_name().into_string()) {
                entries.push((name, status));
            }
        }
        Ok(entries)
    }

    /// The most bytes that are kept, where nobody says how many: a part of what
    /// is free or was before these files were written.
    fn usual_limit(&self, held: u64) -> io::Result<u64> {
        Ok((self.free()?.saturating_add(held) / SHARE).min(MOST))
    }

    /// Bytes that the file system leaves to this user.
    fn free(&self) -> io::Result<u64> {
        let existing = self.0.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        let disk = rustix::fs::statvfs(existing)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Removes files, those first that were read longest ago, until `bytes`
    /// more are within `limit`.
    ///
    /// # Errors
    /// When they never are, or a file cannot be removed.
    fn make_room(&self, bytes: u64, limit: u64) -> io::Result<()> {
        let files = self.files()?;
        let mut held = bytes_of(&files);
        if bytes > limit {
            return Err(io::Error::other(format!("{bytes} bytes are more than the limit of {limit}")));
        }
        for file in files {
            if held.saturating_add(bytes) <= limit {
                break;
            }
            remove(&self.0.join(file.name))?;
            held -= file.bytes;
        }
        let free = self.free()?;
        if free < bytes {
            return Err(io::Error::other(format!("the disk has {free} bytes free, {bytes} are needed")));
        }
        Ok(())
    }

    /// Removes what ended processes have left unfinished.
    fn sweep(&self) -> io::Result<()> {
        for (name, status) in self.entries()? {
            let is_old = status.modified()?.elapsed().is_ok_and(|age| age > LEFT);
            if name.ends_with(PART) && is_old {
                remove(&self.0.join(name))?;
            }
        }
        Ok(())
    }

    /// Removes all packed weights, unfinished ones too; yields how many files
    /// and bytes that were. Starts that read one of them go on.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let entries = self.entries()?.into_iter();
        let ours: Vec<_> =
            entries.filter(|(name, _)| name.ends_with(WHOLE) || name.ends_with(PART)).collect();
        ours.iter().try_for_each(|(name, _)| remove(&self.0.join(name)))?;
        Ok((ours.len(), ours.iter().map(|(_, status)| status.len()).sum()))
    }
}

/// What is kept for the next starts, for `girih doctor`.
#[derive(Debug)]
pub struct Holdings {
    path: PathBuf,
    /// What there is, or why nobody knows.
    files: io::Result<Vec<Held>>,
    /// The most bytes that are kept where nobody says how many.
    limit: Option<u64>,
}

impl Holdings {
    /// What there is now; nothing where there is no home to keep it in.
    pub fn now() -> Option<Holdings> {
        let folder = Folder::usual()?;
        let files = folder.files();
        let limit = folder.usual_limit(files.as_deref().map_or(0, bytes_of)).ok();
        Some(Holdings { path: folder.0, files, limit })
    }

    /// The folder, the bytes, the limit and the files; `null` for what cannot be read.
    pub fn json(&self) -> Value {
        let seconds = |time: SystemTime| Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs());
        let row = |file: &Held| json!({"name": file.name, "bytes": file.bytes, "used": seconds(file.used)});
        let files = self.files.as_ref().ok();
        json!({
            "path": self.path,
            "bytes": files.map(|files| bytes_of(files)),
            "limit": self.limit,
            "files": files.map(|files| files.iter().map(row).collect::<Vec<_>>()),
        })
    }

    /// The same for people: a line for the folder and one for each file, the
    /// one that was used last first; `bytes` writes a number of bytes.
    pub fn lines(&self, bytes: fn(u64) -> String) -> Vec<String> {
        let place = self.path.display();
        let files = match &self.files {
            Ok(files) => files,
            Err(error) => return vec![format!("packed weights: {place} cannot be read: {error}")],
        };
        let limit = self.limit.map_or("an unknown number".to_owned(), bytes);
        let mut lines =
            vec![format!("packed weights: {} of at most {limit} in {place}", bytes(bytes_of(files)))];
        lines.extend(files.iter().rev().map(|file| format!("  {}  {}", file.name, bytes(file.bytes))));
        lines
    }
}

fn bytes_of(files: &[Held]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}

/// Removes a file, which may have gone already.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// What is wanted of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Whether new files are written.
    pub writes: bool,
    /// The most bytes of all files.
    pub limit: Option<u64>,
    /// The least bytes of a file.
    pub least: u64,
}

impl Wishes {
    /// Those of a user who says at most whether to write and how much.
    pub fn new(writes: bool, limit: Option<u64>) -> Wishes {
        Wishes { writes, limit, least: LEAST }
    }
}

/// A folder as the backend uses it.
///
/// New weights are written by a thread that runs only while nobody else wants
/// its processor, so that no token waits for the disk. Who drops the store, at
/// the latest at the end of the program, writes what is left and waits until
/// the file has its name. A program that is killed before leaves an unfinished
/// file, which a later start removes.
#[derive(Debug)]
pub struct Store {
    folder: Folder,
    wishes: Wishes,
    /// How files of this model begin.
    model: String,
    show: Show,
    /// Whether nobody wants what is read any longer.
    abandoned: Arc<AtomicBool>,
    /// What is being written, and by whom.
    drafts: Mutex<Vec<(Arc<Draft>, JoinHandle<()>)>>,
}

impl Store {
    /// A store for packed weights of the model whose first file is at `path`;
    /// once `abandoned` is set, reading from it fails.
    pub fn new(folder: Folder, wishes: Wishes, path: &Path, show: Show, abandoned: Arc<AtomicBool>) -> Store {
        Store { folder, wishes, model: label(path), show, abandoned, drafts: Mutex::default() }
    }

    fn open(&self, key: PackKey) -> io::Result<Option<Reader>> {
        let end = format!("-{key}{WHOLE}");
        let Some(held) = self.folder.files()?.into_iter().find(|held| held.name.ends_with(&end)) else {
            return Ok(None);
        };
        let file = File::open(self.folder.0.join(held.name))?;
        // Who may not say that the file was used leaves it to be removed sooner.
        let _ = file.set_modified(SystemTime::now());
        let abandoned = self.abandoned.clone();
        Ok(Some(Reader { length: file.metadata()?.len(), file, abandoned }))
    }

    fn begin(&self, weights: Unkept) -> io::Result<Draft> {
        let (key, bytes) = (weights.key(), weights.bytes());
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder.0)?;
        self.folder.sweep()?;
        let limit = match self.wishes.limit {
            Some(limit) => limit,
            None => self.folder.usual_limit(bytes_of(&self.folder.files()?))?,
        };
        self.folder.make_room(bytes, limit)?;
        let name = format!("{}-{key}{WHOLE}", self.model);
        let part = self.folder.0.join(format!("{name}.{:016x}{PART}", RandomState::new().hash_one(0)));
        let file = File::options().write(true).create_new(true).open(&part)?;
        let target = self.folder.0.join(name);
        let draft = Draft { weights, file, part, target, show: self.show };
        draft.file.set_len(bytes)?;
        Ok(draft)
    }

    /// Begins to write `weights` in a thread.
    fn write(&self, weights: Unkept) -> io::Result<()> {
        let draft = Arc::new(self.begin(weights)?);
        let of_thread = draft.clone();
        let write = move || {
            girih_cpu::run_last();
            of_thread.write();
        };
        let thread = thread::Builder::new().name("packed weights".to_owned()).spawn(write)?;
        lock(&self.drafts).push((draft, thread));
        Ok(())
    }
}

impl Drop for Store {
    /// Writes what the threads have left, and waits for them.
    fn drop(&mut self) {
        for (draft, thread) in std::mem::take(&mut *lock(&self.drafts)) {
            draft.write();
            thread.join().expect("writing a file does not panic");
        }
    }
}

impl PackedStore for Store {
    fn find(&self, key: PackKey) -> Option<Box<dyn PackReader>> {
        let found =
            self.open(key).map_err(|error| self.note(&Error::new(format!("cannot be read: {error}"))));
        Some(Box::new(found.ok()??))
    }

    fn keep(&self, weights: Unkept) {
        if !self.wishes.writes || weights.bytes() < self.wishes.least {
            return;
        }
        if let Err(error) = self.write(weights) {
            self.note(&Error::new(format!("they are not kept: {error}")));
        }
    }

    fn note(&self, why: &Error) {
        if !self.abandoned.load(Ordering::Relaxed) {
            self.show.note(format!("packed weights in {}: {why}", self.folder.0.display()));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the lock")
}

struct Reader {
    file: File,
    length: u64,
    abandoned: Arc<AtomicBool>,
}

impl PackReader for Reader {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(Error::new("nobody wants them any longer"));
        }
        let bytes = into.len();
        let unread = |error| Error::new(format!("{bytes} bytes at {offset} cannot be read: {error}"));
        self.file.read_exact_at(into, offset).map_err(unread)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

/// Weights on their way into a file.
#[derive(Debug)]
struct Draft {
    weights: Unkept,
    file: File,
    part: PathBuf,
    target: PathBuf,
    show: Show,
}

impl Draft {
    /// Writes what nobody else writes; who is last brings the file to its name.
    fn write(&self) {
        let outcome = self.weights.write(self).and_then(|is_last| match is_last {
            true => self.settle().map_err(|error| Error::new(format!("is not kept: {error}"))),
            false => Ok(()),
        });
        if let Err(error) = outcome {
            self.show.note(format!("{}: {error}", self.target.display()));
        }
    }

    /// Brings the file to the disk and to its name. Nobody may write to it after
    /// that, as programs may have mapped it.
    fn settle(&self) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(0o400))?;
        self.file.sync_all()?;
        fs::rename(&self.part, &self.target)?;
        // The name must reach the disk, too.
        self.target.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

impl PackWriter for Draft {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let unwritten = |error| Error::new(format!("is not kept: {} bytes: {error}", bytes.len()));
        self.file.write_all_at(bytes, offset).map_err(unwritten)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // There is nothing under this name once the file has its own.
        let _ = fs::remove_file(&self.part);
    }
}

/// What a person calls the model whose first file is at `path`: the repository
/// in the Hugging Face cache, the folder where all files are called `model`,
/// and the file.
fn label(path: &Path) -> String {
    let text = |name: Option<&OsStr>| name.and_then(OsStr::to_str).unwrap_or("model").to_owned();
    let file = text(path.file_stem());
    let repository = path.iter().filter_map(OsStr::to_str).find_map(|name| name.strip_prefix("models--"));
    let whose = match repository {
        Some(repository) => Some(repository.to_owned()),
        None if file.starts_with("model") => Some(text(path.parent().and_then(Path::file_name))),
        None => None,
    };
    let name = [whose.as_deref(), Some(&file)].into_iter().flatten().collect::<Vec<_>>().join("-");
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().map(plain).take(NAME_LENGTH).collect()
}

#[cfg(test)]
mod tests;
