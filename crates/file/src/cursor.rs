//! Reads little-endian numbers and byte strings in sequence, in chunks, and
//! never past the end of the file or the cap on headers.

use std::fmt;

use girih_tensor::{Error, Result};

use crate::source::ReadAt;

/// The number of bytes fetched at a time.
const FETCH_BYTES: u64 = 256 * 1024;

/// A position in a header, with a buffer of the bytes that follow.
pub(super) struct Cursor<'a> {
    source: &'a dyn ReadAt,
    /// The limit of the header: the file's length, or the cap.
    end: u64,
    /// Fetched bytes; `buffer[at]` is the next one.
    buffer: Vec<u8>,
    at: usize,
    /// The file offset of `buffer`.
    start: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `source` that reads at most `max` bytes.
    pub(super) fn new(source: &'a dyn ReadAt, max: u64) -> Cursor<'a> {
        Cursor { source, end: source.length().min(max), buffer: Vec::new(), at: 0, start: 0 }
    }

    /// The number of bytes before the cursor.
    pub(super) fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    /// The number of bytes that may still be read.
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
            return Err(
                self.too_short(format_args!("{bytes} bytes are needed at offset {at}, {left} remain"))
            );
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
    /// When the header is too short.
    pub(super) fn number<T: LittleEndian>(&mut self) -> Result<T> {
        self.take(T::BYTES as u64).map(T::from_le_slice)
    }

    /// Discards the bytes already read and fetches a chunk, or `bytes` if that is
    /// more; the caller has checked that `bytes` are left.
    fn fetch(&mut self, bytes: u64) -> Result<()> {
        self.start = self.position();
        self.buffer.drain(..self.at);
        self.at = 0;
        let held = self.buffer.len();
        let length = bytes.max(FETCH_BYTES).min(self.left());
        let length =
            usize::try_from(length).map_err(|_| Error::new("the header does not fit into memory"))?;
        self.buffer.resize(length, 0);
        self.source.read_at(self.start + held as u64, &mut self.buffer[held..])
    }

    /// Checks that `count` items of at least `min_bytes` each can follow, before
    /// anything of that size is allocated.
    ///
    /// # Errors
    /// When the bytes that are left are too few.
    pub(super) fn check_room(&self, count: u64, items: impl fmt::Display, min_bytes: u64) -> Result<()> {
        let left = self.left();
        if count <= left / min_bytes {
            return Ok(());
        }
        Err(self.too_short(format_args!("{count} {items} do not fit in the remaining {left} bytes")))
    }

    /// The error of a read past the end, or past the cap if that comes first.
    fn too_short(&self, sentence: impl fmt::Display) -> Error {
        if self.end < self.source.length() {
            return Error::new(format!("the header exceeds the cap of {} bytes", self.end));
        }
        Error::new(format!("the file ends too early: {sentence}"))
    }
}

/// A number that files store in little-endian order.
pub(super) trait LittleEndian: Sized {
    /// Its size.
    const BYTES: usize;

    /// The number in these bytes.
    ///
    /// # Panics
    /// When the slice does not have [`LittleEndian::BYTES`] bytes.
    fn from_le_slice(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl LittleEndian for $type {
            const BYTES: usize = size_of::<$type>();
            fn from_le_slice(bytes: &[u8]) -> $type {
                <$type>::from_le_bytes(bytes.try_into().expect("callers pass BYTES bytes"))
            }
        }
    )*};
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }
