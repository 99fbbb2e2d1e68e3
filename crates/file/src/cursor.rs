//! Reads little-endian numbers and runs of bytes one after another, in chunks,
//! and never past the end of the file or the cap on headers.

use std::fmt;

use girih_tensor::{Error, Result};

use crate::source::ReadAt;

/// Bytes fetched at a time.
const CHUNK: u64 = 256 * 1024;

/// A place in a header, with the bytes that follow it.
pub(super) struct Cursor<'a> {
    source: &'a dyn ReadAt,
    /// Where the header must end: the file's length, or the cap.
    end: u64,
    /// Fetched bytes; the cursor stands at `buffer[at]`.
    buffer: Vec<u8>,
    at: usize,
    /// Where in the file `buffer` starts.
    start: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `source` that goes no further than `most` bytes.
    pub(super) fn new(source: &'a dyn ReadAt, most: u64) -> Cursor<'a> {
        Cursor { source, end: source.length().min(most), buffer: Vec::new(), at: 0, start: 0 }
    }

    /// How many bytes of the file lie before the cursor.
    pub(super) fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    /// How many bytes may still be read.
    pub(super) fn left(&self) -> u64 {
        self.end - self.position()
    }

    /// The next `bytes` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub(super) fn take(&mut self, bytes: u64) -> Result<&[u8]> {
        if bytes > self.left() {
            let (at, left) = (self.position(), self.left());
            return Err(self.too_short(format_args!("{bytes} bytes are needed at {at}, {left} are there")));
        }
        if bytes > (self.buffer.len() - self.at) as u64 {
            self.fetch(bytes)?;
        }
        let from = self.at;
        self.at += bytes as usize; // at most the buffer's length
        Ok(&self.buffer[from..self.at])
    }

    /// The next number.
    ///
    /// # Errors
    /// When the header ends before it does.
    pub(super) fn number<T: Number>(&mut self) -> Result<T> {
        self.take(T::BYTES as u64).map(T::from_le_slice)
    }

    /// Drops what was read and fetches a chunk, or `bytes` where that is more;
    /// there are so many left.
    fn fetch(&mut self, bytes: u64) -> Result<()> {
        self.start = self.position();
        self.buffer.drain(..self.at);
        self.at = 0;
        let held = self.buffer.len();
        let wanted = bytes.max(CHUNK).min(self.left());
        let wanted =
            usize::try_from(wanted).map_err(|_| Error::new("the header does not fit into memory"))?;
        self.buffer.resize(wanted, 0);
        self.source.read_at(self.start + held as u64, &mut self.buffer[held..])
    }

    /// Checks that `count` things of at least `least` bytes each can follow,
    /// before anything of that size is allocated.
    ///
    /// # Errors
    /// When they cannot.
    pub(super) fn check_room(&self, count: u64, things: impl fmt::Display, least: u64) -> Result<()> {
        let left = self.left();
        if count <= left / least {
            return Ok(());
        }
        Err(self.too_short(format_args!("{count} {things} cannot lie in the {left} bytes that are left")))
    }

    /// The error for what goes past the end, or past the cap where that comes first.
    fn too_short(&self, sentence: impl fmt::Display) -> Error {
        if self.end < self.source.length() {
            return Error::new(format!("the header is longer than {} bytes, which is the cap", self.end));
        }
        Error::new(format!("the file ends too early: {sentence}"))
    }
}

/// A number as files store it.
pub(super) trait Number: Sized {
    /// Its size.
    const BYTES: usize;

    /// The number in these bytes.
    ///
    /// # Panics
    /// When there are not [`Number::BYTES`] of them.
    fn from_le_slice(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const BYTES: usize = size_of::<$type>();
            fn from_le_slice(bytes: &[u8]) -> $type {
                <$type>::from_le_bytes(bytes.try_into().expect("callers pass BYTES bytes"))
            }
        }
    )*};
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }
