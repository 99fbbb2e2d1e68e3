//! Reads bytes at an offset of a file or, for built-in models, tests and
//! fuzzing, of memory.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use girih_tensor::{Error, Result};

use crate::identity::FileIdentity;
use crate::outside::{not_opened, open_regular};

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
    /// With the identity that the file had when it was opened.
    File(File, FileIdentity),
    Memory(Cow<'static, [u8]>),
}

impl ByteSource {
    /// Opens a regular file (or a link to one) for reading.
    ///
    /// # Errors
    /// When the file does not exist, or is a pipe, a device or a folder.
    pub fn open(path: &Path) -> Result<ByteSource> {
        let file = open_regular(path).map_err(not_opened)?;
        let identity = FileIdentity::settled(&file).map_err(not_opened)?;
        Ok(ByteSource { length: identity.size(), backing: Backing::File(file, identity) })
    }

    /// The identity of the file when it was opened, in one line; `None` for bytes in memory.
    pub(super) fn identity(&self) -> Option<String> {
        match &self.backing {
            Backing::File(_, identity) => Some(identity.to_string()),
            Backing::Memory(_) => None,
        }
    }

    /// Checks that the file did not change since it was opened. Call it after the last read.
    ///
    /// # Errors
    /// When it was changed meanwhile.
    pub fn check_unchanged(&self) -> Result<()> {
        let Backing::File(file, identity) = &self.backing else { return Ok(()) };
        match FileIdentity::of(file) {
            Ok(now) if now == *identity => Ok(()),
            _ => Err(Error::new("was changed while it was read; load it again")),
        }
    }

    /// See [`Container::check_contents`](crate::Container::check_contents).
    pub(super) fn check_contents(&self) -> Result<()> {
        let Backing::File(file, identity) = &self.backing else { return Ok(()) };
        match FileIdentity::of(file) {
            Ok(now) if now.has_contents_of(identity) => Ok(()),
            _ => Err(Error::new("was changed while the model ran; load it again")),
        }
    }

    /// Whether a path leads to this file, unchanged; true for bytes in memory.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        match &self.backing {
            Backing::File(_, identity) => FileIdentity::at(path).is_ok_and(|now| now == *identity),
            Backing::Memory(_) => true,
        }
    }

    /// Bytes in memory: part of the program, or of a test.
    pub fn memory(bytes: impl Into<Cow<'static, [u8]>>) -> ByteSource {
        let bytes = bytes.into();
        ByteSource { length: bytes.len() as u64, backing: Backing::Memory(bytes) }
    }
}

impl ReadAt for ByteSource {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check_range(self.length, offset, into.len())?;
        match &self.backing {
            Backing::Memory(bytes) => bytes.as_ref().read_at(offset, into),
            Backing::File(file, _) => file.read_exact_at(into, offset).map_err(|error| {
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
