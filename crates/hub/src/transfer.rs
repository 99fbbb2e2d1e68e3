//! Downloads one file to a blob: resumes a partial file, hashes while writing,
//! and publishes only if length and digest are right.

use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use girih_tensor::{Error, Result};
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

use super::address::Address;
use super::cache::{Repo, sync_folder_of};
use super::client::{Answer, Client, Failure, Method, text_of};
use super::digest::{Digest, Hasher};
use super::progress::Progress;

/// The number of bytes read from the connection at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// A file to download.
#[derive(Debug)]
pub(super) struct Wanted {
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
    /// Whether the bytes come from several responses, so that starting over may
    /// correct a wrong digest.
    resumed: bool,
}

impl Partial {
    /// Opens or creates the partial file of a blob, and hashes its bytes.
    pub fn open(repo: &Repo, wanted: &Wanted) -> Result<Partial> {
        let path = repo.partial(&wanted.digest);
        let failed = |error: io::Error| Error::new(format!("cannot be opened ({error})")).of(path.display());
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        let mut hasher = wanted.digest.hasher(wanted.size);
        let length = hasher.update_from(&file).map_err(failed)?;
        let mut partial = Partial { path: path.clone(), file, length, hasher, resumed: length > 0 };
        if length > wanted.size {
            partial.clear(wanted).map_err(failed)?;
        }
        Ok(partial)
    }

    /// Discards the bytes so far.
    fn clear(&mut self, wanted: &Wanted) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.hasher = wanted.digest.hasher(wanted.size);
        self.resumed = false;
        Ok(())
    }

    fn start_over(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        self.clear(wanted).map_err(|error| self.unwritable(wanted, error))
    }

    /// Sends one request and appends the response; returns when the file is
    /// complete and verified. The caller repeats it after a transient failure.
    pub fn advance(
        &mut self,
        client: &Client,
        wanted: &Wanted,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Failure> {
        if self.length < wanted.size {
            let answer = client.send(Method::Get, &wanted.url, self.length)?;
            self.accept(&answer, wanted)?;
            self.receive(answer, wanted, progress)?;
        }
        self.check(wanted)
    }

    /// Compares the response's headers with the request.
    fn accept(&mut self, answer: &Answer, wanted: &Wanted) -> Result<(), Failure> {
        let told = answer.told.etag.as_deref().and_then(Digest::parse);
        if let Some(told) = told.filter(|told| told.contradicts(&wanted.digest)) {
            let expected = wanted.digest;
            return Err(Failure::fatal(format!(
                "the server's etag is {told}, the listing's digest {expected}; pull again"
            )));
        }
        match answer.status.as_u16() {
            206 => self.accept_range(answer, wanted)?,
            416 => {
                self.start_over(wanted)?;
                return Err(Failure::passing("the server has no such range; starting over".to_owned()));
            }
            // The server ignored the range and sends the whole file.
            _ if self.length > 0 => self.start_over(wanted)?,
            _ => {}
        }
        let left = wanted.size - self.length;
        let announced =
            text_of(&answer.headers, CONTENT_LENGTH.as_str()).and_then(|text| text.parse::<u64>().ok());
        match announced.filter(|announced| *announced != left) {
            None => Ok(()),
            Some(announced) => Err(Failure::fatal(format!(
                "the server announces {announced} bytes, but {left} are needed; the file and its listing disagree"
            ))),
        }
    }

    /// Checks that a 206 has exactly the missing bytes; otherwise the next
    /// request starts over.
    fn accept_range(&mut self, answer: &Answer, wanted: &Wanted) -> Result<(), Failure> {
        let need = format!("bytes {}-{}/{}", self.length, wanted.size - 1, wanted.size);
        let found = text_of(&answer.headers, CONTENT_RANGE.as_str()).unwrap_or("none");
        if found == need {
            self.resumed |= self.length > 0;
            return Ok(());
        }
        let sentence =
            format!("the server sends the range {found:?} instead of {need:?}; starting over");
        self.start_over(wanted)?;
        Err(Failure::passing(sentence))
    }

    fn receive(
        &mut self,
        mut answer: Answer,
        wanted: &Wanted,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = answer.body.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            if count as u64 > wanted.size - self.length {
                self.discard();
                let size = wanted.size;
                return Err(Failure::fatal(format!(
                    "the server sends more than the {size} bytes of the file; it was discarded"
                )));
            }
            let bytes = &buffer[..count];
            self.file.write_all(bytes).map_err(|error| self.unwritable(wanted, error))?;
            self.hasher.update(bytes);
            self.length += count as u64;
            progress(Progress::Received { file: &wanted.name, bytes: self.length, of: wanted.size });
        }
        if self.length < wanted.size {
            let (length, size) = (self.length, wanted.size);
            return Err(Failure::passing(format!("the connection was cut after {length} of {size} bytes")));
        }
        Ok(())
    }

    /// Checks the digest of a file of full length.
    fn check(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        let found = self.hasher.clone().finish();
        if found == wanted.digest {
            return Ok(());
        }
        let expected = wanted.digest;
        if self.resumed {
            self.start_over(wanted)?;
            return Err(Failure::passing(format!(
                "the resumed file has the digest {found} instead of {expected}; starting over"
            )));
        }
        self.discard();
        Err(Failure::fatal(format!(
            "the file has the digest {found} instead of {expected} and was discarded; \
             a proxy may have changed it"
        )))
    }

    /// Syncs the verified file and gives it its final name.
    pub fn publish(self, repo: &Repo, wanted: &Wanted) -> Result<()> {
        let path = repo.blob(&wanted.digest);
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

    fn unwritable(&self, wanted: &Wanted, error: io::Error) -> Failure {
        let path = self.path.display();
        if error.kind() == io::ErrorKind::StorageFull {
            let left = wanted.size - self.length;
            return Failure::fatal(format!(
                "{path}: the disk is full, {left} more bytes are needed; free space and pull again"
            ));
        }
        Failure::fatal(format!("{path}: cannot be written ({error})"))
    }
}
