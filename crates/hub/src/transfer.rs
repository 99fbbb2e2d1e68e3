//! Downloads one file to a blob: resumes a partial file, hashes while writing,
//! and publishes it only if length and digest match.

use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use girih_file::quote;
use girih_tensor::{Error, Result};
use rustix::fs::OFlags;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

use super::address::Address;
use super::cache::{Repo, sync_folder_of};
use super::client::{HubClient, HubResponse, Method, RequestFailure, text_of};
use super::digest::{Digest, Hasher};
use super::progress::PullProgress;

/// The number of bytes read from the connection at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// A file to download.
#[derive(Debug)]
pub(super) struct FileToPull {
    pub name: String,
    pub size: u64,
    pub digest: Digest,
    pub url: Address,
}

/// The partial file of a blob, and the digest of its bytes.
pub(super) struct Partial {
    path: PathBuf,
    file: fs::File,
    length: u64,
    hasher: Hasher,
    /// The bytes that this call has downloaded.
    received: u64,
    /// The bytes of the files after this one that are still to arrive.
    left_after: u64,
    /// Whether the bytes come from several responses, so that starting over may
    /// correct a wrong digest.
    resumed: bool,
}

impl Partial {
    /// Opens or creates the partial file of a blob, and hashes its bytes. As it is written to, it
    /// must be a file of this user that has no other name.
    pub fn open(repo: &Repo, target: &FileToPull, left_after: u64) -> Result<Partial> {
        let path = repo.partial(&target.digest);
        let failed = |error: io::Error| Error::new(format!("cannot be opened ({error})")).of(path.display());
        let file = open_own(&path).map_err(failed)?;
        let mut hasher = target.digest.hasher(target.size);
        let length = hasher.update_from(&file).map_err(failed)?;
        let mut partial = Partial {
            path: path.clone(),
            file,
            length,
            hasher,
            received: 0,
            left_after,
            resumed: length > 0,
        };
        if length > target.size {
            partial.clear(target).map_err(failed)?;
        }
        Ok(partial)
    }

    /// Discards the bytes so far.
    fn clear(&mut self, target: &FileToPull) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.hasher = target.digest.hasher(target.size);
        self.resumed = false;
        Ok(())
    }

    fn start_over(&mut self, target: &FileToPull) -> Result<(), RequestFailure> {
        self.clear(target).map_err(|error| self.unwritable(target, error))
    }

    /// Sends one request and appends the response; returns when the file is
    /// complete and verified. The caller repeats it after a transient failure.
    pub fn advance(
        &mut self,
        client: &HubClient,
        target: &FileToPull,
        progress: &mut dyn FnMut(PullProgress<'_>),
    ) -> Result<(), RequestFailure> {
        if self.length < target.size {
            let response = client.send(Method::Get, &target.url, self.length)?;
            self.accept(&response, target)?;
            self.receive(response, target, progress)?;
        }
        self.check(target)
    }

    /// Compares the response's headers with the request.
    fn accept(&mut self, response: &HubResponse, target: &FileToPull) -> Result<(), RequestFailure> {
        let etag = response.metadata.etag.as_deref().and_then(Digest::parse);
        if let Some(etag) = etag.filter(|etag| etag.contradicts(&target.digest)) {
            let expected = target.digest;
            return Err(RequestFailure::permanent(format!(
                "the server's etag is {etag}, the listing's digest {expected}; pull again"
            )));
        }
        match response.status.as_u16() {
            206 => self.accept_range(response, target)?,
            416 => {
                self.start_over(target)?;
                return Err(RequestFailure::transient(
                    "the server has no such range; starting over".to_owned(),
                ));
            }
            // The server ignored the range and sends the whole file.
            _ if self.length > 0 => self.start_over(target)?,
            _ => {}
        }
        let left = target.size - self.length;
        let announced =
            text_of(&response.headers, CONTENT_LENGTH.as_str()).and_then(|text| text.parse::<u64>().ok());
        match announced.filter(|announced| *announced != left) {
            None => Ok(()),
            Some(announced) => Err(RequestFailure::permanent(format!(
                "the server announces {announced} bytes, but {left} are needed; the file and its listing disagree"
            ))),
        }
    }

    /// Checks that a 206 has exactly the missing bytes; otherwise the next
    /// request starts over.
    fn accept_range(&mut self, response: &HubResponse, target: &FileToPull) -> Result<(), RequestFailure> {
        let need = format!("bytes {}-{}/{}", self.length, target.size - 1, target.size);
        let found = text_of(&response.headers, CONTENT_RANGE.as_str()).unwrap_or("none");
        if found == need {
            self.resumed |= self.length > 0;
            return Ok(());
        }
        let sentence =
            format!("the server sends the range {} instead of {need:?}; starting over", quote(found));
        self.start_over(target)?;
        Err(RequestFailure::transient(sentence))
    }

    fn receive(
        &mut self,
        mut response: HubResponse,
        target: &FileToPull,
        progress: &mut dyn FnMut(PullProgress<'_>),
    ) -> Result<(), RequestFailure> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let digest = target.digest.to_string();
        loop {
            let count = response.body.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            if count as u64 > target.size - self.length {
                self.discard();
                let size = target.size;
                return Err(RequestFailure::permanent(format!(
                    "the server sends more than the {size} bytes of the file; it was discarded"
                )));
            }
            let bytes = &buffer[..count];
            self.file.write_all(bytes).map_err(|error| self.unwritable(target, error))?;
            self.hasher.update(bytes);
            self.length += count as u64;
            self.received += count as u64;
            progress(PullProgress::Received {
                file: &target.name,
                digest: &digest,
                bytes: self.length,
                of: target.size,
                left: target.size - self.length + self.left_after,
            });
        }
        if self.length < target.size {
            let (length, size) = (self.length, target.size);
            return Err(RequestFailure::transient(format!(
                "the connection was cut after {length} of {size} bytes"
            )));
        }
        Ok(())
    }

    /// Checks the digest of a file of full length.
    fn check(&mut self, target: &FileToPull) -> Result<(), RequestFailure> {
        let found = self.hasher.clone().finish();
        if found == target.digest {
            return Ok(());
        }
        let expected = target.digest;
        if self.resumed {
            self.start_over(target)?;
            return Err(RequestFailure::transient(format!(
                "the resumed file has the digest {found} instead of {expected}; starting over"
            )));
        }
        self.discard();
        Err(RequestFailure::permanent(format!(
            "the file has the digest {found} instead of {expected} and was discarded; \
             a proxy may have changed it"
        )))
    }

    /// The bytes that this call has downloaded, those that were thrown away included.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Syncs the verified file and gives it its final name.
    pub fn publish(self, repo: &Repo, target: &FileToPull) -> Result<()> {
        let path = repo.blob(&target.digest);
        let publish = || {
            self.file.sync_all()?;
            fs::rename(&self.path, &path)?;
            sync_folder_of(&path)
        };
        publish().map_err(|error| Error::new(format!("cannot be written ({error})")).of(path.display()))
    }

    /// Removes wrong bytes. If that fails, the digest check still prevents their
    /// publication.
    fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }

    fn unwritable(&self, target: &FileToPull, error: io::Error) -> RequestFailure {
        let path = self.path.display();
        if error.kind() == io::ErrorKind::StorageFull {
            let left = target.size - self.length;
            return RequestFailure::permanent(format!(
                "{path}: the disk is full, {left} more bytes are needed; free space and pull again"
            ));
        }
        RequestFailure::permanent(format!("{path}: cannot be written ({error})"))
    }
}

/// Opens or creates a file to be written, without following a link or waiting for a pipe.
fn open_own(path: &Path) -> io::Result<fs::File> {
    let need = |what: &str| {
        io::Error::other(format!(
            "it is {what}; a regular file of this user with one name is needed: remove it"
        ))
    };
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options.custom_flags(flags.bits() as i32).open(path);
    let file = opened.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::LOOP) => need("a link"),
        _ => error,
    })?;
    let status = file.metadata()?;
    match () {
        () if !status.is_file() => Err(need("a pipe or a device")),
        () if status.uid() != rustix::process::geteuid().as_raw() => Err(need("another user's file")),
        () if status.nlink() != 1 => Err(need("a file with other names")),
        () => Ok(file),
    }
}
