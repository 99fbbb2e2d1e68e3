//! The cache on disk, in the layout of `huggingface_hub`, so that other tools
//! share its models:
//!
//! ```text
//! models--org--name/blobs/<digest>                 the bytes
//! models--org--name/snapshots/<commit>/<file>      a relative link to a blob
//! models--org--name/refs/<revision>                the commit's 40 digits
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use girih_file::{FileLimits, SAFETENSORS_INDEX, open_regular, read_required, shorten_parse};
use girih_tensor::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::Deserialize;

use super::digest::Digest;
use super::env::HubEnv;
use super::id::ModelId;
use super::listing::{check_commit, check_file_name};
use super::select::{GgufChoice, Selection, select};

/// The suffix of an incomplete blob. It differs from `huggingface_hub`'s
/// `.incomplete`, whose bytes may be written out of order.
pub(super) const PARTIAL: &str = ".girih-partial";
/// The suffix of an incomplete blob of `huggingface_hub`.
pub(super) const FOREIGN_PARTIAL: &str = ".incomplete";
/// The maximum depth of folders in a snapshot; deeper ones are not read.
const SNAPSHOT_DEPTH_MAX: usize = 16;

/// Whether a blob of this name is the beginning of a file.
pub(super) fn is_unfinished(blob: &str) -> bool {
    blob.ends_with(PARTIAL) || blob.ends_with(FOREIGN_PARTIAL)
}

/// One repository's folder in a cache.
#[derive(Clone, Debug)]
pub(super) struct Repo {
    cache: PathBuf,
    folder: String,
}

impl Repo {
    pub fn of(cache: &Path, id: &ModelId) -> Repo {
        Repo { cache: cache.to_owned(), folder: id.folder() }
    }

    /// The repository of a folder in the cache; `None` if it is not a model's.
    pub fn found(cache: &Path, folder: &str) -> Option<Repo> {
        folder.strip_prefix("models--").filter(|rest| !rest.is_empty())?;
        Some(Repo { cache: cache.to_owned(), folder: folder.to_owned() })
    }

    /// `org/name`, read from the folder's name.
    pub fn name(&self) -> String {
        self.folder.trim_start_matches("models--").replace("--", "/")
    }

    pub fn path(&self) -> PathBuf {
        self.cache.join(&self.folder)
    }

    pub fn blobs(&self) -> PathBuf {
        self.path().join("blobs")
    }

    pub fn refs(&self) -> PathBuf {
        self.path().join("refs")
    }

    pub fn snapshots(&self) -> PathBuf {
        self.path().join("snapshots")
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    pub fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.to_string())
    }

    pub fn partial(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(format!("{digest}{PARTIAL}"))
    }

    /// Whether the blob exists with its full length. Its digest was checked when
    /// it was published; `repair` checks it again.
    pub fn has_blob(&self, digest: &Digest, size: u64) -> bool {
        fs::symlink_metadata(self.blob(digest)).is_ok_and(|found| found.is_file() && found.len() == size)
    }

    /// Locks the repository against other girih processes that write to it.
    pub fn lock(&self, wait: Duration) -> Result<RepoLock> {
        let folder = self.cache.join(".locks").join(&self.folder);
        let path = folder.join("girih.lock");
        let failed = |error: io::Error| Error::new(format!("cannot be locked ({error})")).of(path.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = options.custom_flags(flags.bits() as i32).open(&path).map_err(failed)?;
        let start = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(RepoLock { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if start.elapsed() < wait => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let text =
                        "another process is changing this model in the cache; try again when it has finished";
                    return Err(Error::new(text).of(self.name()));
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    /// Whether a download of one of its files has begun and not ended.
    pub fn has_unfinished(&self) -> bool {
        let names = fs::read_dir(self.blobs()).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_str().is_some_and(is_unfinished))
    }

    /// The commit of a revision; `None` if the cache does not have it.
    pub fn commit_of(&self, revision: &str) -> Result<Option<String>> {
        if check_commit(revision).is_ok() {
            return Ok(Some(revision.to_owned()));
        }
        let path = self.refs().join(revision);
        match read_capped(&path, 256) {
            Ok(text) => {
                let commit = text.trim();
                check_commit(commit).map_err(|error| error.of(path.display()))?;
                Ok(Some(commit.to_owned()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::new(format!("cannot be read ({error})")).of(path.display())),
        }
    }

    /// Every revision name with its commit, without unreadable ones.
    pub fn revisions(&self) -> Vec<(String, String)> {
        let files = walk(&self.refs()).unwrap_or_default();
        let known = |name: String| self.commit_of(&name).ok().flatten().map(|commit| (name, commit));
        files.into_iter().filter_map(|file| known(file.name)).collect()
    }

    /// Points `revision` at `commit`, atomically.
    pub fn write_ref(&self, revision: &str, commit: &str) -> io::Result<()> {
        let path = self.refs().join(revision);
        let random = RandomState::new().hash_one(0);
        let draft = self.path().join(format!(".girih-ref.{random:016x}"));
        create_parent(&path)?;
        // A file or link of this name is never written to.
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&draft)?;
        let written = file
            .write_all(commit.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            // If removing the draft fails too, the first error is reported.
            let _ = fs::remove_file(&draft);
        }
        written?;
        sync_folder_of(&path)
    }

    /// Adds a file to a snapshot, as a link to its blob, atomically.
    pub fn link(&self, commit: &str, name: &str, digest: &Digest) -> io::Result<()> {
        let path = self.snapshot(commit).join(name);
        let draft = self.path().join(".girih-link");
        create_parent(&path)?;
        // The relative path from the file's folder up to the repository's,
        // through the commit and `snapshots`.
        let up = "../".repeat(name.split('/').count() + 1);
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => symlink(format!("{up}blobs/{digest}"), &draft)?,
        }
        fs::rename(&draft, &path)?;
        sync_folder_of(&path)
    }

    /// The first missing file of a snapshot: a link without a blob, or a shard of
    /// its index. `None` if the snapshot is complete.
    pub fn missing(&self, commit: &str) -> Result<Option<String>> {
        let folder = self.snapshot(commit);
        let files = walk(&folder).map_err(|error| unreadable(&folder, error))?;
        if let Some(file) = files.iter().find(|file| !file.path.exists()) {
            return Ok(Some(file.name.clone()));
        }
        let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        if !names.contains(SAFETENSORS_INDEX) {
            return Ok(None);
        }
        Ok(shards(&folder)?.into_iter().find(|shard| !names.contains(shard.as_str())))
    }
}

/// An exclusive lock, released when dropped or when the process ends.
#[derive(Debug)]
pub(super) struct RepoLock {
    _file: fs::File,
}

/// A file found below a folder.
#[derive(Debug)]
pub(super) struct FoundFile {
    /// The relative path, with `/`.
    pub name: String,
    pub path: PathBuf,
}

/// All files and links below a folder, sorted by name. Links to folders are
/// not followed, so the walk stays within the folder.
pub(super) fn walk(root: &Path) -> io::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    let mut folders = vec![(root.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let Ok(file) = entry.file_name().into_string() else { continue };
            let name = format!("{prefix}{file}");
            if !entry.file_type()?.is_dir() {
                found.push(FoundFile { name, path: entry.path() });
            } else if depth < SNAPSHOT_DEPTH_MAX {
                folders.push((entry.path(), format!("{name}/"), depth + 1));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::new(format!("cannot be read ({error})")).of(path.display())
}

/// Syncs `path`'s folder, so that a rename in it survives a power failure.
pub(super) fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn read_capped(path: &Path, max: u64) -> io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(max).read_to_string(&mut text)?;
    Ok(text)
}

#[derive(Deserialize)]
struct WeightMap {
    weight_map: std::collections::HashMap<String, String>,
}

/// The shards that the index in a snapshot lists.
fn shards(snapshot: &Path) -> Result<BTreeSet<String>> {
    let text = read_required(snapshot, SAFETENSORS_INDEX, FileLimits::DEFAULT.json_bytes)?;
    let index: WeightMap = serde_json::from_slice(&text).map_err(|error| {
        let path = snapshot.join(SAFETENSORS_INDEX);
        Error::new(format!("is not a valid index of safetensors files: {}", shorten_parse(&error)))
            .of(path.display())
    })?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    shards.iter().try_for_each(|name| check_file_name(name))?;
    Ok(shards)
}

/// A model's files in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder of the commit.
    pub folder: PathBuf,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// The GGUF file that the id's label selects (the first file of a split model).
    pub gguf: Option<PathBuf>,
    /// The choice among several cached GGUF files, if the id leaves it open.
    pub choice: Option<GgufChoice>,
}

impl Snapshot {
    /// The path to open: the GGUF file if there is one, else the folder.
    pub fn path(&self) -> &Path {
        self.gguf.as_deref().unwrap_or(&self.folder)
    }

    /// Opens the snapshot of a commit on disk.
    pub(super) fn open(repo: &Repo, commit: String, quant: Option<&str>) -> Result<Snapshot> {
        let folder = repo.snapshot(&commit);
        let files = walk(&folder).map_err(|error| unreadable(&folder, error))?;
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let is = |end: &str| names.iter().any(|name| name.ends_with(end));
        // A folder without weights may still be opened for its tokenizer.
        if quant.is_none() && (is(".safetensors") || !is(".gguf")) {
            return Ok(Snapshot { folder, commit, gguf: None, choice: None });
        }
        let Selection { files, choice } = select(&names, quant)?;
        let gguf = files.first().map(|name| folder.join(name));
        Ok(Snapshot { folder, commit, gguf, choice })
    }
}

/// Finds a model in the cache, without the network.
///
/// # Errors
/// Of the kind [`ErrorKind::NotFound`] when the model, the revision or one of its files is
/// missing; the error names the command that downloads it. Of the kind
/// [`ErrorKind::Refused`] when the id must name one of several files.
pub fn find(id: &ModelId, env: &HubEnv) -> Result<Snapshot> {
    let repo = Repo::of(&env.cache, id);
    let absent = |what: &str| {
        let cache = env.cache.display();
        let sentence = format!("{id} {what} (cache: {cache}); run `girih pull {id}`");
        Error::with_kind(ErrorKind::NotFound, sentence)
    };
    if !repo.path().is_dir() {
        return Err(absent("is not in the cache"));
    }
    let commit = repo.commit_of(id.revision())?.filter(|commit| repo.snapshot(commit).is_dir());
    let commit = commit.ok_or_else(|| match repo.has_unfinished() {
        true => absent("is incomplete in the cache: its download is unfinished"),
        false => absent("is in the cache, but not this revision"),
    })?;
    if let Some(file) = repo.missing(&commit)? {
        return Err(absent(&format!("is incomplete in the cache: {file} is missing")));
    }
    let opened = Snapshot::open(&repo, commit, id.quant());
    opened.map_err(|error| {
        let sentence = format!("{error} (among the cached files; `girih pull` downloads others)");
        Error::with_kind(error.kind(), sentence).of(id)
    })
}
