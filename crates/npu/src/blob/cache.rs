//! Blobs on disk, found again by the digest of what they were made from: the
//! program, the target's figures and the version of girih. Beside them lies a
//! manifest, for people.
//!
//! A blob gets its name only when all of it is written, so that nobody ever
//! finds half of one. There are at most so many bytes of blobs; those that were
//! used longest ago go first.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use girih_tensor::{Error, Result};

use super::encoding::{digest, encode, figures, read};
use crate::form::groups::ArrayProgram;
use crate::form::schedule::Schedule;
use crate::pass;
use crate::target::Target;

/// The name of the list of what the cache holds.
const MANIFEST_FILE: &str = "manifest.tsv";

/// The largest manifest that is read.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// Bytes of blobs that are kept where nobody says how many: some hundred sets
/// of the programs of a model.
pub const DEFAULT_CACHE_BYTES: u64 = 1 << 30;

/// How long nobody has written to what an ended process has left behind.
const STALE_PART_AGE: Duration = Duration::from_secs(3600);

/// A folder of blobs.
#[derive(Clone, Debug)]
pub struct BlobCache {
    folder: PathBuf,
    limit: u64,
}

/// A line of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The digest, which is the file's name.
    pub key: String,
    /// The program.
    pub program: String,
    /// The target.
    pub target: String,
    /// The version of girih.
    pub version: String,
    /// The blob's size.
    pub bytes: u64,
}

impl BlobCache {
    /// The cache in a folder, which is made if there is none, of at most
    /// [`DEFAULT_CACHE_BYTES`] bytes.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(folder: &Path) -> Result<BlobCache> {
        fs::create_dir_all(folder).map_err(|error| Error::new(format!("{}: {error}", folder.display())))?;
        Ok(BlobCache { folder: folder.to_owned(), limit: DEFAULT_CACHE_BYTES })
    }

    /// The same with room for so many bytes of blobs; a larger blob is not
    /// kept.
    #[must_use]
    pub fn with_limit(self, limit: u64) -> BlobCache {
        BlobCache { limit, ..self }
    }

    /// What a blob of this program for this target is found by.
    pub fn key(program: &ArrayProgram, target: &Target) -> String {
        let made_by = (env!("CARGO_PKG_VERSION"), pass::VERSION);
        digest(&format!("{made_by:?}\n{}\n{program:?}", figures(target)))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.elf"))
    }

    /// The schedule of a program, if the cache has its blob.
    ///
    /// # Errors
    /// When the blob cannot be read, or is not what its name says.
    pub fn get(&self, program: &ArrayProgram, target: &Target) -> Result<Option<Schedule>> {
        let path = self.path(&BlobCache::key(program, target));
        let failed = |error: io::Error| Error::new(format!("{}: {error}", path.display()));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let schedule = read(file, target).map_err(|error| error.of(path.display()))?;
        if schedule.name != program.name || schedule.arguments != program.arguments {
            let (place, held, sought) = (path.display(), &schedule.name, &program.name);
            return Err(Error::new(format!(
                "{place}: a program {held} lies where {sought} and its arguments are sought"
            )));
        }
        // Where the folder may only be read, the order of use stays as it is.
        let _ =
            File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Ok(Some(schedule))
    }

    /// Keeps a schedule as a blob, if there is room for it.
    ///
    /// # Errors
    /// When the folder cannot be written, or the schedule cannot be a blob.
    pub fn put(&self, program: &ArrayProgram, target: &Target, schedule: &Schedule) -> Result<()> {
        let key = BlobCache::key(program, target);
        let bytes = encode(schedule, target)?;
        let path = self.path(&key);
        let failed = |error: io::Error| Error::new(format!("{}: {error}", path.display()));
        if !self.make_room(&path, bytes.len() as u64).map_err(failed)? {
            return Ok(());
        }
        self.write(&path, &bytes).map_err(failed)?;
        let line = format!(
            "{key}\t{}\t{}\t{}\t{}\n",
            schedule.name,
            target.name,
            env!("CARGO_PKG_VERSION"),
            bytes.len()
        );
        let manifest = File::options().create(true).append(true).open(self.folder.join(MANIFEST_FILE));
        manifest.and_then(|mut file| file.write_all(line.as_bytes())).map_err(failed)
    }

    /// Writes a file under another name first, one that no other thread or
    /// process has.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        static PART_COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), PART_COUNT.fetch_add(1, Ordering::Relaxed));
        let part = path.with_extension(format!("{process}.{number}.part"));
        let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
        written.inspect_err(|_| drop(fs::remove_file(&part)))
    }

    /// Removes what was used longest ago until so many bytes more are within
    /// the limit, and what ended processes left unfinished; `false` where they
    /// never are.
    fn make_room(&self, path: &Path, bytes: u64) -> io::Result<bool> {
        if bytes > self.limit {
            return Ok(false);
        }
        let (mut blobs, mut held) = (Vec::new(), bytes);
        for entry in self.folder.read_dir()? {
            let (place, status) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(found) => found,
                // Another process may have removed it in between.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let ends = |with: &str| place.extension().is_some_and(|end| end == with);
            if ends("elf") && place != path {
                held = held.saturating_add(status.len());
                blobs.push((status.modified()?, status.len(), place));
            } else if ends("part") && status.modified()?.elapsed().is_ok_and(|age| age > STALE_PART_AGE) {
                remove(&place)?;
            }
        }
        if held <= self.limit {
            return Ok(true);
        }
        blobs.sort();
        for (_, size, place) in blobs {
            if held <= self.limit {
                break;
            }
            remove(&place)?;
            held -= size;
        }
        self.shorten_manifest();
        Ok(true)
    }

    /// Writes the manifest anew with what is still there. It is for people, so
    /// no failure here matters.
    fn shorten_manifest(&self) {
        let Ok(entries) = self.list() else { return };
        let line = |entry: &ManifestEntry| {
            let ManifestEntry { key, program, target, version, bytes } = entry;
            format!("{key}\t{program}\t{target}\t{version}\t{bytes}\n")
        };
        let text: String = entries.iter().map(line).collect();
        let _ = self.write(&self.folder.join(MANIFEST_FILE), text.as_bytes());
    }

    /// What the manifest lists and the folder still has, oldest first.
    ///
    /// # Errors
    /// When the manifest cannot be read or has a line of another form.
    pub fn list(&self) -> Result<Vec<ManifestEntry>> {
        let path = self.folder.join(MANIFEST_FILE);
        let failed = |error: io::Error| Error::new(format!("{}: {error}", path.display()));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut text = String::new();
        file.take(MAX_MANIFEST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            let place = path.display();
            return Err(Error::new(format!(
                "{place}: has over {MAX_MANIFEST_BYTES} bytes, the most of a manifest: remove it"
            )));
        }
        let mut entries: Vec<ManifestEntry> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let entry = entry(line).ok_or_else(|| {
                Error::new(format!("{} line {} is no entry: remove the folder", path.display(), number + 1))
            })?;
            entries.retain(|known| known.key != entry.key);
            entries.push(entry);
        }
        entries.retain(|entry| self.path(&entry.key).exists());
        Ok(entries)
    }
}

/// Removes a file that another process may have removed.
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
