//! Buffer objects: the stretches of DRAM that host and array share, and which
//! of them a program's arguments are.

use girih_tensor::{Error, Result};

/// Index of a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// The buffer object that an argument is, from a byte on. Two arguments may be
/// bound to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The object.
    pub object: ObjectId,
    /// Where in it the argument begins, in bytes; a multiple of four.
    pub offset: u64,
}

/// All buffer objects of a loaded model.
#[derive(Debug, Default)]
pub struct Objects {
    list: Vec<Vec<u8>>,
}

impl Objects {
    /// No objects.
    pub fn new() -> Objects {
        Objects::default()
    }

    /// A new object of so many zero bytes.
    ///
    /// # Errors
    /// When memory is short.
    pub fn add(&mut self, bytes: u64) -> Result<ObjectId> {
        let short = || Error::new(format!("a buffer object of {bytes} bytes is more than memory has"));
        let size = usize::try_from(bytes).map_err(|_| short())?;
        let mut object = Vec::new();
        object.try_reserve_exact(size).map_err(|_| short())?;
        object.resize(size, 0);
        self.list.push(object);
        Ok(ObjectId(self.list.len() as u32 - 1))
    }

    /// Makes an object at least so large; what is new is zero.
    ///
    /// # Errors
    /// When memory is short.
    ///
    /// # Panics
    /// When the id belongs to other objects.
    pub fn grow(&mut self, id: ObjectId, bytes: u64) -> Result<()> {
        let short = || Error::new(format!("a buffer object of {bytes} bytes is more than memory has"));
        let size = usize::try_from(bytes).map_err(|_| short())?;
        let object = &mut self.list[id.0 as usize];
        let more = size.saturating_sub(object.len());
        object.try_reserve_exact(more).map_err(|_| short())?;
        object.resize(object.len() + more, 0);
        Ok(())
    }

    /// The bytes of an object.
    ///
    /// # Panics
    /// When the id belongs to other objects.
    pub fn bytes(&self, id: ObjectId) -> &[u8] {
        &self.list[id.0 as usize]
    }

    /// The bytes of an object, to be written.
    ///
    /// # Panics
    /// As [`Objects::bytes`].
    pub fn bytes_mut(&mut self, id: ObjectId) -> &mut [u8] {
        &mut self.list[id.0 as usize]
    }

    /// The bytes of all objects together.
    pub fn total(&self) -> u64 {
        self.list.iter().map(|object| object.len() as u64).sum()
    }
}

/// What a device works on: values, or only their sizes, which is enough for
/// keeping time.
#[derive(Debug)]
pub enum SimMemory<'a> {
    /// The objects; values are computed.
    Values(&'a mut Objects),
    /// No objects; only time passes.
    TimeOnly,
}
