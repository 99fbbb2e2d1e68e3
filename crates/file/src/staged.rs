//! Writes a file under a temporary name and moves it into place when it is
//! whole, so that nobody ever sees half of it under its own name.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use girih_tensor::{Error, Result};

/// A file that is not yet in its place; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Staged {
    file: BufWriter<File>,
    temporary: PathBuf,
    target: PathBuf,
}

impl Staged {
    /// Starts a file that is to appear at `target`.
    pub(crate) fn create(target: &Path) -> Result<Staged> {
        let Some(name) = target.file_name() else {
            return Err(Error::new("names no file to write").of(target.display()));
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

    /// Brings the file to the disk and to its name, replacing what was there.
    pub(crate) fn publish(mut self) -> Result<()> {
        self.settle().map_err(|error| unwritten(&self.target, &error))
    }

    fn settle(&mut self) -> std::io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.target)?;
        // The new name itself must reach the disk, too.
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After the move there is nothing under this name; otherwise nothing
        // can be done about a file that cannot be removed.
        let _ = fs::remove_file(&self.temporary);
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("cannot be written: {error}")).of(path.display())
}
