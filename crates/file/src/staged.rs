//! Writes a file under a temporary name and renames it when it is complete, so
//! that no reader sees a partial file.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use girih_tensor::{Error, Result};

/// A file under its temporary name; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Staged {
    file: BufWriter<File>,
    temporary: PathBuf,
    target: PathBuf,
}

impl Staged {
    /// Creates the temporary file for `target`.
    pub(crate) fn create(target: &Path) -> Result<Staged> {
        let Some(name) = target.file_name() else {
            return Err(Error::new("has no file name").of(target.display()));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let temporary = target.with_file_name(hidden);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(|error| Error::new(format!("cannot be created: {error}")).of(temporary.display()))?;
        Ok(Staged { file: BufWriter::with_capacity(1 << 20, file), temporary, target: target.to_owned() })
    }

    /// Appends `bytes`.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| unwritten(&self.temporary, &error))
    }

    /// Syncs the file to disk and renames it to its target, replacing an existing file.
    pub(crate) fn publish(mut self) -> Result<()> {
        self.settle().map_err(|error| unwritten(&self.target, &error))
    }

    fn settle(&mut self) -> std::io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.target)?;
        // The rename itself must also reach the disk.
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After the rename this name does not exist; any other error cannot be handled here.
        let _ = fs::remove_file(&self.temporary);
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("cannot be written: {error}")).of(path.display())
}
