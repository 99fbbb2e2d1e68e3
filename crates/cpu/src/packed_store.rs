//! Packed weights that outlive the process, so that the next start reads them
//! straight into place: what is kept, under which key, and how it is checked.
//! Where the bytes lie is the matter of a [`PackedStore`]; this crate knows no
//! files.
//!
//! ```text
//! magic 8 | FORMAT u32 | VERSION u32 | key 16 | bytes of all u64 | matrices u64
//! for each matrix: name | layout | rows u64 | columns u64 | offset u64 | length u64
//! a digest of each band u64 | a digest of everything so far u64
//! the bands of each matrix, from a multiple of 4096 on
//! ```
//! Numbers are little-endian, texts have their length before them. Who reads
//! knows the matrices from its graph, so nothing above the digests is parsed:
//! it is compared with what it must be, and so is the length of the whole. The
//! digests are XXH3; they tell damage, not forgery.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use girih_graph::Error;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::arrange::bands;
use crate::kernels::packed::{Layout, VERSION};

const MAGIC: &[u8; 8] = b"girihpak";

/// The version of the form that the module's documentation draws.
const FORMAT: u32 = 1;

/// What the bytes of a matrix begin at a multiple of: a page, so that they
/// could be mapped.
const ALIGNMENT: u64 = 4096;

/// Bytes of a digest.
const DIGEST: usize = size_of::<u64>();

/// Names packed weights: equal keys, equal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackKey(u128);

impl fmt::Display for PackKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A place that keeps packed weights from one start to the next. It keeps bytes
/// and checks nothing; no failure of it is a failure of the start.
pub trait PackedStore: fmt::Debug + Send + Sync {
    /// What is kept under `key`, if something is.
    fn find(&self, key: PackKey) -> Option<Box<dyn PackReader>>;

    /// Room for so many bytes, all zeros, to be kept under `key`; nothing where
    /// the store wants none.
    fn create(&self, key: PackKey, bytes: u64) -> Option<Box<dyn PackWriter>>;

    /// Hears why something kept is not used, or something is not kept.
    fn note(&self, why: &Error);
}

/// Packed weights in a store; threads share it.
pub trait PackReader: Sync {
    /// All bytes.
    fn length(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// When they are not all there, or cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error>;
}

/// Packed weights on the way into a store; threads share it. What is dropped
/// unpublished is forgotten.
pub trait PackWriter: Sync {
    /// Puts `bytes` at `offset`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Keeps what was written, all at once.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn publish(self: Box<Self>) -> Result<(), Error>;
}

/// A matrix to be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed<'a> {
    pub name: &'a str,
    pub layout: Layout,
    pub rows: usize,
    pub columns: usize,
}

/// What packed weights consist of, and where each matrix lies.
#[derive(Debug)]
pub(crate) struct Contents {
    pub key: PackKey,
    /// All bytes.
    pub bytes: u64,
    /// Everything before the digests.
    head: Vec<u8>,
    digests: usize,
    places: HashMap<String, Place>,
}

/// Where the bands of a matrix lie.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    band_bytes: usize,
    /// The index of its first digest.
    digest: usize,
}

impl Contents {
    /// The contents for `matrices` of the source that `identity` names; nothing
    /// where there are none, or their bytes cannot be counted.
    pub fn of(matrices: &[Listed<'_>], identity: &[u8]) -> Option<Contents> {
        if matrices.is_empty() {
            return None;
        }
        let row =
            |matrix: &Listed<'_>| 2 * DIGEST + matrix.name.len() + layout_name(matrix.layout).len() + 32;
        let head_bytes = 48 + matrices.iter().map(row).sum::<usize>();
        let digests = matrices.iter().try_fold(0usize, |sum, matrix| sum.checked_add(bands(matrix.rows)))?;
        let start = digests.checked_add(1)?.checked_mul(DIGEST)?.checked_add(head_bytes)?;
        let (mut end, mut digest) = (start as u64, 0);
        let (mut table, mut places) = (Vec::new(), HashMap::new());
        for matrix in matrices {
            let (count, band_bytes) = (bands(matrix.rows), matrix.layout.band_bytes(matrix.columns)?);
            let length = u64::try_from(count.checked_mul(band_bytes)?).ok()?;
            let offset = end.checked_next_multiple_of(ALIGNMENT)?;
            end = offset.checked_add(length)?;
            for text in [matrix.name, &layout_name(matrix.layout)] {
                table.extend((text.len() as u64).to_le_bytes());
                table.extend(text.as_bytes());
            }
            let numbers = [matrix.rows as u64, matrix.columns as u64, offset, length];
            table.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
            places.insert(matrix.name.to_owned(), Place { offset, band_bytes, digest });
            digest += count;
        }
        let versions = [FORMAT.to_le_bytes(), VERSION.to_le_bytes()].concat();
        let key = xxh3_128(
            &[MAGIC, &versions[..], &(identity.len() as u64).to_le_bytes(), identity, &table].concat(),
        );
        let sizes = [end.to_le_bytes(), (matrices.len() as u64).to_le_bytes()].concat();
        let head = [MAGIC, &versions[..], &key.to_le_bytes(), &sizes, &table].concat();
        debug_assert_eq!(head.len(), head_bytes);
        Some(Contents { key: PackKey(key), bytes: end, head, digests, places })
    }

    /// Whether the matrix of this name is among them.
    pub fn holds(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Bytes before the bands.
    fn start(&self) -> usize {
        self.head.len() + (self.digests + 1) * DIGEST
    }

    /// Where a band lies, and the index of its digest.
    fn band(&self, name: &str, band: usize) -> (u64, usize) {
        let place = &self.places[name];
        (place.offset + (band * place.band_bytes) as u64, place.digest + band)
    }
}

fn layout_name(layout: Layout) -> String {
    format!("{layout:?}")
}

/// Kept weights whose digests are known to be as they were written.
pub(crate) struct Kept<'a> {
    contents: &'a Contents,
    reader: Box<dyn PackReader>,
    digests: Vec<u64>,
}

impl<'a> Kept<'a> {
    /// Takes what a store has found.
    ///
    /// # Errors
    /// When it is anything but `contents`, whole and undamaged.
    pub fn open(contents: &'a Contents, reader: Box<dyn PackReader>) -> Result<Kept<'a>, Error> {
        let (found, needed) = (reader.length(), contents.bytes);
        if found != needed {
            return Err(Error::new(format!("the packed weights have {found} bytes instead of {needed}")));
        }
        let mut start = vec![0; contents.start()];
        reader.read(0, &mut start)?;
        let (body, check) = start.split_at(start.len() - DIGEST);
        let (head, digests) = body.split_at(contents.head.len());
        if head != contents.head {
            return Err(Error::new("the packed weights are of another model or of another version"));
        }
        if xxh3_64(body).to_le_bytes() != check {
            return Err(damaged("their table"));
        }
        let digests = digests.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        Ok(Kept { contents, reader, digests })
    }

    /// Reads a band and checks it.
    ///
    /// # Errors
    /// When it cannot be read, or is not what was written.
    pub fn read(&self, name: &str, band: usize, into: &mut [u8]) -> Result<(), Error> {
        let (offset, digest) = self.contents.band(name, band);
        self.reader.read(offset, into)?;
        if xxh3_64(into) == self.digests[digest] {
            Ok(())
        } else {
            Err(damaged(&format!("band {band} of '{name}'")))
        }
    }
}

fn damaged(part: &str) -> Error {
    Error::new(format!("the packed weights are damaged: {part} is not as its digest says"))
}

/// Weights that are written while they are packed.
pub(crate) struct Keeping<'a> {
    contents: &'a Contents,
    writer: Box<dyn PackWriter>,
    digests: Vec<AtomicU64>,
    /// Whether there is a failure, after which nothing more is written.
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl<'a> Keeping<'a> {
    pub fn new(contents: &'a Contents, writer: Box<dyn PackWriter>) -> Keeping<'a> {
        let digests = (0..contents.digests).map(|_| AtomicU64::new(0)).collect();
        Keeping { contents, writer, digests, failed: AtomicBool::new(false), failure: Mutex::new(None) }
    }

    /// Writes a packed band.
    pub fn write(&self, name: &str, band: usize, bytes: &[u8]) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let (offset, digest) = self.contents.band(name, band);
        // Who publishes has waited for all threads, so that no order is needed here.
        self.digests[digest].store(xxh3_64(bytes), Ordering::Relaxed);
        if let Err(error) = self.writer.write(offset, bytes) {
            self.failed.store(true, Ordering::Relaxed);
            *self.failure.lock().expect("nothing panics while it holds the lock") = Some(error);
        }
    }

    /// Keeps the weights, all bands of which were written.
    ///
    /// # Errors
    /// When any of them could not be, or they cannot be kept.
    pub fn publish(self) -> Result<(), Error> {
        if let Some(error) = self.failure.into_inner().expect("nothing panics while it holds the lock") {
            return Err(error);
        }
        let mut start = self.contents.head.clone();
        start.extend(self.digests.into_iter().flat_map(|digest| digest.into_inner().to_le_bytes()));
        start.extend(xxh3_64(&start).to_le_bytes());
        self.writer.write(0, &start)?;
        self.writer.publish()
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::DType;

    use super::*;
    use crate::pack::pack_band;

    /// Bands of known bytes, for each layout that is kept. Where a line differs,
    /// `kernels::packed::VERSION` must be raised, and then the line changed: else
    /// the next start would take weights of the former layout for its own.
    #[test]
    fn layouts_are_those_of_their_version() {
        let columns = 256;
        let digest = |dtype: DType| {
            let row = columns / dtype.tile().1 * dtype.block_bytes();
            let rows: Vec<u8> = (0..32 * row).map(|i| (i * 7 + i / 256 * 13) as u8).collect();
            let mut band = vec![0; Layout::of(dtype).band_bytes(columns).unwrap()];
            pack_band(dtype, columns, &rows, &mut band);
            format!("{dtype} {:016x}", xxh3_64(&band))
        };
        let kept = [DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::BF16, DType::F16, DType::F32];
        let lines: Vec<String> = kept.map(digest).into_iter().chain([format!("version {VERSION}")]).collect();
        assert_eq!(lines, LAYOUTS);
    }

    const LAYOUTS: [&str; 8] = [
        "q4_0 789443f975e8d8fe",
        "q8_0 02fabd8fa9ba7546",
        "q4_k 26aff82c9db98d90",
        "q6_k c8710e05f7d6a00f",
        "bf16 718b5deb726678a6",
        "f16 e8428cf25685d2c0",
        "f32 f1d5a0d479bdfb5c",
        "version 1",
    ];

    #[test]
    fn keys_differ_by_source_name_layout_and_shape() {
        let listed = |name, layout, rows, columns| Listed { name, layout, rows, columns };
        let key = |matrices: &[Listed<'_>], identity: &[u8]| Contents::of(matrices, identity).unwrap().key;
        let matrix = listed("a", Layout::Q4_0, 64, 32);
        let keys = [
            key(&[matrix], &[1; 32]),
            key(&[matrix], &[2; 32]),
            key(&[listed("b", Layout::Q4_0, 64, 32)], &[1; 32]),
            key(&[listed("a", Layout::Q8_0, 64, 32)], &[1; 32]),
            key(&[listed("a", Layout::Q4_0, 63, 32)], &[1; 32]),
            key(&[listed("a", Layout::Q4_0, 32, 64)], &[1; 32]),
            key(&[matrix, listed("b", Layout::Q4_0, 64, 32)], &[1; 32]),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "key {index}");
        }
    }

    #[test]
    fn what_cannot_be_counted_has_no_contents() {
        let listed = |rows, columns| Listed { name: "a", layout: Layout::F32, rows, columns };
        for (rows, columns) in
            [(usize::MAX, 1), (1, usize::MAX), (1 << 40, 1 << 40), (usize::MAX, usize::MAX)]
        {
            assert!(Contents::of(&[listed(rows, columns)], &[]).is_none(), "{rows} × {columns}");
        }
        assert!(Contents::of(&[], &[]).is_none());
    }
}
