//! Writes a file without a name and names it when it is complete, so that no reader sees a partial
//! file and no interrupted writer leaves one behind.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use girih_tensor::{Error, Result};
use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, renameat_with};

/// The folder whose links name the open files of this process.
const OPEN_FILES: &str = "/proc/self/fd";

/// A file that has not got its name yet; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Staged {
    file: BufWriter<File>,
    /// The file's temporary name, on a file system whose files need one. A killed process leaves
    /// such a file.
    temporary: Option<PathBuf>,
    target: PathBuf,
}

impl Staged {
    /// Creates the file for `target` in `folder`, which must be on the same file system.
    pub(crate) fn create(target: &Path, folder: &Path) -> Result<Staged> {
        if target.file_name().is_none() {
            return Err(Error::new("has no file name").of(target.display()));
        }
        match unnamed(folder) {
            Some(file) => Ok(Staged::new(file, None, target)),
            None => Staged::named(target, folder),
        }
    }

    /// As [`Staged::create`], with a temporary name.
    fn named(target: &Path, folder: &Path) -> Result<Staged> {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(target.file_name().unwrap_or_default());
        // Nobody else can take this name beforehand.
        let random = RandomState::new().hash_one(0);
        hidden.push(format!(".{}.{random:016x}.part", std::process::id()));
        let temporary = folder.join(hidden);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(|error| {
            let folder = folder.display();
            Error::new(format!("cannot be created in {folder}: {error}")).of(target.display())
        })?;
        Ok(Staged::new(file, Some(temporary), target))
    }

    fn new(file: File, temporary: Option<PathBuf>, target: &Path) -> Staged {
        Staged { file: BufWriter::with_capacity(1 << 20, file), temporary, target: target.to_owned() }
    }

    /// The name that it will get.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Appends `bytes`.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.unwritten(&error))
    }

    /// Syncs the file to disk.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|error| self.unwritten(&error))
    }

    /// Syncs the file to disk and gives it its name. A file that has got this name meanwhile is
    /// kept, and is an error.
    pub(crate) fn publish(mut self) -> Result<()> {
        self.sync()?;
        self.name().map_err(|error| self.unwritten(&error))
    }

    fn name(&self) -> io::Result<()> {
        match &self.temporary {
            None => {
                let link = format!("{OPEN_FILES}/{}", self.file.get_ref().as_raw_fd());
                linkat(CWD, link, CWD, &self.target, AtFlags::SYMLINK_FOLLOW)?;
            }
            Some(temporary) => rename_to_new(temporary, &self.target)?,
        }
        // The name must also reach the disk.
        File::open(folder_of(&self.target))?.sync_all()
    }

    fn unwritten(&self, error: &io::Error) -> Error {
        let sentence = match error.kind() {
            ErrorKind::AlreadyExists => {
                "has appeared while it was being written and was kept; choose another path".to_owned()
            }
            _ => format!("cannot be written: {error}"),
        };
        Error::new(sentence).of(self.target.display())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // After the rename this name does not exist; any other error cannot be handled here.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Writes a whole new file that only this user can read and write.
///
/// # Errors
/// When the path exists, or cannot be written.
pub fn create_private_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut staged = Staged::create(path, folder_of(path))?;
    let mode = fs::Permissions::from_mode(0o600);
    staged.file.get_ref().set_permissions(mode).map_err(|error| staged.unwritten(&error))?;
    staged.append(bytes)?;
    staged.publish()
}

/// Writes a whole file, or replaces it in one step and keeps its mode. A reader sees the old or the
/// new bytes.
///
/// # Errors
/// When the path is a link or another thing that is not a regular file, or cannot be written.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let old = match fs::symlink_metadata(path) {
        Ok(status) if status.is_file() => Some(status.permissions()),
        Ok(status) if status.is_symlink() => {
            return Err(
                Error::new("is a link and was kept: name the file that it leads to").of(path.display())
            );
        }
        Ok(_) => return Err(Error::new("is not a regular file; choose another path").of(path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Error::new(format!("cannot be written: {error}")).of(path.display())),
    };
    if path.file_name().is_none() {
        return Err(Error::new("has no file name").of(path.display()));
    }
    let mut staged = Staged::named(path, folder_of(path))?;
    staged.append(bytes)?;
    staged.sync()?;
    let renamed = old.map_or(Ok(()), |mode| staged.file.get_ref().set_permissions(mode)).and_then(|()| {
        fs::rename(staged.temporary.as_deref().unwrap_or(path), path)?;
        // The name must also reach the disk.
        File::open(folder_of(path))?.sync_all()
    });
    renamed.map_err(|error| staged.unwritten(&error))
}

/// The folder of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file in `folder` that has no name and vanishes with its last descriptor; `None` if the file
/// system has no such files, or if it could not be named later.
#[cfg(target_os = "linux")]
fn unnamed(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};
    if !Path::new(OPEN_FILES).exists() {
        return None;
    }
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode).ok().map(File::from)
}

/// Returns `None`: only Linux has files without names.
#[cfg(not(target_os = "linux"))]
fn unnamed(_folder: &Path) -> Option<File> {
    None
}

/// Renames a file to a name that must not exist.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => Err(ErrorKind::AlreadyExists.into()),
        // Network file systems refuse the flag, but have hard links.
        Err(_) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in a new folder, and its files, after `act`.
    fn after(act: impl FnOnce(&Path)) -> Vec<(String, Vec<u8>)> {
        let folder = tempfile::tempdir().unwrap();
        act(folder.path());
        let entries = folder.path().read_dir().unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    type Create = fn(&Path, &Path) -> Result<Staged>;

    /// With and without a temporary name.
    const WAYS: [(&str, Create); 2] = [("create", Staged::create), ("named", Staged::named)];

    #[test]
    fn a_complete_file_gets_its_name() {
        for (way, create) in WAYS {
            let files = after(|folder| {
                let mut staged = create(&folder.join("a"), folder).unwrap();
                staged.append(b"complete").unwrap();
                staged.publish().unwrap();
            });
            assert_eq!(files, [("a".to_owned(), b"complete".to_vec())], "{way}");
        }
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_kept() {
        for (way, create) in WAYS {
            let files = after(|folder| {
                let path = folder.join("a");
                let mut staged = create(&path, folder).unwrap();
                staged.append(b"complete").unwrap();
                fs::write(&path, b"theirs").unwrap();
                let error = staged.publish().unwrap_err().to_string();
                assert!(error.contains("a: has appeared while it was being written and was kept"), "{error}");
            });
            assert_eq!(files, [("a".to_owned(), b"theirs".to_vec())], "{way}");
        }
    }

    #[test]
    fn two_writers_of_a_process_have_two_temporary_names() {
        let files = after(|folder| {
            let target = folder.join("a");
            let [first, second] = [(), ()].map(|()| Staged::named(&target, folder).unwrap());
            assert_ne!(first.temporary, second.temporary);
        });
        assert!(files.is_empty(), "{files:?}");
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        for (way, create) in WAYS {
            let files = after(|folder| {
                let mut staged = create(&folder.join("a"), folder).unwrap();
                staged.append(&[1; 100]).unwrap();
            });
            assert!(files.is_empty(), "{way}: {files:?}");
        }
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_a_link_is_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let files = after(|folder| {
            let (path, link) = (folder.join("a"), folder.join("b"));
            replace_file(&path, b"first").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            replace_file(&path, b"second").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
            symlink(&path, &link).unwrap();
            let error = replace_file(&link, b"third").unwrap_err().to_string();
            assert!(error.contains("b: is a link and was kept"), "{error}");
            assert!(replace_file(folder, b"third").is_err());
            fs::remove_file(&link).unwrap();
        });
        assert_eq!(files, [("a".to_owned(), b"second".to_vec())]);
    }

    #[test]
    fn a_folder_that_does_not_exist_is_refused_at_the_start() {
        let error = Staged::create(Path::new("/nowhere/a"), Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("cannot be created in /nowhere: No such file or directory"), "{error}");
        Staged::create(Path::new("/"), Path::new("/")).unwrap_err();
    }
}
