//! Reads bytes at an offset of a file or, for built-in models, tests and
//! fuzzing, of memory.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use girih_tensor::{Error, Result};

use crate::identity;

/// Bytes of a known length that can be read at any offset.
pub trait ReadAt {
    /// The length in bytes; it is constant.
    fn length(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// When the range exceeds the length, or the bytes cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// An open regular file, or bytes in memory.
///
/// A file is read with `pread`, so threads may share it.
#[derive(Debug)]
pub struct ByteSource {
    backing: Backing,
    length: u64,
}

#[derive(Debug)]
enum Backing {
    File(File),
    Memory(Cow<'static, [u8]>),
}

impl ByteSource {
    /// Opens a regular file (or a link to one) for reading.
    ///
    /// # Errors
    /// When the file does not exist, or is a pipe, a device or a folder.
    pub fn open(path: &Path) -> Result<ByteSource> {
        // Without O_NONBLOCK, opening a pipe blocks until it has a writer.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let unreadable = |error| Error::new(format!("cannot be opened: {error}"));
        let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(unreadable)?;
        let status = file.metadata().map_err(unreadable)?;
        if !status.is_file() {
            return Err(Error::new("is not a regular file; girih reads models from regular files only"));
        }
        Ok(ByteSource { backing: Backing::File(file), length: status.len() })
    }

    /// See [`identity::of`]; `None` for bytes in memory.
    pub(super) fn identity(&self, path: &Path) -> Option<String> {
        match &self.backing {
            Backing::File(file) => identity::of(file, path),
            Backing::Memory(_) => None,
        }
    }

    /// Bytes in memory: part of the program, or of a test.
    pub fn memory(bytes: impl Into<Cow<'static, [u8]>>) -> ByteSource {
        let bytes = bytes.into();
        ByteSource { length: bytes.len() as u64, backing: Backing::Memory(bytes) }
    }
}

/// Reads a whole small file, such as JSON.
///
/// # Errors
/// When it is not a regular file, has more than `max` bytes, or cannot be read.
pub fn read_small(path: &Path, max: u64) -> Result<Vec<u8>> {
    let read = || {
        let source = ByteSource::open(path)?;
        if source.length > max {
            let length = source.length;
            return Err(Error::new(format!("has {length} bytes; the cap is {max}")));
        }
        let mut bytes = vec![0; source.length as usize]; // bounded by `max`
        source.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error| error.of(path.display()))
}

impl ReadAt for ByteSource {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check_range(self.length, offset, into.len())?;
        match &self.backing {
            Backing::Memory(bytes) => bytes.as_ref().read_at(offset, into),
            Backing::File(file) => file.read_exact_at(into, offset).map_err(|error| {
                Error::new(format!("{} bytes at {offset} cannot be read: {error}", into.len()))
            }),
        }
    }
}

impl ReadAt for &[u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check_range(self.length(), offset, into.len())?;
        let start = offset as usize; // bounded by the slice's length
        into.copy_from_slice(&self[start..start + into.len()]);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.as_slice().read_at(offset, into)
    }
}

fn check_range(length: u64, offset: u64, bytes: usize) -> Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= length => Ok(()),
        _ => Err(Error::new(format!("{bytes} bytes at {offset} exceed the file, which has {length} bytes"))),
    }
}
