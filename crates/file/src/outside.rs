//! Opens files from outside the program. Every file that somebody else may have written or
//! placed is opened here, so that none of them makes girih wait or leads it elsewhere.
//!
//! Weights, and what a user names, may lie anywhere, behind links too: they are only parsed.
//! The companions of a model, whose text may reach a prompt or a terminal, must lie in its
//! folder. The cache of a hub is the one exception: there each file of a snapshot is a link to
//! a blob beside it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use girih_tensor::{Error, ErrorKind, Result};
use rustix::fs::OFlags;

/// The number of digits of a commit, and of git's digest of a small file.
const SHA1_DIGITS: usize = 40;

/// The number of digits of the digest of a large file.
const SHA256_DIGITS: usize = 64;

/// Opens a regular file, or a link to one, that may lie anywhere.
///
/// # Errors
/// When it does not exist, cannot be opened, or is a pipe, a device or a folder. A pipe is
/// refused at once, even if it has no writer.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open(path, OFlags::empty())
}

/// Opens a file of the model in `folder`; `None` if there is no file `name`.
///
/// # Errors
/// As [`open_regular`], and when a link leads out of the folder. In a snapshot of a hub's
/// cache, a link may lead to a blob of the same repository.
pub fn open_companion(folder: &Path, name: impl AsRef<Path>) -> io::Result<Option<File>> {
    let path = folder.join(name);
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let real = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("is a link to a file that does not exist"),
        _ => error,
    })?;
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new(".").canonicalize()?,
        false => folder.canonicalize()?,
    };
    if !real.starts_with(&folder) && !is_blob_of(&real, &folder) {
        let sentence = "is a link that leaves the model's folder; put the file itself there";
        return Err(io::Error::other(sentence));
    }
    let file = open(&real, OFlags::NOFOLLOW)?;
    // A folder of this path may have become a link after it was checked.
    let again = real.canonicalize()?;
    let (status, now) = (file.metadata()?, again.metadata()?);
    match again == real && (status.dev(), status.ino()) == (now.dev(), now.ino()) {
        true => Ok(Some(file)),
        false => Err(io::Error::other("was moved while it was opened; try again")),
    }
}

/// Reads a small file that may lie anywhere, such as a text that the user has named.
///
/// # Errors
/// When it is not a regular file, has more than `max` bytes, or cannot be read.
pub fn read_small(path: &Path, max: u64) -> Result<Vec<u8>> {
    let read = open_regular(path).map_err(not_opened).and_then(|file| read_all(&file, max));
    read.map_err(|error| error.of(path.display()))
}

/// Reads a small file that other users can neither read nor change, such as one of keys. Its
/// group may read it.
///
/// # Errors
/// As [`read_small`], and when the file's mode allows others more.
pub fn read_secret(path: &Path, max: u64) -> Result<Vec<u8>> {
    let read = || {
        let file = open_regular(path).map_err(not_opened)?;
        let mode = file.metadata().map_err(|error| Error::new(format!("cannot be read: {error}")))?.mode();
        if mode & 0o027 != 0 {
            let mode = mode & 0o777;
            return Err(Error::with_kind(
                ErrorKind::Refused,
                format!(
                    "is a secret, but its mode is {mode:03o}; other users may not have access: chmod 600"
                ),
            ));
        }
        read_all(&file, max)
    };
    read().map_err(|error| error.of(path.display()))
}

/// Reads a small file of the model in `folder`, such as its configuration; `None` if there is
/// no file `name`.
///
/// # Errors
/// As [`open_companion`], and when it has more than `max` bytes or cannot be read.
pub fn read_companion(folder: &Path, name: impl AsRef<Path>, max: u64) -> Result<Option<Vec<u8>>> {
    let opened = open_companion(folder, &name).map_err(not_opened);
    let read = opened.and_then(|file| file.map(|file| read_all(&file, max)).transpose());
    read.map_err(|error| error.of(folder.join(name).display()))
}

/// As [`read_companion`], for a file that the model must have.
///
/// # Errors
/// As [`read_companion`], and when there is no such file.
pub fn read_required(folder: &Path, name: impl AsRef<Path>, max: u64) -> Result<Vec<u8>> {
    read_companion(folder, &name, max)?.ok_or_else(|| {
        let missing = io::Error::from(rustix::io::Errno::NOENT);
        not_opened(missing).of(folder.join(name).display())
    })
}

/// Copies a file of the model in `folder` to the new file `to`; `false` if there is no file
/// `name`. A part of the new file is removed when copying fails.
///
/// # Errors
/// As [`open_companion`], and when `to` exists or cannot be written.
pub fn copy_companion(folder: &Path, name: impl AsRef<Path>, to: &Path) -> Result<bool> {
    let opened = open_companion(folder, &name).map_err(not_opened);
    let Some(mut from) = opened.map_err(|error| error.of(folder.join(name).display()))? else {
        return Ok(false);
    };
    write_companion(&mut from, to).map(|()| true)
}

/// Writes everything that `from` yields to the new file `to` of a model's folder. A part of the file
/// is removed when that fails.
///
/// # Errors
/// When `to` exists or cannot be written, or `from` cannot be read.
pub fn write_companion(from: &mut dyn Read, to: &Path) -> Result<()> {
    let unwritten = |error: io::Error| Error::new(format!("cannot be written: {error}")).of(to.display());
    let mut new = File::create_new(to).map_err(unwritten)?;
    let copied = io::copy(from, &mut new).and_then(|_| new.sync_all());
    if copied.is_err() {
        // If removing it fails too, the first error is reported.
        let _ = std::fs::remove_file(to);
    }
    copied.map_err(unwritten)
}

/// The sentence for a file that was not opened.
pub(crate) fn not_opened(error: io::Error) -> Error {
    match error.kind() {
        // A sentence of this module.
        io::ErrorKind::Other => Error::new(error.to_string()),
        io::ErrorKind::NotFound => {
            Error::with_kind(ErrorKind::NotFound, format!("cannot be opened: {error}"))
        }
        _ => Error::new(format!("cannot be opened: {error}")),
    }
}

fn open(path: &Path, more: OFlags) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe blocks until it has a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("is a pipe, a device or a folder; a regular file is needed")),
    }
}

fn read_all(file: &File, max: u64) -> Result<Vec<u8>> {
    let unread = |error| Error::new(format!("cannot be read: {error}"));
    let length = file.metadata().map_err(unread)?.len();
    if length > max {
        return Err(Error::new(format!("has {length} bytes; the cap is {max}")));
    }
    let mut bytes = zeros(length)?;
    file.read_exact_at(&mut bytes, 0).map_err(unread)?;
    Ok(bytes)
}

/// `length` zero bytes.
fn zeros(length: u64) -> Result<Vec<u8>> {
    let too_large = || {
        let sentence = format!("has {length} bytes, for which there is not enough memory; free memory");
        Error::with_kind(ErrorKind::OutOfMemory, sentence)
    };
    let count = usize::try_from(length).map_err(|_| too_large())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count).map_err(|_| too_large())?;
    bytes.resize(count, 0);
    Ok(bytes)
}

/// Whether `real` is a blob of the repository whose snapshot `folder` is, or lies in. Both are
/// paths without links: `REPOSITORY/blobs/DIGEST` and `REPOSITORY/snapshots/COMMIT`.
fn is_blob_of(real: &Path, folder: &Path) -> bool {
    let repository = folder.ancestors().find_map(|snapshot| {
        let snapshots = snapshot.parent().filter(|_| has_digits(snapshot, &[SHA1_DIGITS]))?;
        snapshots.parent().filter(|_| snapshots.ends_with("snapshots"))
    });
    let blobs: Option<PathBuf> = repository.map(|repository| repository.join("blobs"));
    blobs.as_deref() == real.parent() && has_digits(real, &[SHA1_DIGITS, SHA256_DIGITS])
}

/// Whether the name at the end of `path` is one of these numbers of hexadecimal digits.
fn has_digits(path: &Path, counts: &[usize]) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    counts.contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_larger_than_the_memory_is_an_error() {
        let error = zeros(i64::MAX as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let sentence = "has 9223372036854775807 bytes, for which there is not enough memory; free memory";
        assert_eq!(error.to_string(), sentence);
        assert_eq!(zeros(3).unwrap(), [0; 3]);
    }
}
