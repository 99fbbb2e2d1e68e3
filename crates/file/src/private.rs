//! Folders of files that girih writes for itself, such as packed weights: only files that
//! nobody but this user could have written are read back.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use girih_tensor::{Error, Result};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

/// The bits of a mode that let group or others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A folder that belongs to this user and to which nobody else can write.
///
/// Its files are opened relative to the folder that was checked, whatever its path leads to
/// later.
#[derive(Debug)]
pub struct PrivateFolder(OwnedFd);

impl PrivateFolder {
    /// Opens the folder; `None` if it does not exist.
    ///
    /// # Errors
    /// When it cannot be opened, belongs to another user, or others can write to it; the sentence
    /// does not name the folder.
    pub fn open(path: &Path) -> Result<Option<PrivateFolder>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(folder) => File::from(folder),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::new(format!("cannot be opened: {error}"))),
        };
        check_owner(&folder)?;
        Ok(Some(PrivateFolder(folder.into())))
    }

    /// Opens the folder, which is created for this user alone if it does not exist.
    ///
    /// # Errors
    /// As [`PrivateFolder::open`], and when it cannot be created.
    pub fn create(path: &Path) -> Result<PrivateFolder> {
        let uncreated = |error: io::Error| Error::new(format!("cannot be created: {error}"));
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(uncreated)?;
        PrivateFolder::open(path)?.ok_or_else(|| uncreated(Errno::NOENT.into()))
    }

    /// Opens one of its files for reading; `None` if it does not exist.
    ///
    /// # Errors
    /// When it is a link or another thing that is not a regular file, belongs to another user,
    /// or others can write to it; the sentence names the file.
    pub fn file(&self, name: &str) -> Result<Option<File>> {
        let file = match self.open_file(name, OFlags::RDONLY) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => Err(Error::new("is a link; a regular file is needed: remove it")),
            Err(error) => Err(Error::new(format!("cannot be opened: {error}"))),
            Ok(file) => Ok(file),
        };
        let checked = file.and_then(|file| {
            let is_file = file.metadata().is_ok_and(|status| status.is_file());
            match is_file {
                true => check_owner(&file).map(|()| Some(file)),
                false => Err(Error::new("is not a regular file: remove it")),
            }
        });
        checked.map_err(|error| error.of(name))
    }

    /// Creates a file that only this user can read and write.
    ///
    /// # Errors
    /// When there is a file of this name, or the folder cannot be written.
    pub fn new_file(&self, name: &str) -> io::Result<File> {
        Ok(self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?)
    }

    /// Locks the folder against other threads and processes that lock it, until the result is dropped; waits for them.
    ///
    /// # Errors
    /// When the file system has no locks.
    pub fn lock(&self) -> io::Result<FolderLock<'_>> {
        flock(&self.0, FlockOperation::LockExclusive)?;
        Ok(FolderLock(self))
    }

    /// Opens a file to append to it; creates it for this user alone if it does not exist.
    ///
    /// # Errors
    /// When it is a link, or the folder cannot be written.
    pub fn append(&self, name: &str) -> io::Result<File> {
        Ok(self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND)?)
    }

    /// Gives the file `from` the name `to`, replacing what has that name.
    ///
    /// # Errors
    /// When there is no file `from`, or the folder cannot be written.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// Removes a file, unless it does not exist.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// Writes new and changed names to the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> rustix::io::Result<File> {
        // Opening a pipe without O_NONBLOCK waits for a writer.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }
}

/// The lock of a folder.
#[derive(Debug)]
pub struct FolderLock<'a>(&'a PrivateFolder);

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        // It is held, so this cannot fail.
        let _ = flock(&self.0.0, FlockOperation::Unlock);
    }
}

/// Locks a file as long as it is open; returns whether nobody else has locked it.
///
/// # Errors
/// When the file system has no locks.
pub fn try_lock_file(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Refuses what another user owns or can write to.
fn check_owner(file: &File) -> Result<()> {
    let status = file.metadata().map_err(|error| Error::new(format!("cannot be checked: {error}")))?;
    let (owner, user) = (status.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        let sentence = format!("belongs to user {owner}; one that belongs to user {user} is needed");
        return Err(Error::new(sentence));
    }
    let mode = status.mode() & 0o7777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        let sentence = format!("has the mode {mode:04o}, so others can write to it: run chmod go-w on it");
        return Err(Error::new(sentence));
    }
    Ok(())
}
