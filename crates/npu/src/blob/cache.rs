//! A cache of blobs on disk. The key is a digest of the program, the target's
//! figures, the version of the passes and the version of girih. The folder also
//! has a manifest for readers, and the grouping that was chosen for each graph.
//!
//! A blob is written under a temporary name and then renamed, so that no process
//! reads a partial one. The total size is limited: least recently used blobs are
//! evicted first. A blob that somebody else could have written is not read.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use girih_file::PrivateFolder;
use girih_graph::Graph;
use girih_tensor::{Error, Result};

use super::encoding::{digest, encode, figures, read};
use crate::form::groups::ArrayProgram;
use crate::form::schedule::Schedule;
use crate::kernel::kernel_time_file;
use crate::pass::{self, ArrayMapping, Grouping};
use crate::target::Target;

/// The name of the manifest file.
const MANIFEST_FILE: &str = "manifest.tsv";

/// The maximum size of a manifest.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// The maximum size of a file with a grouping.
const MAX_GROUPING_BYTES: u64 = 64;

/// The default limit in bytes: several hundred sets of the programs of a model.
pub const DEFAULT_CACHE_BYTES: u64 = 1 << 30;

/// The age at which a partial file counts as left by a process that has ended.
const STALE_PART_AGE: Duration = Duration::from_secs(3600);

/// A folder of blobs.
#[derive(Clone, Debug)]
pub struct BlobCache {
    folder: PathBuf,
    private: Arc<PrivateFolder>,
    limit: u64,
}

/// A folder that is opened as a cache when blobs are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobFolder {
    /// The folder.
    pub path: PathBuf,
    /// The limit in bytes.
    pub limit: u64,
    /// Whether the user named it: then a run without it fails.
    pub is_named: bool,
}

impl BlobFolder {
    /// Opens the cache. If the default folder cannot be created or others can write to it,
    /// there is no cache, and `note` receives the reason.
    ///
    /// # Errors
    /// As [`BlobCache::open`], for the folder that the user named.
    pub fn open(&self, note: impl FnOnce(&str)) -> Result<Option<BlobCache>> {
        match BlobCache::open(&self.path) {
            Ok(cache) => Ok(Some(cache.with_limit(self.limit))),
            Err(error) if self.is_named => Err(error),
            Err(error) => {
                note(&format!("{error}; compiled programs are not kept"));
                Ok(None)
            }
        }
    }
}

/// A line of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The digest, which is the name of the file.
    pub key: String,
    /// The program.
    pub program: String,
    /// The target.
    pub target: String,
    /// The version of girih.
    pub version: String,
    /// The size of the blob.
    pub bytes: u64,
}

impl BlobCache {
    /// Opens the cache in a folder, with a limit of [`DEFAULT_CACHE_BYTES`];
    /// creates the folder if it does not exist.
    ///
    /// # Errors
    /// When the folder cannot be created, belongs to another user, or others can write to it.
    pub fn open(folder: &Path) -> Result<BlobCache> {
        let private = Arc::new(PrivateFolder::create(folder).map_err(|error| error.of(folder.display()))?);
        Ok(BlobCache { folder: folder.to_owned(), private, limit: DEFAULT_CACHE_BYTES })
    }

    /// Sets the limit in bytes. A blob above the limit is not cached.
    #[must_use]
    pub fn with_limit(self, limit: u64) -> BlobCache {
        BlobCache { limit, ..self }
    }

    /// Returns the key of a program's blob for a target.
    pub fn key(program: &ArrayProgram, target: &Target) -> String {
        let made_by = (env!("CARGO_PKG_VERSION"), pass::VERSION);
        digest(&format!("{made_by:?}\n{}\n{program:?}", figures(target)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the schedule of a program, if the cache has its blob.
    ///
    /// # Errors
    /// When the blob cannot be read, is of another program, is a link, or belongs to another user
    /// or can be written by others.
    pub fn get(&self, program: &ArrayProgram, target: &Target) -> Result<Option<Schedule>> {
        let name = blob_name(&BlobCache::key(program, target));
        let path = self.path(&name);
        let Some(file) = self.private.file(&name).map_err(|error| self.named(error))? else {
            return Ok(None);
        };
        let schedule = read(&file, target).map_err(|error| error.of(path.display()))?;
        if schedule.name != program.name || schedule.arguments != program.arguments {
            let (path, found, needed) = (path.display(), &schedule.name, &program.name);
            return Err(Error::new(format!(
                "{path}: has the program {found} or other arguments; {needed} with its arguments is needed"
            )));
        }
        // Fails on a read-only disk, whose order of use stays as it is.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(schedule))
    }

    /// Writes a schedule as a blob, unless it is larger than the limit.
    ///
    /// # Errors
    /// When the folder cannot be written, or the schedule cannot be encoded.
    pub fn put(&self, program: &ArrayProgram, target: &Target, schedule: &Schedule) -> Result<()> {
        let key = BlobCache::key(program, target);
        let bytes = encode(schedule, target)?;
        let name = blob_name(&key);
        let path = self.path(&name);
        let failed = |error: io::Error| Error::new(format!("{}: {error}", path.display()));
        if !self.make_room(&path, bytes.len() as u64).map_err(failed)? {
            return Ok(());
        }
        self.write(&name, &bytes).map_err(failed)?;
        let line = format!(
            "{key}\t{}\t{}\t{}\t{}\n",
            schedule.name,
            target.name,
            env!("CARGO_PKG_VERSION"),
            bytes.len()
        );
        self.private
            .append(MANIFEST_FILE)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(failed)
    }

    /// Returns the key of the grouping that costs less for a graph with a mapping.
    pub fn grouping_key(graph: &Graph, mapping: &ArrayMapping, target: &Target) -> String {
        let made_by = (env!("CARGO_PKG_VERSION"), pass::VERSION, pass::TIMES_VERSION);
        let (figures, kernels) = (figures(target), digest(kernel_time_file(&target.core)));
        digest(&format!("{made_by:?}\n{figures}\n{kernels}\n{mapping}\n{graph}"))
    }

    /// Returns the grouping that was kept under a key, if there is one.
    ///
    /// # Errors
    /// When its file cannot be read, is a link, has no known grouping, or belongs to another user or can be
    /// written by others.
    pub fn grouping(&self, key: &str) -> Result<Option<Grouping>> {
        let name = grouping_name(key);
        let Some(file) = self.private.file(&name).map_err(|error| self.named(error))? else {
            return Ok(None);
        };
        let path = self.path(&name);
        let mut text = String::new();
        (&file)
            .take(MAX_GROUPING_BYTES)
            .read_to_string(&mut text)
            .map_err(|error| Error::new(format!("{}: {error}", path.display())))?;
        // Only these are chosen by their costs.
        let known = [Grouping::Joined, Grouping::Resident].into_iter().find(|known| known.name() == text);
        let unknown = || Error::new(format!("{}: has no known grouping", path.display()));
        let known = known.ok_or_else(unknown)?;
        // As for blobs.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(known))
    }

    /// Keeps a grouping under a key.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn keep_grouping(&self, key: &str, grouping: Grouping) -> Result<()> {
        let (name, text) = (grouping_name(key), grouping.name());
        let path = self.path(&name);
        let failed = |error: io::Error| Error::new(format!("{}: {error}", path.display()));
        if self.make_room(&path, text.len() as u64).map_err(failed)? {
            self.write(&name, text.as_bytes()).map_err(failed)?;
        }
        Ok(())
    }

    /// Adds the folder to a sentence that names one of its files.
    fn named(&self, error: Error) -> Error {
        Error::with_kind(error.kind(), format!("{}/{error}", self.folder.display()))
    }

    /// Writes a file under a temporary name, unique to this thread and process,
    /// and renames it.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        static PART_COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), PART_COUNT.fetch_add(1, Ordering::Relaxed));
        let part = format!("{name}.{process}.{number}.part");
        let written = self.private.new_file(&part).and_then(|mut file| file.write_all(bytes));
        let written = written.and_then(|()| self.private.rename(&part, name));
        written.inspect_err(|_| drop(self.private.remove(&part)))
    }

    /// Removes the least recently used blobs until `bytes` more are within the
    /// limit, and old partial files. Returns `false` if `bytes` is above the
    /// limit.
    fn make_room(&self, path: &Path, bytes: u64) -> io::Result<bool> {
        if bytes > self.limit {
            return Ok(false);
        }
        let (mut blobs, mut total) = (Vec::new(), bytes);
        for entry in self.folder.read_dir()? {
            let (file, status) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(found) => found,
                // Another process may have removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let ends = |with: &str| file.extension().is_some_and(|end| end == with);
            if (ends("elf") || ends("grouping")) && file != path {
                total = total.saturating_add(status.len());
                blobs.push((status.modified()?, status.len(), file));
            } else if ends("part") && status.modified()?.elapsed().is_ok_and(|age| age > STALE_PART_AGE) {
                remove(&file)?;
            }
        }
        if total <= self.limit {
            return Ok(true);
        }
        blobs.sort();
        for (_, size, file) in blobs {
            if total <= self.limit {
                break;
            }
            remove(&file)?;
            total -= size;
        }
        self.shorten_manifest();
        Ok(true)
    }

    /// Rewrites the manifest without removed blobs. Ignores errors, as only readers
    /// use the manifest.
    fn shorten_manifest(&self) {
        let Ok(entries) = self.list() else { return };
        let line = |entry: &ManifestEntry| {
            let ManifestEntry { key, program, target, version, bytes } = entry;
            format!("{key}\t{program}\t{target}\t{version}\t{bytes}\n")
        };
        let text: String = entries.iter().map(line).collect();
        let _ = self.write(MANIFEST_FILE, text.as_bytes());
    }

    /// Lists the blobs of the manifest that the folder still has, oldest first.
    ///
    /// # Errors
    /// When the manifest cannot be read or has an invalid line.
    pub fn list(&self) -> Result<Vec<ManifestEntry>> {
        let path = self.folder.join(MANIFEST_FILE);
        let failed = |error: io::Error| Error::new(format!("{}: {error}", path.display()));
        let Some(file) = self.private.file(MANIFEST_FILE).map_err(|error| self.named(error))? else {
            return Ok(Vec::new());
        };
        let mut text = String::new();
        file.take(MAX_MANIFEST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            let path = path.display();
            return Err(Error::new(format!(
                "{path}: has over {MAX_MANIFEST_BYTES} bytes, the maximum of a manifest: remove it"
            )));
        }
        let mut entries: Vec<ManifestEntry> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let entry = entry(line).ok_or_else(|| {
                Error::new(format!(
                    "{} line {} is not a valid entry: remove the folder",
                    path.display(),
                    number + 1
                ))
            })?;
            entries.retain(|known| known.key != entry.key);
            entries.push(entry);
        }
        entries.retain(|entry| self.path(&blob_name(&entry.key)).exists());
        Ok(entries)
    }
}

/// The name of the blob with this key.
fn blob_name(key: &str) -> String {
    format!("{key}.elf")
}

/// The name of the file of the grouping with this key.
fn grouping_name(key: &str) -> String {
    format!("{key}.grouping")
}

/// Removes a file, unless another process has removed it.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn entry(line: &str) -> Option<ManifestEntry> {
    let mut words = line.split('\t').map(str::to_owned);
    let (key, program, target, version) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let bytes = words.next()?.parse().ok()?;
    let sound = key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()) && words.next().is_none();
    sound.then_some(ManifestEntry { key, program, target, version, bytes })
}
