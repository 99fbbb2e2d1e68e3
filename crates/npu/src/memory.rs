//! Buffer objects: the DRAM regions shared by host and array, and their binding
//! to the arguments of a program.

use girih_tensor::{Error, ErrorKind, Result};

/// Index of a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// The part of a buffer object that an argument is bound to. Two arguments may
/// be bound to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The object.
    pub object: ObjectId,
    /// The offset of the argument in bytes, a multiple of four.
    pub offset: u64,
}

/// All buffer objects of a loaded model.
#[derive(Debug, Default)]
pub struct Objects {
    list: Vec<Vec<u8>>,
}

impl Objects {
    /// Creates an empty list.
    pub fn new() -> Objects {
        Objects::default()
    }

    /// Adds an object of `bytes` zero bytes.
    ///
    /// # Errors
    /// When memory is short.
    pub fn add(&mut self, bytes: u64) -> Result<ObjectId> {
        let short = || {
            let sentence = format!("cannot allocate {bytes} bytes for a buffer object");
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        };
        let size = usize::try_from(bytes).map_err(|_| short())?;
        let mut object = Vec::new();
        object.try_reserve_exact(size).map_err(|_| short())?;
        object.resize(size, 0);
        self.list.push(object);
        Ok(ObjectId(self.list.len() as u32 - 1))
    }

    /// Grows an object to at least `bytes` bytes; new bytes are zero.
    ///
    /// # Errors
    /// When memory is short.
    ///
    /// Panics if the id belongs to other objects.
    pub fn grow(&mut self, id: ObjectId, bytes: u64) -> Result<()> {
        let short = || {
            let sentence = format!("cannot allocate {bytes} bytes for a buffer object");
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        };
        let size = usize::try_from(bytes).map_err(|_| short())?;
        let object = &mut self.list[id.0 as usize];
        let more = size.saturating_sub(object.len());
        object.try_reserve_exact(more).map_err(|_| short())?;
        object.resize(object.len() + more, 0);
        Ok(())
    }

    /// The bytes of an object.
    ///
    /// Panics if the id belongs to other objects.
    pub fn bytes(&self, id: ObjectId) -> &[u8] {
        &self.list[id.0 as usize]
    }

    /// The bytes of an object, mutable.
    ///
    /// Same as [`Objects::bytes`].
    pub fn bytes_mut(&mut self, id: ObjectId) -> &mut [u8] {
        &mut self.list[id.0 as usize]
    }

    /// The total size of all objects in bytes.
    pub fn total(&self) -> u64 {
        self.list.iter().map(|object| object.len() as u64).sum()
    }
}

/// The memory that a simulated run works on: values, or nothing if only time is
/// simulated.
#[derive(Debug)]
pub enum SimMemory<'a> {
    /// Buffer objects; values are computed.
    Values(&'a mut Objects),
    /// No objects; only time is simulated.
    TimeOnly,
}
