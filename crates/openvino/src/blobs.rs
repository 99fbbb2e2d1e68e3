//! Compiled models that are kept between runs: their key, their format and their checks.
//!
//! ```text
//! BLOB_MAGIC 8 | BLOB_FORMAT u32 | key 16 | bytes of the blob u64 | digest of the blob 16 | the blob
//! ```
//! Numbers are little-endian. OpenVINO imports damaged blobs without a word and computes other values, so nothing reaches it
//! whose head or digest is not as expected. The digests are XXH3; they detect damage, not forgery, so the store is a folder that
//! others cannot write. The key covers the model's text, the weights, the device, the properties and all versions.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use girih_file::PrivateFolder;
use girih_graph::store::{Store, StoreWriter, StoredItem, UnsavedItem};
use girih_tensor::{Error, Result};
use xxhash_rust::xxh3::xxh3_128;

const BLOB_MAGIC: &[u8; 8] = b"girihovb";

/// The version of the format in the module's documentation, and of the planes that weights become.
const BLOB_FORMAT: u32 = 1;

/// The bytes before a blob.
const HEAD_BYTES: usize = 8 + 4 + 16 + 8 + 16;

/// The name of a blob; equal keys mean equal models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlobKey(u128);

impl fmt::Display for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl BlobKey {
    /// The key of what these texts and bytes say, each with its length.
    pub fn of(parts: &[&[u8]]) -> BlobKey {
        let mut bytes = [BLOB_MAGIC, &BLOB_FORMAT.to_le_bytes()[..]].concat();
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(*part);
        }
        BlobKey(xxh3_128(&bytes))
    }

    /// What precedes a blob.
    fn head(self, blob: &[u8]) -> Vec<u8> {
        let length = (blob.len() as u64).to_le_bytes();
        let digest = xxh3_128(blob).to_le_bytes();
        [BLOB_MAGIC, &BLOB_FORMAT.to_le_bytes()[..], &self.0.to_le_bytes(), &length, &digest].concat()
    }
}

/// The blobs of a device.
#[derive(Debug)]
pub(crate) struct BlobStore {
    pub store: Box<dyn Store>,
    /// The folder in which OpenVINO writes a blob before it is kept.
    pub folder: PathBuf,
}

impl BlobStore {
    /// The blob of a key, if there is one that is whole. The reason why another is not used becomes a note.
    pub fn find(&self, key: BlobKey) -> Option<Vec<u8>> {
        let item = self.store.find(&key.to_string())?;
        read(&*item, key).map_err(|error| self.store.note(&error)).ok()
    }

    /// The bytes that `export` writes to the file at a path. No other user can read or write it.
    ///
    /// # Errors
    /// When the folder belongs to another user or others can write to it, or the export fails.
    pub fn exported(&self, key: BlobKey, export: impl FnOnce(&Path) -> Result<()>) -> Result<Vec<u8>> {
        let folder = PrivateFolder::create(&self.folder)?;
        let name = format!("{key}.{}.part", std::process::id());
        let failed = |error: io::Error| Error::new(format!("{name} is not written: {error}"));
        drop(folder.new_file(&name).map_err(failed)?);
        let read = || {
            let mut blob = Vec::new();
            export(&self.folder.join(&name))?;
            if let Some(mut file) = folder.file(&name)? {
                file.read_to_end(&mut blob).map_err(failed)?;
            }
            Ok(blob)
        };
        let blob = read();
        folder.remove(&name).map_err(failed)?;
        blob
    }

    /// Keeps a blob.
    pub fn keep(&self, key: BlobKey, blob: Vec<u8>) {
        let head = key.head(&blob);
        self.store.keep(Box::new(NewBlob { key, head, blob, is_taken: AtomicBool::new(false) }));
    }
}

/// Reads a kept blob.
///
/// # Errors
/// When it is of another key or format, has another length, or its bytes have another digest.
fn read(item: &dyn StoredItem, key: BlobKey) -> Result<Vec<u8>> {
    let length = item.length();
    let Some(count) = length.checked_sub(HEAD_BYTES as u64) else {
        return Err(Error::new(format!(
            "a compiled model has {length} bytes, less than its head: it is not used"
        )));
    };
    let mut head = [0; HEAD_BYTES];
    item.read(0, &mut head)?;
    let known = key.head(&[]);
    let before_length = HEAD_BYTES - 24;
    if head[..before_length] != known[..before_length] || head[before_length..][..8] != count.to_le_bytes() {
        return Err(Error::new(
            "a compiled model belongs to another program, version or size: it is not used",
        ));
    }
    let short = |_| Error::new(format!("a compiled model has {count} bytes, for which memory is short"));
    let count = usize::try_from(count).map_err(|_| short(()))?;
    let mut blob = Vec::new();
    blob.try_reserve_exact(count).map_err(|_| short(()))?;
    blob.resize(count, 0);
    item.read(HEAD_BYTES as u64, &mut blob)?;
    if key.head(&blob) != head {
        return Err(Error::new("a compiled model is damaged: it is not used"));
    }
    Ok(blob)
}

/// A blob that is not yet in a store.
struct NewBlob {
    key: BlobKey,
    head: Vec<u8>,
    blob: Vec<u8>,
    /// Whether a thread writes it.
    is_taken: AtomicBool,
}

impl fmt::Debug for NewBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewBlob({})", self.key)
    }
}

impl UnsavedItem for NewBlob {
    fn key(&self) -> String {
        self.key.to_string()
    }

    fn bytes(&self) -> u64 {
        (self.head.len() + self.blob.len()) as u64
    }

    fn write(&self, to: &dyn StoreWriter) -> Result<bool> {
        if self.is_taken.swap(true, Ordering::Relaxed) {
            return Ok(false);
        }
        to.write(0, &self.head)?;
        to.write(self.head.len() as u64, &self.blob)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;

    /// Bytes in memory.
    struct Kept(Vec<u8>);

    impl StoredItem for Kept {
        fn length(&self) -> u64 {
            self.0.len() as u64
        }

        fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            let found = self.0.get(offset as usize..).and_then(|rest| rest.get(..into.len()));
            into.copy_from_slice(found.ok_or_else(|| Error::new("there are fewer bytes"))?);
            Ok(())
        }
    }

    /// Of 120 damaged blobs, OpenVINO 2026.4.1 refused 72 and computed other values from 25.
    #[test]
    fn damaged_foreign_and_older_blobs_are_refused() {
        let (key, other) = (BlobKey::of(&[b"one", b"model"]), BlobKey::of(&[b"onem", b"odel"]));
        assert_ne!(key, other);
        let mut random = Random(5);
        let blob: Vec<u8> = (0..5000).map(|_| random.below(256) as u8).collect();
        let whole = [key.head(&blob), blob.clone()].concat();
        let found = |bytes: Vec<u8>| read(&Kept(bytes), key);
        assert_eq!(found(whole.clone()).unwrap(), blob);
        for index in 0..120 {
            let mut bytes = whole.clone();
            match index % 4 {
                0 => bytes.truncate(random.below(whole.len())),
                1 => bytes.extend(vec![0; 1 + random.below(99)]),
                2 => bytes[random.below(whole.len())] ^= 1 << random.below(8),
                _ => bytes[HEAD_BYTES + random.below(blob.len())] ^= 1 << random.below(8),
            }
            assert!(found(bytes).is_err(), "damage {index}");
        }
        let foreign = [other.head(&blob), blob.clone()].concat();
        let older = [BLOB_MAGIC, &0_u32.to_le_bytes()[..], &whole[12..]].concat();
        for bytes in [foreign, older, blob, Vec::new()] {
            let sentence = found(bytes).unwrap_err().to_string();
            assert!(sentence.ends_with("it is not used"), "{sentence}");
        }
    }
}
