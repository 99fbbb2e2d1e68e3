//! One file from the server to a blob: resumed where a part is there, hashed
//! while it is written, and published only when length and digest are right.

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

/// Bytes read from the connection at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// A file that is to become a blob.
#[derive(Debug)]
pub(super) struct Wanted {
    pub name: String,
    pub size: u64,
    pub digest: Digest,
    pub url: Address,
}

/// The part of a blob that is on disk, and the digest of it so far.
pub(super) struct Partial {
    path: PathBuf,
    file: fs::File,
    length: u64,
    hasher: Hasher,
    /// Whether the bytes come from more than one answer, so that starting over
    /// may mend a digest that is wrong.
    pieced: bool,
}

impl Partial {
    /// Opens, or creates, the part of a blob; what is there is hashed anew.
    pub fn open(repo: &Repo, wanted: &Wanted) -> Result<Partial> {
        let path = repo.partial(&wanted.digest);
        let failed = |error: io::Error| Error::new(format!("cannot be opened ({error})")).of(path.display());
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        let mut hasher = wanted.digest.hasher(wanted.size);
        let length = hasher.update_from(&file).map_err(failed)?;
        let mut partial = Partial { path: path.clone(), file, length, hasher, pieced: length > 0 };
        if length > wanted.size {
            partial.clear(wanted).map_err(failed)?;
        }
        Ok(partial)
    }

    /// Throws away what is there.
    fn clear(&mut self, wanted: &Wanted) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.hasher = wanted.digest.hasher(wanted.size);
        self.pieced = false;
        Ok(())
    }

    fn start_over(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        self.clear(wanted).map_err(|error| self.unwritable(wanted, error))
    }

    /// One request: takes in what the server sends, and answers when the file
    /// is whole and right. The caller repeats it after a passing failure.
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

    /// Holds the answer's headers against what was asked for.
    fn accept(&mut self, answer: &Answer, wanted: &Wanted) -> Result<(), Failure> {
        let told = answer.told.etag.as_deref().and_then(Digest::parse);
        if let Some(told) = told.filter(|told| told.contradicts(&wanted.digest)) {
            let want = wanted.digest;
            return Err(Failure::fatal(format!(
                "the server's etag is {told}, the listing says {want}; pull again"
            )));
        }
        match answer.status.as_u16() {
            206 => self.accept_range(answer, wanted)?,
            416 => {
                self.start_over(wanted)?;
                return Err(Failure::passing("the server has no such range; starting over".to_owned()));
            }
            // The range was ignored: the whole file comes.
            _ if self.length > 0 => self.start_over(wanted)?,
            _ => {}
        }
        let left = wanted.size - self.length;
        let promised =
            text_of(&answer.headers, CONTENT_LENGTH.as_str()).and_then(|text| text.parse::<u64>().ok());
        match promised.filter(|promised| *promised != left) {
            None => Ok(()),
            Some(promised) => Err(Failure::fatal(format!(
                "the server promises {promised} bytes, but {left} are needed; the file and its listing disagree"
            ))),
        }
    }

    /// A 206 must bring exactly the bytes that are missing; else the next
    /// request asks for the whole file.
    fn accept_range(&mut self, answer: &Answer, wanted: &Wanted) -> Result<(), Failure> {
        let need = format!("bytes {}-{}/{}", self.length, wanted.size - 1, wanted.size);
        let found = text_of(&answer.headers, CONTENT_RANGE.as_str()).unwrap_or("none");
        if found == need {
            self.pieced |= self.length > 0;
            return Ok(());
        }
        let sentence =
            format!("the server sends the range {found:?} where {need:?} was asked for; starting over");
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

    /// Compares the digest of a file of full length.
    fn check(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        let found = self.hasher.clone().finish();
        if found == wanted.digest {
            return Ok(());
        }
        let want = wanted.digest;
        if self.pieced {
            self.start_over(wanted)?;
            return Err(Failure::passing(format!(
                "the resumed file hashes to {found}, needed {want}; starting over"
            )));
        }
        self.discard();
        Err(Failure::fatal(format!(
            "the file hashes to {found}, needed {want}; it was discarded: \
             something between here and the server changes bytes"
        )))
    }

    /// Gives the whole, checked file its final name, so that it lasts.
    pub fn publish(self, repo: &Repo, wanted: &Wanted) -> Result<()> {
        let path = repo.blob(&wanted.digest);
        let publish = || {
            self.file.sync_all()?;
            fs::rename(&self.path, &path)?;
            sync_folder_of(&path)
        };
        publish().map_err(|error| Error::new(format!("cannot be put in place ({error})")).of(path.display()))
    }

    /// Removes bytes that are known to be wrong. Where even that fails, the
    /// digest still keeps them from ever being published.
    fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }

    fn unwritable(&self, wanted: &Wanted, error: io::Error) -> Failure {
        let path = self.path.display();
        if error.kind() == io::ErrorKind::StorageFull {
            let left = wanted.size - self.length;
            return Failure::fatal(format!(
                "{path}: the disk is full, {left} more bytes are needed; make room and pull again"
            ));
        }
        Failure::fatal(format!("{path}: cannot be written ({error})"))
    }
}
