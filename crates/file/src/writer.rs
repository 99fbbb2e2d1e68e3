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

/// A container that is being written. Until [`ContainerWriter::finish`] its file has no name, so
/// that neither a dropped writer nor a killed process leaves a file; on file systems without such
/// files it has a hidden name, which a killed process leaves.
#[derive(Debug)]
pub struct ContainerWriter {
    staged: Staged,
    slots: Vec<TensorSlot>,
    /// The index of the slot in progress.
    current: usize,
    /// The number of its bytes written.
    written: u64,
}

/// A tensor's data in the file.
#[derive(Debug)]
pub(super) struct TensorSlot {
    pub name: String,
    pub bytes: u64,
    /// The number of zero bytes after it.
    pub padding: u64,
}

impl ContainerWriter {
    /// Creates a file with this header in `folder`, which gets the name `path` at the end; `slots`
    /// follow the header in order.
    pub(super) fn start(
        path: &Path,
        folder: &Path,
        header: &[u8],
        slots: Vec<TensorSlot>,
    ) -> Result<ContainerWriter> {
        let mut names = BTreeSet::new();
        if let Some(slot) = slots.iter().find(|slot| !names.insert(&slot.name)) {
            let sentence = format!("cannot be written: tensor {} occurs twice", quote(&slot.name));
            return Err(Error::new(sentence).of(path.display()));
        }
        let mut staged = Staged::create(path, folder)?;
        staged.append(header)?;
        Ok(ContainerWriter { staged, slots, current: 0, written: 0 })
    }

    /// The names of the tensors in the order of writing.
    pub fn order(&self) -> impl ExactSizeIterator<Item = &str> {
        self.slots.iter().map(|slot| slot.name.as_str())
    }

    /// The path of the file when it is finished.
    pub fn path(&self) -> &Path {
        self.staged.target()
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
        while self.slots.get(self.current).is_some_and(|slot| slot.name != name) {
            self.close_slot()?;
        }
        let slot = self.slots.get(self.current).expect("callers write only the tensors of the header");
        self.written += bytes.len() as u64;
        assert!(self.written <= slot.bytes, "tensor {name} has {} bytes, not {}", slot.bytes, self.written);
        self.staged.append(bytes)
    }

    /// Completes the last tensor and syncs the file to disk, so that finishing takes no time.
    ///
    /// # Errors
    /// When the file cannot be written.
    ///
    /// # Panics
    /// When a tensor is incomplete.
    pub fn sync(&mut self) -> Result<()> {
        while self.current < self.slots.len() {
            self.close_slot()?;
        }
        self.staged.sync()
    }

    /// [Syncs](ContainerWriter::sync) the file and gives it its final name.
    ///
    /// # Errors
    /// When the file cannot be written, or when there is a file of this name by now, which is kept.
    ///
    /// # Panics
    /// When a tensor is incomplete.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        self.staged.publish()
    }

    fn close_slot(&mut self) -> Result<()> {
        let slot = &self.slots[self.current];
        assert_eq!(self.written, slot.bytes, "tensor {} must be complete before the next", slot.name);
        self.staged.append(&vec![0; slot.padding as usize])?; // smaller than the alignment
        self.current += 1;
        self.written = 0;
        Ok(())
    }
}
