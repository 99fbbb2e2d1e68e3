//! Writes the tensors of a container in order, after a header that lists their
//! offsets.
//!
//! `gguf_writer.rs` and `safetensors_writer.rs` make the headers. The same
//! tensors and metadata give the same bytes.

use std::collections::BTreeSet;
use std::path::Path;

use girih_tensor::{DType, Error, Result, Shape};

use crate::quote::quote;
use crate::staged::Staged;

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// Its name in the file.
    pub name: String,
    /// The storage format.
    pub dtype: DType,
    /// The shape, outermost dimension first, regardless of the file's order.
    pub shape: Shape,
}

impl NewTensor {
    /// Its size in bytes.
    pub(super) fn bytes(&self) -> Result<u64> {
        Ok(self.dtype.bytes(&self.shape).map_err(|error| error.of(quote(&self.name)))? as u64)
    }
}

/// A container in the course of writing; dropping it before [`Writer::finish`]
/// leaves no file.
#[derive(Debug)]
pub struct Writer {
    staged: Staged,
    parts: Vec<Part>,
    /// The index of the part in progress.
    current: usize,
    /// The number of its bytes written.
    written: u64,
}

/// A tensor's data in the file.
#[derive(Debug)]
pub(super) struct Part {
    pub name: String,
    pub bytes: u64,
    /// The number of zero bytes after it.
    pub padding: u64,
}

impl Writer {
    /// Creates a file with this header; `parts` follow it in order.
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

    /// The names of the tensors in the order of writing.
    pub fn order(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Appends bytes to the tensor `name`: the current one or, if that is
    /// complete, the next.
    ///
    /// # Errors
    /// When the file cannot be written.
    ///
    /// # Panics
    /// When `name` is another tensor, or when the bytes exceed its size.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        while self.parts.get(self.current).is_some_and(|part| part.name != name) {
            self.close_part()?;
        }
        let part = self.parts.get(self.current).expect("callers write only the tensors of the header");
        self.written += bytes.len() as u64;
        assert!(self.written <= part.bytes, "tensor {name} has {} bytes, not {}", part.bytes, self.written);
        self.staged.append(bytes)
    }

    /// Syncs the file to disk and gives it its final name.
    ///
    /// # Errors
    /// When the file cannot be written.
    ///
    /// # Panics
    /// When a tensor is incomplete.
    pub fn finish(mut self) -> Result<()> {
        while self.current < self.parts.len() {
            self.close_part()?;
        }
        self.staged.publish()
    }

    fn close_part(&mut self) -> Result<()> {
        let part = &self.parts[self.current];
        assert_eq!(self.written, part.bytes, "tensor {} must be complete before the next", part.name);
        self.staged.append(&vec![0; part.padding as usize])?; // smaller than the alignment
        self.current += 1;
        self.written = 0;
        Ok(())
    }
}
