//! Downloads a model into the cache: lists, selects, fetches and links its
//! files, then points the revision at the commit, so that no reader sees a
//! partial model.

use std::fs;
use std::time::{Duration, Instant};

use girih_file::FileLimits;
use girih_tensor::{Error, ErrorKind, Result};

use super::address::encode;
use super::cache::{Repo, Snapshot, unreadable};
use super::client::{Deadline, HubClient, Method, RequestFailure};
use super::digest::Digest;
use super::env::HubEnv;
use super::id::ModelId;
use super::listing::{Listing, RemoteFile, check_commit};
use super::options::PullOptions;
use super::progress::PullProgress;
use super::select::{Selection, select};
use super::transfer::{FileToPull, Partial};

/// A finished pull.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The model's files.
    pub snapshot: Snapshot,
    /// The number of files of the model.
    pub files: usize,
    /// The size of the model, in bytes.
    pub bytes: u64,
    /// The number of downloaded bytes.
    pub fetched: u64,
    /// The time from the first request for a file to the last byte.
    pub time: Duration,
}

/// Downloads the files of `id` that are not in the cache.
///
/// Partial files that an earlier call left behind are resumed. A file gets its final
/// name only after its length and digest were checked.
///
/// # Errors
/// Of the kind [`ErrorKind::NotFound`] when the server does not have the model, the
/// revision or the file, and [`ErrorKind::Refused`] when the id must name one of several
/// files, or downloads are turned off. Of the kind [`ErrorKind::Other`] when the server, the network or the disk fails;
/// downloaded bytes are kept, so that the next call resumes.
pub fn pull(
    id: &ModelId,
    env: &HubEnv,
    options: &PullOptions,
    progress: &mut dyn FnMut(PullProgress<'_>),
) -> Result<Pulled> {
    if env.offline {
        let text = "HF_HUB_OFFLINE is set; unset it to download models";
        return Err(Error::with_kind(ErrorKind::Refused, text).of(id));
    }
    let mut pull =
        Pull { id, client: HubClient::new(env, options)?, repo: Repo::of(&env.cache, id), options, progress };
    pull.run().map_err(|error| error.of(id))
}

struct Pull<'a> {
    id: &'a ModelId,
    client: HubClient,
    repo: Repo,
    options: &'a PullOptions,
    progress: &'a mut dyn FnMut(PullProgress<'_>),
}

impl Pull<'_> {
    fn run(&mut self) -> Result<Pulled> {
        self.client.check_host()?;
        let deadline = Deadline::after(self.options.listing_timeout);
        let listing = self.list(&deadline)?;
        let files = self.choose(&listing, &deadline)?;
        let blobs = self.repo.blobs();
        fs::create_dir_all(&blobs)
            .map_err(|error| Error::new(format!("cannot be created ({error})")).of(blobs.display()))?;
        let _lock = self.repo.lock(self.options.lock_wait)?;
        let (bytes, mut left) = self.plan(&files)?;
        let (begun, mut fetched) = (Instant::now(), 0);
        for file in &files {
            if !self.repo.has_blob(&file.digest, file.size) {
                // An unfinished file may have changed since it was planned.
                left = left.saturating_sub(self.left_of(file));
                fetched += self.fetch(file, left).map_err(|error| error.of(&file.name))?;
            }
            (self.progress)(PullProgress::Finished { file: &file.name, bytes: file.size });
        }
        let time = begun.elapsed();
        self.publish(&listing.commit, &files)?;
        let snapshot = Snapshot::open(&self.repo, listing.commit, self.id.quant())?;
        Ok(Pulled { snapshot, files: files.len(), bytes, fetched, time })
    }

    fn list(&mut self, deadline: &Deadline) -> Result<Listing> {
        let (repo, revision) = (self.id.repo(), encode(self.id.revision()).replace('/', "%2F"));
        let url = self.client.address(&format!("api/models/{repo}/revision/{revision}"), Some("blobs=true"));
        let cap = FileLimits::DEFAULT.json_bytes;
        let json = self.repeat(Some(deadline), |pull| {
            pull.client.send(Method::Get, &url, 0)?.body.read_all(cap, deadline)
        })?;
        let listing = Listing::parse(&json)?;
        let asked = self.id.revision();
        if check_commit(asked).is_ok() && asked != listing.commit {
            let found = listing.commit;
            return Err(Error::new(format!("the server lists commit {found} instead of {asked}")));
        }
        Ok(listing)
    }

    /// The files of the id, each with its size and digest.
    fn choose(&mut self, listing: &Listing, deadline: &Deadline) -> Result<Vec<FileToPull>> {
        let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
        let Selection { files: chosen, choice } = select(&names, self.id.quant())?;
        if let Some(choice) = &choice {
            (self.progress)(PullProgress::Chosen(choice));
        }
        let files = listing.files.iter().filter(|file| chosen.contains(&file.name.as_str()));
        let describe = |file: &RemoteFile| {
            self.describe(&listing.commit, file, deadline).map_err(|error| error.of(&file.name))
        };
        files.map(describe).collect()
    }

    /// Completes a file's size and digest with a HEAD request if the listing omits them.
    fn describe(&mut self, commit: &str, file: &RemoteFile, deadline: &Deadline) -> Result<FileToPull> {
        let (repo, path) = (self.id.repo(), encode(&file.name));
        let url = self.client.address(&format!("{repo}/resolve/{commit}/{path}"), None);
        if let (Some(size), Some(digest)) = (file.size, file.digest) {
            return Ok(FileToPull { name: file.name.clone(), size, digest, url });
        }
        let head = |pull: &mut Self| Ok(pull.client.send(Method::Head, &url, 0)?.metadata);
        let metadata = self.repeat(Some(deadline), head)?;
        if metadata.commit.as_deref().is_some_and(|sent| sent != commit) {
            return Err(Error::new(format!("the server sent a file of another commit instead of {commit}")));
        }
        let digest = file.digest.or_else(|| metadata.etag.as_deref().and_then(Digest::parse)).ok_or_else(|| {
            Error::new("the server sends no sha256 or git digest of the file (listing or etag), so it cannot be verified")
        })?;
        let size = file
            .size
            .or(metadata.size)
            .ok_or_else(|| Error::new("the server does not send the file's size"))?;
        Ok(FileToPull { name: file.name.clone(), size, digest, url })
    }

    /// The size of all files and the bytes that are still to arrive; fails if the disk
    /// has too little space.
    fn plan(&mut self, files: &[FileToPull]) -> Result<(u64, u64)> {
        let too_large = || Error::new("the total size of the files exceeds 2^64 bytes");
        let (mut bytes, mut needed) = (0u64, 0u64);
        for file in files {
            bytes = bytes.checked_add(file.size).ok_or_else(too_large)?;
            // No overflow: it is at most `bytes`.
            needed += self.left_of(file);
        }
        if let Some(max) = self.options.max_fetched.filter(|max| needed > *max) {
            let sentence = format!("the download needs {needed} bytes, but {max} are allowed: remove models");
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let folder = self.repo.blobs();
        let disk = rustix::fs::statvfs(&folder).map_err(|error| unreadable(&folder, error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free {
            let folder = folder.display();
            return Err(Error::new(format!(
                "the download needs {needed} bytes, but the disk of {folder} has {free} free; free space or set HF_HUB_CACHE"
            )));
        }
        (self.progress)(PullProgress::Planned { files: files.len(), bytes, present: bytes - needed });
        Ok((bytes, needed))
    }

    /// The bytes of a file that neither the cache nor an unfinished file has.
    fn left_of(&self, file: &FileToPull) -> u64 {
        if self.repo.has_blob(&file.digest, file.size) {
            return 0;
        }
        let part = fs::metadata(self.repo.partial(&file.digest)).map_or(0, |part| part.len());
        // A file that is too long is downloaded again.
        if part > file.size { file.size } else { file.size - part }
    }

    /// Downloads a file, and returns the number of bytes that arrived; `left_after` are the bytes of
    /// the files after it.
    fn fetch(&mut self, file: &FileToPull, left_after: u64) -> Result<u64> {
        let mut partial = Partial::open(&self.repo, file, left_after)?;
        self.repeat(None, |pull| partial.advance(&pull.client, file, pull.progress))?;
        let received = partial.received();
        partial.publish(&self.repo, file)?;
        Ok(received)
    }

    /// Links the files, and points the revision at the commit, unless it is the commit itself.
    fn publish(&self, commit: &str, files: &[FileToPull]) -> Result<()> {
        for file in files {
            self.repo.link(commit, &file.name, &file.digest).map_err(|error| {
                Error::new(format!("the snapshot cannot be written ({error})")).of(&file.name)
            })?;
        }
        let revision = self.id.revision();
        if revision == commit {
            return Ok(());
        }
        let failed = |error| Error::new(format!("the revision cannot be written ({error})"));
        self.repo.write_ref(revision, commit).map_err(failed)
    }

    /// Calls `attempt` until it succeeds, fails permanently, or the retries or the time are used
    /// up.
    fn repeat<T>(
        &mut self,
        deadline: Option<&Deadline>,
        mut attempt: impl FnMut(&mut Self) -> Result<T, RequestFailure>,
    ) -> Result<T> {
        let mut backoff = self.options.backoff;
        for left in (0..=self.options.retries).rev() {
            let in_time = deadline.map_or(Ok(()), Deadline::check);
            let (error, asked) = match in_time.and_then(|()| attempt(self)) {
                Ok(done) => return Ok(done),
                Err(RequestFailure::Permanent(error)) => return Err(error),
                Err(RequestFailure::Transient { error, wait }) => (error, wait),
            };
            if left == 0 {
                let tries = u64::from(self.options.retries) + 1;
                return Err(Error::new(format!("{error} (tried {tries} times; pull again to continue)")));
            }
            if let Some(asked) = asked.filter(|asked| *asked > self.options.wait_max) {
                let seconds = asked.as_secs();
                return Err(Error::new(format!(
                    "{error} (Retry-After is {seconds} s; pull again after that)"
                )));
            }
            let wait = asked.unwrap_or(backoff).min(self.options.wait_max);
            if let Some(Err(RequestFailure::Permanent(late))) =
                deadline.map(|deadline| deadline.check_after(wait))
            {
                return Err(Error::new(format!("{late} ({error})")));
            }
            (self.progress)(PullProgress::Retrying { why: &error, wait });
            std::thread::sleep(wait);
            backoff = backoff.saturating_mul(2);
        }
        unreachable!("the last attempt returns")
    }
}
