//! Packed weights that outlive the process, so that the next start reads them
//! straight into place: what is kept, under which key, and how it is checked.
//! Where the bytes lie is the matter of a [`PackedStore`]; this crate knows of
//! files only that they can be mapped.
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
//! digests are XXH3; they tell damage, not forgery. Weights that are mapped are
//! used as they are: then only the table's digest is compared.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use girih_graph::Error;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::arrange::bands;
use crate::kernels::packed::{LAYOUT_VERSION, Layout};
use crate::memory::{Shared, Whole};
use crate::os::Mapping;

const MAGIC: &[u8; 8] = b"girihpak";

/// The version of the form that the module's documentation draws.
const FORMAT: u32 = 1;

/// What the bytes of a matrix begin at a multiple of: a page, so that they can
/// be mapped.
const ALIGNMENT: u64 = 4096;

/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

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

    /// Takes weights that were just packed, to have them written when it suits
    /// the store: at once, or in threads of its own while they are in use.
    fn keep(&self, weights: Unkept);

    /// Hears why something kept is not used.
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

    /// The file that holds nothing but these bytes, if there is one, to be mapped.
    fn file(&self) -> Option<&File> {
        None
    }
}

/// Room in a store, all zeros at first; threads share it.
pub trait PackWriter: Sync {
    /// Puts `bytes` at `offset`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error>;
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
#[derive(Clone, Debug)]
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
    bands: usize,
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
            places.insert(matrix.name.to_owned(), Place { offset, bands: count, band_bytes, digest });
            digest += count;
        }
        let versions = [FORMAT.to_le_bytes(), LAYOUT_VERSION.to_le_bytes()].concat();
        let key = xxh3_128(
            &[MAGIC, &versions[..], &(identity.len() as u64).to_le_bytes(), identity, &table].concat(),
        );
        let sizes = [end.to_le_bytes(), (matrices.len() as u64).to_le_bytes()].concat();
        let head = [MAGIC, &versions[..], &key.to_le_bytes(), &sizes, &table].concat();
        debug_assert_eq!(head.len(), head_bytes);
        Some(Contents { key: PackKey(key), bytes: end, head, digests, places })
    }

    /// Where the bands of a matrix lie, if it is among them.
    fn range(&self, name: &str) -> Option<Range<usize>> {
        let place = self.places.get(name)?;
        let start = usize::try_from(place.offset).ok()?;
        Some(start..start + place.bands * place.band_bytes)
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
    /// All bytes, if they are to be used where they lie.
    mapping: Option<Arc<Mapping>>,
}

impl<'a> Kept<'a> {
    /// Takes what a store has found; it is mapped if that is wished and can be.
    ///
    /// # Errors
    /// When it is anything but `contents`, whole and undamaged as far as it is
    /// looked at here.
    pub fn open(
        contents: &'a Contents,
        reader: Box<dyn PackReader>,
        residence: Residence,
    ) -> Result<Kept<'a>, Error> {
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
        let mapping = match (residence, reader.file()) {
            (Residence::File, Some(file)) => {
                let unmapped = |error| Error::new(format!("the packed weights cannot be mapped: {error}"));
                Some(Arc::new(Mapping::of(file, contents.bytes).map_err(unmapped)?))
            }
            _ => None,
        };
        Ok(Kept { contents, reader, digests, mapping })
    }

    /// A matrix where it lies in the mapped file.
    pub fn mapped(&self, name: &str) -> Option<Shared> {
        let range = self.contents.range(name)?;
        Some(Shared::part(Whole::File(self.mapping.clone()?), range))
    }

    /// Whether the matrix of this name is among them.
    pub fn holds(&self, name: &str) -> bool {
        self.contents.places.contains_key(name)
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

/// Where kept weights are while they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// Copied into memory, in huge pages, and each band compared with its digest.
    #[default]
    Memory,
    /// In the store's file, mapped, if it has one: nothing is copied or
    /// compared, pages are read when they are first needed, and processes share
    /// them.
    File,
}

/// Packed weights that are in use and not in a store yet.
#[derive(Debug)]
pub struct Unkept {
    contents: Contents,
    /// What is written at once: a part of a matrix.
    pieces: Vec<Piece>,
    digests: Vec<AtomicU64>,
    /// The first piece that nobody has begun.
    next: AtomicUsize,
    /// How many pieces are written.
    written: AtomicUsize,
}

#[derive(Debug)]
struct Piece {
    matrix: Shared,
    place: Place,
    bands: Range<usize>,
}

impl Unkept {
    /// The weights of `contents`, whose matrices `matrix` yields.
    pub(crate) fn new<'a>(contents: Contents, matrix: impl Fn(&str) -> &'a Shared) -> Unkept {
        let mut pieces = Vec::new();
        for (name, &place) in &contents.places {
            let step = (PIECE / place.band_bytes.max(1)).max(1);
            let firsts = (0..place.bands).step_by(step);
            pieces.extend(firsts.map(|first| Piece {
                matrix: matrix(name).clone(),
                place,
                bands: first..place.bands.min(first + step),
            }));
        }
        pieces.sort_by_key(|piece| piece.place.digest + piece.bands.start);
        let digests = (0..contents.digests).map(|_| AtomicU64::new(0)).collect();
        Unkept { contents, pieces, digests, next: AtomicUsize::new(0), written: AtomicUsize::new(0) }
    }

    /// What to keep them under.
    pub fn key(&self) -> PackKey {
        self.contents.key
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.contents.bytes
    }

    /// Writes piece after piece until none is left to begin. Any number of
    /// threads may do so at once; whether everything is written now is said to
    /// the one that was last, and only to that one.
    ///
    /// # Errors
    /// When a piece cannot be written; then nobody is told that everything is.
    pub fn write(&self, to: &dyn PackWriter) -> Result<bool, Error> {
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = self.write_piece(piece, to);
            if outcome.is_err() {
                self.next.store(self.pieces.len(), Ordering::Relaxed);
            }
            outcome?;
            // Who writes the last piece sees the digests of all others.
            if self.written.fetch_add(1, Ordering::AcqRel) + 1 == self.pieces.len() {
                self.write_start(to)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn write_piece(&self, piece: &Piece, to: &dyn PackWriter) -> Result<(), Error> {
        let Place { offset, band_bytes, digest, .. } = piece.place;
        let bytes = &piece.matrix[piece.bands.start * band_bytes..piece.bands.end * band_bytes];
        let digests = &self.digests[digest + piece.bands.start..];
        for (digest, band) in digests.iter().zip(bytes.chunks_exact(band_bytes.max(1))) {
            digest.store(xxh3_64(band), Ordering::Relaxed);
        }
        to.write(offset + (piece.bands.start * band_bytes) as u64, bytes)
    }

    /// Writes everything before the bands.
    fn write_start(&self, to: &dyn PackWriter) -> Result<(), Error> {
        let mut start = self.contents.head.clone();
        start.extend(self.digests.iter().flat_map(|digest| digest.load(Ordering::Relaxed).to_le_bytes()));
        start.extend(xxh3_64(&start).to_le_bytes());
        to.write(0, &start)
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::DType;

    use super::*;
    use crate::kernels::packed::BAND;
    use crate::pack::pack_band;

    /// Bands of known bytes, for each format that is packed. Where a line differs,
    /// `kernels::packed::LAYOUT_VERSION` must be raised, and then the line changed: else
    /// the next start would take weights of the former layout for its own.
    #[test]
    fn layouts_are_those_of_their_version() {
        let columns = 256;
        let digest = |dtype: DType| {
            let (tall, wide) = dtype.tile();
            let bytes = BAND / tall * columns / wide * dtype.block_bytes();
            let rows: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 256 * 13) as u8).collect();
            let mut band = vec![0; Layout::of(dtype).band_bytes(columns).unwrap()];
            pack_band(dtype, columns, &rows, &mut band);
            format!("{dtype} {:016x}", xxh3_64(&band))
        };
        let packed = |dtype: &&DType| !matches!(Layout::of(**dtype), Layout::Stored(_));
        let lines: Vec<String> = DType::ALL.iter().filter(packed).map(|&dtype| digest(dtype)).collect();
        let lines: Vec<String> = lines.into_iter().chain([format!("version {LAYOUT_VERSION}")]).collect();
        assert_eq!(lines, LAYOUTS);
    }

    const LAYOUTS: [&str; 18] = [
        "f32 f1d5a0d479bdfb5c",
        "f16 e8428cf25685d2c0",
        "bf16 718b5deb726678a6",
        "q4_0 789443f975e8d8fe",
        "q4_1 f63578a86411825c",
        "q5_0 e93aafa35598a9f3",
        "q5_1 e6e49e8f4803e27b",
        "q8_0 02fabd8fa9ba7546",
        "q2_k 0e6098dd08c71209",
        "q3_k 9348e0707cc7c1dd",
        "q4_k 26aff82c9db98d90",
        "q5_k 572986adcaff1a2d",
        "q6_k c8710e05f7d6a00f",
        "iq4_nl 789443f975e8d8fe",
        "iq4_xs f062c2c0cbde96d0",
        "mxfp4 97d9930772b1466a",
        "q4nx f6fdb27109e5858a",
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
