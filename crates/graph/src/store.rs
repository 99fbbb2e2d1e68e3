//! Stores of bytes that a backend derives from weights and keeps between runs. A store
//! only holds bytes, without checks; if it fails, loading still succeeds.

use std::fmt;
use std::fs::File;

use girih_tensor::{Error, Result};

/// Keeps items between runs of the program.
pub trait Store: fmt::Debug + Send + Sync {
    /// Returns the item that is kept under `key`, if there is one.
    fn find(&self, key: &str) -> Option<Box<dyn StoredItem>>;

    /// Receives a new item. The store decides when to write it: at once, or on threads of
    /// its own while it is in use.
    fn keep(&self, item: Box<dyn UnsavedItem>);

    /// Reports why a kept item is not used.
    fn note(&self, why: &Error);
}

/// What a store may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Whether new items are written.
    pub writes: bool,
    /// The maximum size of all items in bytes, or the store's default.
    pub limit: Option<u64>,
}

/// An item in a store, shared by threads.
pub trait StoredItem: Sync {
    /// The total number of bytes.
    fn length(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// When there are fewer bytes, or they cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// The file that contains exactly these bytes, to be mapped, if there is one.
    ///
    /// Its bytes must never change: their writer has closed the file, and if the file is replaced, then by
    /// another one of the same name. Slices of memory have the mapped bytes, so a change is undefined
    /// behaviour. A backend maps only a file of this user that nobody has permission to write.
    fn file(&self) -> Option<&File> {
        None
    }
}

/// An item that is in use and not yet in a store.
pub trait UnsavedItem: fmt::Debug + Send + Sync {
    /// The key under which to keep it: letters and digits.
    fn key(&self) -> String;

    /// The total number of bytes.
    fn bytes(&self) -> u64;

    /// Whether a store that is dropped waits until the item is written, and does not give up.
    fn is_awaited(&self) -> bool {
        true
    }

    /// Writes the pieces that no other thread has started. Threads may call this
    /// concurrently; the call that finishes the last piece returns true.
    ///
    /// # Errors
    /// When a piece cannot be written; then no call returns true.
    fn write(&self, to: &dyn StoreWriter) -> Result<bool>;
}

/// The destination of an item, all zeros at first, shared by threads.
pub trait StoreWriter: Sync {
    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}
