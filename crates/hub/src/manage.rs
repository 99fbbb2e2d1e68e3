//! The care of the cache: what is in it, how to free its room, and whether its
//! bytes are still what their names say. It touches nothing outside the cache
//! folder and follows no link to a folder.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use girih_tensor::{Error, Result};

use super::cache::{PARTIAL, Repo, unreadable, walk};
use super::digest::Digest;
use super::env::HubEnv;
use super::id::ModelId;
use super::listing::check_commit;

/// How long `remove` and `repair` wait for a pull of the same model.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// `huggingface_hub`'s unfinished files younger than this may be in use.
const FOREIGN_PARTIAL_AGE: Duration = Duration::from_secs(24 * 3600);

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// `org/name`.
    pub repo: String,
    /// Bytes on disk, unfinished files included.
    pub bytes: u64,
    /// The commits that are there.
    pub revisions: Vec<CachedRevision>,
}

/// One commit of a model in the cache.
#[derive(Clone, Debug)]
pub struct CachedRevision {
    /// 40 hexadecimal digits.
    pub commit: String,
    /// Branches and tags that point at it.
    pub names: Vec<String>,
    /// Its files.
    pub files: usize,
    /// Bytes of its files; revisions share files.
    pub bytes: u64,
    /// A file that it lacks, or why that cannot be told; `None` where it is complete.
    pub missing: Option<String>,
}

/// What `remove` removed.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// Commits.
    pub revisions: usize,
    /// Files.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
}

/// What `repair` found and did.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// Blobs whose bytes are right.
    pub good: usize,
    /// Bytes that were read and hashed.
    pub bytes: u64,
    /// What was removed, and why.
    pub removed: Vec<(PathBuf, String)>,
    /// What is there but has no digest in its name, so that nothing is known of it.
    pub unverified: Vec<PathBuf>,
    /// Ids that have lost files; `girih pull` mends each.
    pub pull_again: Vec<String>,
}

/// The models of a cache, by name. A cache that does not exist is empty.
pub fn list(env: &HubEnv) -> Result<Vec<CachedModel>> {
    repos(&env.cache)?.iter().map(describe).collect()
}

/// Removes a model, or the one revision that the id names, with the blobs that
/// no other revision needs.
pub fn remove(id: &ModelId, env: &HubEnv) -> Result<Removed> {
    let repo = Repo::of(&env.cache, id);
    if let Some(quant) = id.quant() {
        let whole = id.repo();
        return Err(Error::new(format!(
            "single files (:{quant}) are not removed; remove {whole} and pull what you want"
        )));
    }
    let absent = || {
        Error::new(format!(
            "{id} is not in the cache (cache: {}); `girih list` shows what is",
            env.cache.display()
        ))
    };
    if !is_folder(&repo.path()) {
        return Err(absent());
    }
    let _lock = repo.lock(LOCK_WAIT)?;
    let removed = if id.names_revision() {
        let commit = repo.commit_of(id.revision())?.filter(|commit| is_folder(&repo.snapshot(commit)));
        remove_revision(&repo, &commit.ok_or_else(absent)?)
    } else {
        remove_repo(&repo)
    };
    removed.map_err(|error| Error::new(format!("cannot be removed ({error})")).of(id))
}

/// Hashes every blob anew; removes bad ones, links that lead nowhere and
/// leftovers of downloads. `progress` gets each file and its bytes before it is read.
pub fn repair(env: &HubEnv, progress: &mut dyn FnMut(&Path, u64)) -> Result<Repaired> {
    let mut report = Repaired::default();
    for repo in repos(&env.cache)? {
        let _lock = repo.lock(LOCK_WAIT)?;
        let path = repo.path();
        repair_repo(&repo, &mut report, progress)
            .map_err(|error| Error::new(format!("cannot be repaired ({error})")).of(path.display()))?;
    }
    Ok(report)
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn repos(cache: &Path) -> Result<Vec<Repo>> {
    let entries = match fs::read_dir(cache) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(cache, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(cache, error))?;
        names.extend(entry.file_name().into_string().ok().filter(|_| is_folder(&entry.path())));
    }
    names.sort_unstable();
    Ok(names.iter().filter_map(|name| Repo::found(cache, name)).collect())
}

/// The entries of a folder of the repository; none where there is no folder.
fn entries(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    if !is_folder(folder) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        found.extend(entry.file_name().into_string().ok().map(|name| (name, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

fn commits(repo: &Repo) -> io::Result<Vec<String>> {
    let found = entries(&repo.snapshots())?.into_iter();
    Ok(found
        .filter(|(name, path)| check_commit(name).is_ok() && is_folder(path))
        .map(|(name, _)| name)
        .collect())
}

fn describe(repo: &Repo) -> Result<CachedModel> {
    let failed = |error| unreadable(&repo.path(), error);
    let names = repo.revisions();
    let mut revisions = Vec::new();
    for commit in commits(repo).map_err(failed)? {
        let files = walk(&repo.snapshot(&commit)).map_err(failed)?;
        let length = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        let bytes = files.iter().map(|file| length(&file.path)).sum();
        // One bad index must not hide the other models.
        let missing = repo.missing(&commit).unwrap_or_else(|error| Some(error.to_string()));
        let names = names.iter().filter(|(_, of)| *of == commit).map(|(name, _)| name.clone()).collect();
        revisions.push(CachedRevision { commit, names, files: files.len(), bytes, missing });
    }
    let bytes = bytes_below(&repo.path()).map_err(failed)?;
    Ok(CachedModel { repo: repo.name(), bytes, revisions })
}

/// Bytes of the files below a folder, links not followed.
fn bytes_below(folder: &Path) -> io::Result<u64> {
    let length = |path: &PathBuf| {
        fs::symlink_metadata(path).ok().filter(|found| found.is_file()).map_or(0, |f| f.len())
    };
    Ok(walk(folder)?.iter().map(|file| length(&file.path)).sum())
}

fn remove_repo(repo: &Repo) -> io::Result<Removed> {
    let (revisions, files) = (commits(repo)?.len(), entries(&repo.blobs())?.len());
    let bytes = bytes_below(&repo.path())?;
    fs::remove_dir_all(repo.path())?;
    Ok(Removed { revisions, files, bytes })
}

fn remove_revision(repo: &Repo, commit: &str) -> io::Result<Removed> {
    for (name, _) in repo.revisions().iter().filter(|(_, of)| of == commit) {
        fs::remove_file(repo.refs().join(name))?;
    }
    fs::remove_dir_all(repo.snapshot(commit))?;
    let mut needed = BTreeSet::new();
    for commit in commits(repo)? {
        needed.extend(blobs_of(&repo.snapshot(&commit))?);
    }
    if needed.is_empty() && commits(repo)?.is_empty() {
        let rest = remove_repo(repo)?;
        return Ok(Removed { revisions: 1, ..rest });
    }
    let mut removed = Removed { revisions: 1, ..Removed::default() };
    for (name, path) in entries(&repo.blobs())? {
        // Another tool's unfinished files belong to no snapshot yet.
        if !needed.contains(&name) && Digest::parse(name.trim_end_matches(PARTIAL)).is_some() {
            removed.bytes += fs::symlink_metadata(&path)?.len();
            removed.files += 1;
            fs::remove_file(&path)?;
        }
    }
    Ok(removed)
}

/// The names of the blobs that a snapshot's links lead to.
fn blobs_of(snapshot: &Path) -> io::Result<Vec<String>> {
    let name = |path: &PathBuf| Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned());
    Ok(walk(snapshot)?.iter().filter_map(|file| name(&file.path)).collect())
}

fn repair_repo(repo: &Repo, report: &mut Repaired, progress: &mut dyn FnMut(&Path, u64)) -> io::Result<()> {
    for (name, path) in entries(&repo.blobs())? {
        repair_blob(&name, &path, report, progress)?;
    }
    let names = repo.revisions();
    for commit in commits(repo)? {
        if repair_snapshot(&repo.snapshot(&commit), report)? || !matches!(repo.missing(&commit), Ok(None)) {
            let name = names.iter().find(|(_, of)| *of == commit).map_or(&commit, |(name, _)| name);
            report.pull_again.push(format!("{}@{name}", repo.name()));
        }
    }
    Ok(())
}

fn repair_blob(
    name: &str,
    path: &Path,
    report: &mut Repaired,
    progress: &mut dyn FnMut(&Path, u64),
) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let mut discard = |why: String| {
        report.removed.push((path.to_owned(), why));
        fs::remove_file(path)
    };
    if found.is_dir() {
        report.unverified.push(path.to_owned());
        return Ok(());
    }
    if name.ends_with(PARTIAL) {
        return discard("a download that was not finished".to_owned());
    }
    if name.ends_with(".incomplete") {
        let age = found.modified()?.elapsed().unwrap_or_default();
        return if age > FOREIGN_PARTIAL_AGE {
            discard("a download that was not finished".to_owned())
        } else {
            Ok(())
        };
    }
    let Some(digest) = Digest::parse(name).filter(|_| found.is_file()) else {
        report.unverified.push(path.to_owned());
        return Ok(());
    };
    progress(path, found.len());
    let mut hasher = digest.hasher(found.len());
    let bytes = hasher.update_from(fs::File::open(path)?)?;
    let hash = hasher.finish();
    if hash != digest {
        discard(format!("its bytes hash to {hash}"))?;
    } else {
        report.good += 1;
    }
    report.bytes += bytes;
    Ok(())
}

/// Removes the links that lead nowhere; answers whether there were any.
fn repair_snapshot(folder: &Path, report: &mut Repaired) -> io::Result<bool> {
    let mut lost = false;
    for file in walk(folder)? {
        if file.path.is_symlink() && !file.path.exists() {
            fs::remove_file(&file.path)?;
            report.removed.push((file.path, "its blob is gone".to_owned()));
            lost = true;
        } else if !file.path.is_symlink() {
            report.unverified.push(file.path);
        }
    }
    Ok(lost)
}
