//! Blobs on disk, found again by the digest of what they were made from: the
//! program, the target's figures and the version of girih. Beside them lies a
//! manifest, for people.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use girih_tensor::{Error, Result};

use super::{decode, digest, encode, figures};
use crate::Target;
use crate::form::groups::Program;
use crate::form::schedule::Schedule;

/// The name of the list of what the cache holds.
const MANIFEST: &str = "manifest.tsv";

/// The largest manifest that is read.
const MOST_BYTES: u64 = 16 << 20;

/// A folder of blobs.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// A line of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
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

impl Cache {
    /// The cache in a folder, which is made if there is none.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(folder: &Path) -> Result<Cache> {
        fs::create_dir_all(folder).map_err(|error| Error::new(format!("{}: {error}", folder.display())))?;
        Ok(Cache { folder: folder.to_owned() })
    }

    /// What a blob of this program for this target is found by.
    pub fn key(program: &Program, target: &Target) -> String {
        digest(&format!("{}\n{}\n{program:?}", env!("CARGO_PKG_VERSION"), figures(target)))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.elf"))
    }

    /// The schedule of a program, if the cache has its blob.
    ///
    /// # Errors
    /// When the blob cannot be read, or is not what its name says.
    pub fn get(&self, program: &Program, target: &Target) -> Result<Option<Schedule>> {
        let path = self.path(&Cache::key(program, target));
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::new(format!("{}: {error}", path.display()))),
        };
        decode(&bytes, target).map(Some).map_err(|error| error.of(path.display()))
    }

    /// Keeps a schedule as a blob.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn put(&self, program: &Program, target: &Target, schedule: &Schedule) -> Result<()> {
        let key = Cache::key(program, target);
        let bytes = encode(schedule, target)?;
        let path = self.path(&key);
        let failed = |error: std::io::Error| Error::new(format!("{}: {error}", path.display()));
        // Under another name first, so that nobody ever finds half a blob.
        let part = self.folder.join(format!("{key}.{}.part", std::process::id()));
        fs::write(&part, &bytes).and_then(|()| fs::rename(&part, &path)).map_err(failed)?;
        let line = format!(
            "{key}\t{}\t{}\t{}\t{}\n",
            schedule.name,
            target.name,
            env!("CARGO_PKG_VERSION"),
            bytes.len()
        );
        let manifest = fs::OpenOptions::new().create(true).append(true).open(self.folder.join(MANIFEST));
        manifest.and_then(|mut file| file.write_all(line.as_bytes())).map_err(failed)
    }

    /// What the manifest lists and the folder still has, oldest first.
    ///
    /// # Errors
    /// When the manifest cannot be read or has a line of another form.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let path = self.folder.join(MANIFEST);
        let failed = |error: std::io::Error| Error::new(format!("{}: {error}", path.display()));
        if !path.exists() {
            return Ok(Vec::new());
        }
        if fs::metadata(&path).map_err(failed)?.len() > MOST_BYTES {
            return Err(Error::new(format!("{} is over the limit of {MOST_BYTES} bytes", path.display())));
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let mut entries: Vec<Entry> = Vec::new();
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

fn entry(line: &str) -> Option<Entry> {
    let mut words = line.split('\t').map(str::to_owned);
    let (key, program, target, version) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let bytes = words.next()?.parse().ok()?;
    let sound = key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()) && words.next().is_none();
    sound.then_some(Entry { key, program, target, version, bytes })
}
