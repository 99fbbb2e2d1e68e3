//! Lists, removes and repairs the models of the cache. Nothing outside the
//! cache's folder is touched, and no link to a folder is followed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use girih_file::open_regular;
use girih_tensor::{Error, ErrorKind, Result};

use super::cache::{FOREIGN_PARTIAL, PARTIAL, Repo, is_unfinished, unreadable, walk};
use super::digest::Digest;
use super::env::HubEnv;
use super::id::ModelId;
use super::listing::check_commit;

/// The time that `remove` and `repair` wait for a pull of the same model.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// The age below which `huggingface_hub`'s incomplete files may be in use.
const FOREIGN_PARTIAL_AGE: Duration = Duration::from_secs(24 * 3600);

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// `org/name`.
    pub repo: String,
    /// Bytes on disk, unfinished files included.
    pub bytes: u64,
    /// Its unfinished files.
    pub unfinished: Unfinished,
    /// Its commits.
    pub revisions: Vec<CachedRevision>,
}

/// The files of a model whose download has begun and not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// The number of files.
    pub files: usize,
    /// The bytes that have arrived.
    pub bytes: u64,
}

/// What [`repair`] does with unfinished files, which a pull can resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfinishedFiles {
    /// They stay.
    Keep,
    /// They are removed.
    Remove,
}

/// One commit of a model in the cache.
#[derive(Clone, Debug)]
pub struct CachedRevision {
    /// 40 hexadecimal digits.
    pub commit: String,
    /// Branches and tags that point at it.
    pub names: Vec<String>,
    /// The number of its files.
    pub files: usize,
    /// Bytes of its files; revisions share files.
    pub bytes: u64,
    /// Why it is not complete; `None` if it is.
    pub fault: Option<RevisionFault>,
}

/// Why a commit in the cache is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevisionFault {
    /// This file is missing.
    MissingFile(String),
    /// The check of its files failed with this error.
    Unchecked(String),
}

/// What [`remove`] deleted.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// The number of commits.
    pub revisions: usize,
    /// The number of files.
    pub files: usize,
    /// The bytes of these files.
    pub bytes: u64,
}

/// The result of [`repair`].
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// The number of blobs whose bytes match their digest.
    pub good: usize,
    /// The number of bytes that were hashed.
    pub bytes: u64,
    /// The removed files, and why.
    pub removed: Vec<(PathBuf, String)>,
    /// Unfinished files that were kept.
    pub kept: Vec<PathBuf>,
    /// Files without a digest in their name, which cannot be verified.
    pub unverified: Vec<PathBuf>,
    /// Ids with missing files; `girih pull` completes them.
    pub pull_again: Vec<String>,
}

/// Lists the models of a cache by name. A missing cache is empty.
pub fn list(env: &HubEnv) -> Result<Vec<CachedModel>> {
    repos(&env.cache)?.iter().map(describe).collect()
}

/// Removes a model, or only the revision that the id names, with the blobs that
/// no other revision uses.
///
/// # Errors
/// Of the kind [`ErrorKind::NotFound`] when the cache does not have it, and
/// [`ErrorKind::Refused`] when the id names a single file.
pub fn remove(id: &ModelId, env: &HubEnv) -> Result<Removed> {
    let repo = Repo::of(&env.cache, id);
    if let Some(quant) = id.quant() {
        let whole = id.repo();
        let sentence =
            format!("a single file (:{quant}) cannot be removed; remove {whole}, then pull what you need");
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let absent = || {
        let cache = env.cache.display();
        let sentence = format!("{id} is not in the cache (cache: {cache}); `girih list` lists its models");
        Error::with_kind(ErrorKind::NotFound, sentence)
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

/// Removes what the cache has of a model beside one commit: other commits, and files that this one does not use,
/// unfinished ones too.
///
/// # Errors
/// When something cannot be removed, or another process is changing the model.
pub fn keep_only(id: &ModelId, commit: &str, env: &HubEnv) -> Result<Removed> {
    let repo = Repo::of(&env.cache, id);
    let _lock = repo.lock(LOCK_WAIT)?;
    let removed = keep_commit(&repo, commit);
    removed.map_err(|error| Error::new(format!("what is older cannot be removed ({error})")).of(id))
}

/// Hashes every blob; removes blobs with a wrong digest, dangling links and, if wanted, unfinished
/// files. `progress` gets the number of bytes that were read of a file, each time.
pub fn repair(
    env: &HubEnv,
    unfinished: UnfinishedFiles,
    progress: &mut dyn FnMut(&Path, u64),
) -> Result<Repaired> {
    let mut repairer = Repairer { unfinished, report: Repaired::default(), progress };
    for repo in repos(&env.cache)? {
        let _lock = repo.lock(LOCK_WAIT)?;
        let path = repo.path();
        repairer
            .repair_repo(&repo)
            .map_err(|error| Error::new(format!("cannot be repaired ({error})")).of(path.display()))?;
    }
    Ok(repairer.report)
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

/// The entries of a folder of the repository; empty if the folder does not exist.
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
        // A malformed index must not hide the other models.
        let fault = match repo.missing(&commit) {
            Ok(file) => file.map(RevisionFault::MissingFile),
            Err(error) => Some(RevisionFault::Unchecked(error.to_string())),
        };
        let names = names.iter().filter(|(_, of)| *of == commit).map(|(name, _)| name.clone()).collect();
        revisions.push(CachedRevision { commit, names, files: files.len(), bytes, fault });
    }
    let bytes = bytes_below(&repo.path()).map_err(failed)?;
    let unfinished = unfinished(repo).map_err(failed)?;
    Ok(CachedModel { repo: repo.name(), bytes, unfinished, revisions })
}

fn unfinished(repo: &Repo) -> io::Result<Unfinished> {
    let mut found = Unfinished::default();
    for (_, path) in entries(&repo.blobs())?.iter().filter(|(name, _)| is_unfinished(name)) {
        found.files += 1;
        // A pull may finish it at this moment.
        found.bytes += fs::symlink_metadata(path).map_or(0, |status| status.len());
    }
    Ok(found)
}

/// The total size of the files below a folder; links are not followed.
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
    remove_snapshot(repo, commit)?;
    if commits(repo)?.is_empty() {
        let rest = remove_repo(repo)?;
        return Ok(Removed { revisions: 1, ..rest });
    }
    let removed = remove_unused_blobs(repo)?;
    Ok(Removed { revisions: 1, ..removed })
}

fn keep_commit(repo: &Repo, commit: &str) -> io::Result<Removed> {
    let others: Vec<String> = commits(repo)?.into_iter().filter(|other| other != commit).collect();
    others.iter().try_for_each(|other| remove_snapshot(repo, other))?;
    let removed = remove_unused_blobs(repo)?;
    Ok(Removed { revisions: others.len(), ..removed })
}

/// Removes a commit and its names; its blobs stay.
fn remove_snapshot(repo: &Repo, commit: &str) -> io::Result<()> {
    for (name, _) in repo.revisions().iter().filter(|(_, of)| of == commit) {
        fs::remove_file(repo.refs().join(name))?;
    }
    fs::remove_dir_all(repo.snapshot(commit))
}

/// Removes the blobs, also unfinished ones, that no commit uses.
fn remove_unused_blobs(repo: &Repo) -> io::Result<Removed> {
    let mut needed = BTreeSet::new();
    for commit in commits(repo)? {
        needed.extend(blobs_of(&repo.snapshot(&commit))?);
    }
    let mut removed = Removed::default();
    for (name, path) in entries(&repo.blobs())? {
        // Other tools' incomplete files do not belong to a snapshot yet.
        if !needed.contains(&name) && Digest::parse(name.trim_end_matches(PARTIAL)).is_some() {
            removed.bytes += fs::symlink_metadata(&path)?.len();
            removed.files += 1;
            fs::remove_file(&path)?;
        }
    }
    Ok(removed)
}

/// The names of the blobs that a snapshot links to.
fn blobs_of(snapshot: &Path) -> io::Result<Vec<String>> {
    let name = |path: &PathBuf| Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned());
    Ok(walk(snapshot)?.iter().filter_map(|file| name(&file.path)).collect())
}

/// A repair at work.
struct Repairer<'a> {
    unfinished: UnfinishedFiles,
    report: Repaired,
    progress: &'a mut dyn FnMut(&Path, u64),
}

impl Repairer<'_> {
    fn repair_repo(&mut self, repo: &Repo) -> io::Result<()> {
        for (name, path) in entries(&repo.blobs())? {
            self.repair_blob(&name, &path)?;
        }
        let names = repo.revisions();
        for commit in commits(repo)? {
            let lost = self.repair_snapshot(&repo.snapshot(&commit))?;
            if lost || !matches!(repo.missing(&commit), Ok(None)) {
                let name = names.iter().find(|(_, of)| *of == commit).map_or(&commit, |(name, _)| name);
                self.report.pull_again.push(format!("{}@{name}", repo.name()));
            }
        }
        Ok(())
    }

    fn discard(&mut self, path: &Path, why: String) -> io::Result<()> {
        fs::remove_file(path)?;
        self.report.removed.push((path.to_owned(), why));
        Ok(())
    }

    fn repair_blob(&mut self, name: &str, path: &Path) -> io::Result<()> {
        let found = fs::symlink_metadata(path)?;
        if found.is_dir() {
            self.report.unverified.push(path.to_owned());
            return Ok(());
        }
        if is_unfinished(name) {
            let age = found.modified()?.elapsed().unwrap_or_default();
            // `huggingface_hub` may be writing it.
            if name.ends_with(FOREIGN_PARTIAL) && age <= FOREIGN_PARTIAL_AGE {
                return Ok(());
            }
            return match self.unfinished {
                UnfinishedFiles::Remove => self.discard(path, "an unfinished download".to_owned()),
                UnfinishedFiles::Keep => {
                    self.report.kept.push(path.to_owned());
                    Ok(())
                }
            };
        }
        let Some(digest) = Digest::parse(name).filter(|_| found.is_file()) else {
            self.report.unverified.push(path.to_owned());
            return Ok(());
        };
        let mut hasher = digest.hasher(found.len());
        let progress = &mut *self.progress;
        self.report.bytes +=
            hasher.update_watched(open_regular(path)?, &mut |bytes| progress(path, bytes))?;
        let hash = hasher.finish();
        if hash != digest {
            return self.discard(path, format!("its digest is {hash}"));
        }
        self.report.good += 1;
        Ok(())
    }

    /// Removes dangling links; returns whether there were any.
    fn repair_snapshot(&mut self, folder: &Path) -> io::Result<bool> {
        let mut lost = false;
        for file in walk(folder)? {
            if file.path.is_symlink() && !file.path.exists() {
                self.discard(&file.path, "its blob is missing".to_owned())?;
                lost = true;
            } else if !file.path.is_symlink() {
                self.report.unverified.push(file.path);
            }
        }
        Ok(lost)
    }
}
