//! Writes the tensors of a container one after another, behind a header that
//! already says where each of them lies.
//!
//! The headers themselves are in `gguf_writer.rs` and `safetensors_writer.rs`.
//! The same tensors and metadata give the same bytes.

use std::collections::BTreeSet;
use std::path::Path;

use girih_tensor::{DType, Error, Result, Shape};

use crate::quote::quote;
use crate::staged::Staged;

/// A tensor that is to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// Its name in the file.
    pub name: String,
    /// The storage format.
    pub dtype: DType,
    /// The shape, outermost dimension first, whatever the file's own order.
    pub shape: Shape,
}

impl NewTensor {
    /// Its size in bytes.
    pub(super) fn bytes(&self) -> Result<u64> {
        Ok(self.dtype.bytes(&self.shape).map_err(|error| error.of(quote(&self.name)))? as u64)
    }
}

/// A container that is being written; dropped before [`Writer::finish`], it
/// leaves no file behind.
#[derive(Debug)]
pub struct Writer {
    staged: Staged,
    parts: Vec<Part>,
    /// The part that is being written, and how many of its bytes are there.
    current: usize,
    written: u64,
}

/// A tensor's place in the file.
#[derive(Debug)]
pub(super) struct Part {
    pub name: String,
    pub bytes: u64,
    /// Zeros behind it.
    pub padding: u64,
}

impl Writer {
    /// Starts a file with this header; `parts` follow it in their order.
    pub(super) fn start(path: &Path, header: &[u8], parts: Vec<Part>) -> Result<Writer> {
        let mut names = BTreeSet::new();
        if let Some(part) = parts.iter().find(|part| !names.insert(&part.name)) {
            let sentence = format!("cannot be written: tensor {} occurs twice", quote(&part.name));
            return Err(Error::new(sentence).of(path.display()));
        }
        let mut staged = Staged::create(path)?;
        staged.append(header)?;
        Ok(Writer { staged, parts, current: 0, written: 0 })
    }

    /// The tensors' names in the order in which they must be written.
    pub fn order(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Appends bytes to the tensor called `name`: the one that was begun, or,
    /// when that is whole, the next.
    ///
    /// # Errors
    /// When the disk takes no more.
    ///
    /// # Panics
    /// When it is another tensor's turn, or when the bytes are more than its size.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        while self.parts.get(self.current).is_some_and(|part| part.name != name) {
            self.close_part()?;
        }
        let part = self.parts.get(self.current).expect("callers write the tensors that they announced");
        self.written += bytes.len() as u64;
        assert!(self.written <= part.bytes, "tensor {name} has {} bytes, not {}", part.bytes, self.written);
        self.staged.append(bytes)
    }

    /// Brings the whole file to the disk and under its name.
    ///
    /// # Errors
    /// When the disk refuses.
    ///
    /// # Panics
    /// When a tensor is not whole.
    pub fn finish(mut self) -> Result<()> {
        while self.current < self.parts.len() {
            self.close_part()?;
        }
        self.staged.publish()
    }

    fn close_part(&mut self) -> Result<()> {
        let part = &self.parts[self.current];
        assert_eq!(self.written, part.bytes, "tensor {} must be whole before the next", part.name);
        self.staged.append(&vec![0; part.padding as usize])?; // less than the alignment
        self.current += 1;
        self.written = 0;
        Ok(())
    }
}
