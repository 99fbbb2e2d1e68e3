//! Packed weights that are cached between runs of the program: their format, their key, and their checks.
//! A [`Store`](girih_graph::store::Store) decides where the bytes are; this crate only maps files.
//!
//! ```text
//! PACK_MAGIC 8 | PACK_FORMAT u32 | LAYOUT_VERSION u32 | key 16 | matrices u64
//! for each matrix: name | layout | rows u64 | columns u64 | zeros u64
//! for each band of a matrix that may leave out units: a bit for each unit that it has, in words of u64
//! for each matrix: the index of the first one with the same bands u64, which is its own if there is none
//! a digest of each band u64 (0 in a matrix with the bands of an earlier one) | a digest of everything so far u64
//! the bands of each matrix that is the first with these, from a multiple of 4096 on
//! ```
//! Numbers are little-endian; texts are preceded by their length. A reader gets the matrices from its
//! graph, so it does not parse what precedes the bits: it compares these bytes with the expected ones. The
//! bits and indexes then say how long each band is, and so the whole file. The digests are XXH3; they detect damage, not forgery. Of mapped weights, only
//! the digest of the table is checked; the digests of their bands are not.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use girih_graph::Error;
use girih_graph::store::{StoreWriter, StoredItem, UnsavedItem};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::equal_weights::first_shared;
use crate::kernels::packed::{LAYOUT_VERSION, Layout, bands};
use crate::memory::{BytesOwner, SharedBytes};
use crate::os::{MappedFile, map_kept};
use crate::present::{BandPlaces, FilledWeight, PresentUnits, UnitGrid, Zeros};

const PACK_MAGIC: &[u8; 8] = b"girihpak";

/// The version of the format in the module's documentation.
const PACK_FORMAT: u32 = 3;

/// The alignment of a matrix: a page, so that it can be mapped.
const PACK_ALIGNMENT: u64 = 4096;

/// Bytes in a piece, the unit of writing.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes of a digest.
const DIGEST_BYTES: usize = size_of::<u64>();

/// The name of packed weights; equal keys mean equal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PackKey(u128);

impl fmt::Display for PackKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A matrix to be cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedMatrix<'a> {
    pub name: &'a str,
    pub layout: Layout,
    pub rows: usize,
    pub columns: usize,
    /// The units that it may leave out.
    pub grid: Option<UnitGrid>,
}

/// The matrices of packed weights.
#[derive(Clone, Debug)]
pub(crate) struct PackContents {
    pub key: PackKey,
    /// Everything before the bits.
    head: Vec<u8>,
    /// The words of bits, and the digests.
    mask_words: usize,
    digests: usize,
    matrices: Vec<ListedPlace>,
}

/// A matrix of the contents.
#[derive(Clone, Debug)]
struct ListedPlace {
    name: String,
    bands: usize,
    /// The bytes of a band with all its units.
    band_bytes: usize,
    grid: Option<UnitGrid>,
}

impl ListedPlace {
    fn mask_words(&self) -> usize {
        self.grid.map_or(0, |grid| grid.bands * grid.mask_words())
    }
}

/// Where the matrices of packed weights lie, now that their units are known.
#[derive(Clone, Debug)]
struct PackPlaces {
    /// The total number of bytes.
    bytes: u64,
    matrices: HashMap<String, MatrixOffset>,
}

/// The offset of a matrix and its bands.
#[derive(Clone, Debug)]
struct MatrixOffset {
    /// The index of the first matrix with these bands.
    first: usize,
    offset: u64,
    bands: usize,
    places: BandPlaces,
    /// The index of its first digest.
    digest: usize,
}

impl MatrixOffset {
    /// The range of some bands in the file.
    fn range(&self, bands: Range<usize>) -> Range<u64> {
        let own = self.places.bytes(bands);
        self.offset + own.start as u64..self.offset + own.end as u64
    }

    /// The same as indexes.
    fn indexes(&self, bands: Range<usize>) -> Option<Range<usize>> {
        let range = self.range(bands);
        Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    }
}

impl PackContents {
    /// The contents for `matrices` of the source with this `identity`; `None` if there are no matrices or
    /// their size overflows.
    pub fn of(matrices: &[ListedMatrix<'_>], identity: &[u8]) -> Option<PackContents> {
        if matrices.is_empty() {
            return None;
        }
        let (mut table, mut listed, mut digests, mut mask_words) = (Vec::new(), Vec::new(), 0usize, 0usize);
        for matrix in matrices {
            let (count, band_bytes) = (bands(matrix.rows), matrix.layout.band_bytes(matrix.columns)?);
            for text in [matrix.name, &layout_name(matrix.layout)] {
                table.extend((text.len() as u64).to_le_bytes());
                table.extend(text.as_bytes());
            }
            let zeros = match matrix.grid.map(|grid| grid.zeros) {
                None => 0,
                Some(Zeros::Any) => 1,
                Some(Zeros::Positive) => 2,
            };
            let numbers = [matrix.rows as u64, matrix.columns as u64, zeros];
            table.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
            let place =
                ListedPlace { name: matrix.name.to_owned(), bands: count, band_bytes, grid: matrix.grid };
            (digests, mask_words) =
                (digests.checked_add(count)?, mask_words.checked_add(place.mask_words())?);
            listed.push(place);
        }
        let versions = [PACK_FORMAT.to_le_bytes(), LAYOUT_VERSION.to_le_bytes()].concat();
        let key = xxh3_128(
            &[PACK_MAGIC, &versions[..], &(identity.len() as u64).to_le_bytes(), identity, &table].concat(),
        );
        let count = (matrices.len() as u64).to_le_bytes();
        let head = [PACK_MAGIC, &versions[..], &key.to_le_bytes(), &count, &table].concat();
        let contents = PackContents { key: PackKey(key), head, mask_words, digests, matrices: listed };
        // Units that are left out make it shorter.
        contents.whole_size().map(|_| contents)
    }

    /// The bytes with all units, unless they overflow.
    fn whole_size(&self) -> Option<u64> {
        let words = self.mask_words.checked_add(self.matrices.len())?;
        let words = words.checked_add(self.digests)?.checked_add(1)?;
        let start = words.checked_mul(DIGEST_BYTES)?.checked_add(self.head.len())?;
        self.matrices.iter().try_fold(start as u64, |end, matrix| {
            let length = u64::try_from(matrix.bands.checked_mul(matrix.band_bytes)?).ok()?;
            end.checked_next_multiple_of(PACK_ALIGNMENT)?.checked_add(length)
        })
    }

    /// The places of all matrices, if `places` has those of their bands and `first` the first matrix with the same ones;
    /// `None` if that is another index than of a first one, or its bands lie otherwise.
    fn place(&self, first: &[u64], mut places: impl FnMut(&ListedPlace) -> BandPlaces) -> Option<PackPlaces> {
        let (mut end, mut digest) = (self.start() as u64, 0);
        let mut placed: Vec<MatrixOffset> = Vec::new();
        for (index, (listed, first)) in self.matrices.iter().zip(first).enumerate() {
            let (places, first) = (places(listed), usize::try_from(*first).ok()?);
            let own = match placed.get(first) {
                Some(same) => {
                    let is_same = same.first == first && same.bands == listed.bands && same.places == places;
                    is_same.then(|| same.clone())?
                }
                None if first == index => {
                    let offset = end.next_multiple_of(PACK_ALIGNMENT);
                    let own = MatrixOffset { first, offset, bands: listed.bands, places, digest };
                    end = own.range(0..listed.bands).end;
                    own
                }
                None => return None,
            };
            digest += listed.bands;
            placed.push(own);
        }
        let names = self.matrices.iter().map(|listed| listed.name.clone());
        Some(PackPlaces { bytes: end, matrices: names.zip(placed).collect() })
    }

    /// The places in a file that begins with `start`, by its bits and indexes.
    fn place_by_start(&self, start: &[u8]) -> Option<PackPlaces> {
        let words = &start[self.head.len()..][..(self.mask_words + self.matrices.len()) * DIGEST_BYTES];
        let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (bits, first) = words.split_at(self.mask_words);
        let mut bits = bits.iter().copied();
        self.place(first, |listed| {
            let masks: Vec<u64> = bits.by_ref().take(listed.mask_words()).collect();
            let present = listed.grid.and_then(|grid| PresentUnits::of_masks(grid, &masks));
            present.map_or(BandPlaces::Equal(listed.band_bytes), BandPlaces::Present)
        })
    }

    /// The number of bytes before the digests.
    fn digests_start(&self) -> usize {
        self.head.len() + (self.mask_words + self.matrices.len()) * DIGEST_BYTES
    }

    /// The number of bytes before the bands.
    fn start(&self) -> usize {
        self.digests_start() + (self.digests + 1) * DIGEST_BYTES
    }

    /// Makes the digests in a file match its bytes, with or without those of its bands, as someone could who forges a
    /// file.
    pub fn renew_digests(&self, file: &mut [u8], with_bands: bool) {
        let places = self.place_by_start(file);
        let matrices = places.iter().flat_map(|places| places.matrices.values()).filter(|_| with_bands);
        for (matrix, band) in matrices.flat_map(|matrix| (0..matrix.bands).map(move |band| (matrix, band))) {
            let range = matrix.indexes(band..band + 1);
            let Some(found) = range.and_then(|range| file.get(range)).map(xxh3_64) else { continue };
            let at = self.digests_start() + (matrix.digest + band) * DIGEST_BYTES;
            file[at..][..DIGEST_BYTES].copy_from_slice(&found.to_le_bytes());
        }
        let (body, rest) = file.split_at_mut(self.start() - DIGEST_BYTES);
        rest[..DIGEST_BYTES].copy_from_slice(&xxh3_64(body).to_le_bytes());
    }
}

fn layout_name(layout: Layout) -> String {
    format!("{layout:?}")
}

/// Cached weights whose table of digests has been checked.
pub(crate) struct KeptPack<'a> {
    places: PackPlaces,
    reader: &'a dyn StoredItem,
    digests: Vec<u64>,
    /// All bytes, if they are used in the mapped file.
    mapping: Option<Arc<MappedFile>>,
}

impl<'a> KeptPack<'a> {
    /// Opens what a store has found, and maps it if `residence` asks for it and there is a file.
    ///
    /// # Errors
    /// If the length, the head or the table of digests is not that of `contents`.
    pub fn open(
        contents: &PackContents,
        reader: &'a dyn StoredItem,
        residence: Residence,
    ) -> Result<KeptPack<'a>, Error> {
        let found = reader.length();
        let check_length = |needed: u64, fits: bool| match fits {
            true => Ok(()),
            false => Err(Error::new(format!("the packed weights have {found} bytes instead of {needed}"))),
        };
        check_length(contents.start() as u64, found >= contents.start() as u64)?;
        let mut start = vec![0; contents.start()];
        reader.read(0, &mut start)?;
        let (body, check) = start.split_at(start.len() - DIGEST_BYTES);
        if !body.starts_with(&contents.head) {
            return Err(Error::new("the packed weights belong to another model or version"));
        }
        if xxh3_64(body).to_le_bytes() != check {
            return Err(damaged("their table"));
        }
        let places = contents.place_by_start(body).ok_or_else(|| {
            Error::new(
                "the packed weights are damaged: a matrix is said to have the bands of one that differs",
            )
        })?;
        check_length(places.bytes, found == places.bytes)?;
        let digests = body[contents.digests_start()..]
            .as_chunks()
            .0
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect();
        let mapping = match (residence, reader.file()) {
            (Residence::File, Some(file)) => {
                let unmapped = |error| Error::new(format!("cannot map the packed weights: {error}"));
                Some(Arc::new(map_kept(file, places.bytes).map_err(unmapped)?))
            }
            _ => None,
        };
        Ok(KeptPack { places, reader, digests, mapping })
    }

    /// A matrix in the mapped file.
    pub fn mapped(&self, name: &str) -> Option<FilledWeight> {
        let matrix = self.places.matrices.get(name)?;
        let range = matrix.indexes(0..matrix.bands)?;
        let bytes = SharedBytes::part(BytesOwner::File(self.mapping.clone()?), range);
        Some(FilledWeight { bytes, places: matrix.places.clone() })
    }

    /// The places of the bands of a matrix.
    pub fn places(&self, name: &str) -> Option<BandPlaces> {
        self.places.matrices.get(name).map(|matrix| matrix.places.clone())
    }

    /// Whether it contains the matrix of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.places.matrices.contains_key(name)
    }

    /// Reads a band and checks its digest.
    ///
    /// # Errors
    /// If it cannot be read, or is not what was written.
    pub fn read(&self, name: &str, band: usize, into: &mut [u8]) -> Result<(), Error> {
        let matrix = &self.places.matrices[name];
        self.reader.read(matrix.range(band..band + 1).start, into)?;
        if xxh3_64(into) == self.digests[matrix.digest + band] {
            Ok(())
        } else {
            Err(damaged(&format!("band {band} of '{name}'")))
        }
    }
}

fn damaged(part: &str) -> Error {
    Error::new(format!("the packed weights are damaged: {part} does not match its digest"))
}

/// Where cached weights reside while they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// Copied into memory, in huge pages; the digest of each band is checked.
    #[default]
    Memory,
    /// In the store's file, memory-mapped if it has one. Nothing is copied or checked, pages are read
    /// when they are first used, and processes share them.
    File,
}

/// Packed weights that are in use and not yet in a store.
#[derive(Debug)]
pub(crate) struct UnsavedPack {
    contents: PackContents,
    /// The total number of bytes.
    bytes: u64,
    /// The bits of all bands, and for each matrix the index of the first one with the same.
    words: Vec<u64>,
    /// The units of writing: parts of matrices.
    pieces: Vec<WritePiece>,
    digests: Vec<AtomicU64>,
    /// The first piece that no thread has begun.
    next: AtomicUsize,
    /// The number of pieces that are written.
    written: AtomicUsize,
    is_awaited: bool,
}

#[derive(Debug)]
struct WritePiece {
    matrix: SharedBytes,
    offset: MatrixOffset,
    bands: Range<usize>,
}

impl UnsavedPack {
    /// The weights of `contents`; `matrix` returns the bands of each matrix. A store waits for them if `is_awaited` is set.
    pub fn new<'a>(
        contents: PackContents,
        matrix: impl Fn(&str) -> &'a FilledWeight,
        is_awaited: bool,
    ) -> UnsavedPack {
        let mut masks = Vec::with_capacity(contents.mask_words);
        for listed in &contents.matrices {
            match &matrix(&listed.name).places {
                BandPlaces::Present(present) => masks.extend(present.masks()),
                BandPlaces::Equal(_) => masks.resize(masks.len() + listed.mask_words(), u64::MAX),
            }
        }
        let bytes = contents.matrices.iter().map(|listed| &*matrix(&listed.name).bytes);
        let first = first_shared(&bytes.collect::<Vec<&[u8]>>());
        let first: Vec<u64> = first.into_iter().map(|index| index as u64).collect();
        let places = contents.place(&first, |listed| matrix(&listed.name).places.clone());
        let places = places.expect("weights that share bytes have them at the same places");
        let mut pieces = Vec::new();
        let written = contents.matrices.iter().zip(0..).filter(|(_, index)| first[*index] == *index as u64);
        for (ListedPlace { name, .. }, _) in written {
            let placed = &places.matrices[name];
            let bytes = &matrix(name).bytes;
            let step = (PIECE_BYTES * placed.bands / bytes.len().max(1)).max(1);
            let firsts = (0..placed.bands).step_by(step);
            pieces.extend(firsts.map(|first| WritePiece {
                matrix: bytes.clone(),
                offset: placed.clone(),
                bands: first..placed.bands.min(first + step),
            }));
        }
        pieces.sort_by_key(|piece| piece.offset.digest + piece.bands.start);
        let digests = (0..contents.digests).map(|_| AtomicU64::new(0)).collect();
        let (next, written) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let words = [masks, first].concat();
        UnsavedPack { contents, bytes: places.bytes, words, pieces, digests, next, written, is_awaited }
    }

    fn write_piece(&self, piece: &WritePiece, to: &dyn StoreWriter) -> Result<(), Error> {
        let WritePiece { matrix, offset, bands } = piece;
        let digests = &self.digests[offset.digest + bands.start..];
        for (digest, band) in digests.iter().zip(bands.clone()) {
            digest.store(xxh3_64(&matrix[offset.places.bytes(band..band + 1)]), Ordering::Relaxed);
        }
        let bytes = &matrix[offset.places.bytes(bands.clone())];
        to.write(offset.range(bands.clone()).start, bytes)
    }

    /// Writes everything before the bands.
    fn write_start(&self, to: &dyn StoreWriter) -> Result<(), Error> {
        let mut start = self.contents.head.clone();
        start.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
        start.extend(self.digests.iter().flat_map(|digest| digest.load(Ordering::Relaxed).to_le_bytes()));
        start.extend(xxh3_64(&start).to_le_bytes());
        to.write(0, &start)
    }
}

impl UnsavedItem for UnsavedPack {
    fn key(&self) -> String {
        self.contents.key.to_string()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    fn write(&self, to: &dyn StoreWriter) -> Result<bool, Error> {
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = self.write_piece(piece, to);
            if outcome.is_err() {
                self.next.store(self.pieces.len(), Ordering::Relaxed);
            }
            outcome?;
            // The thread that completes the last piece sees the digests of all others.
            if self.written.fetch_add(1, Ordering::AcqRel) + 1 == self.pieces.len() {
                self.write_start(to)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::DType;

    use super::*;
    use crate::kernels::packed::BAND;
    use crate::pack::pack_band;

    /// The digests of known bands in each format that is packed. If a line changes, `kernels::packed::LAYOUT_VERSION`
    /// must be raised before the line is updated: otherwise the next start would read weights of the old
    /// layout. The line of Q4NX also depends on the order of bytes in files: those of girih's former order are refused.
    #[test]
    fn layouts_match_their_version() {
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
        assert_eq!(lines, LAYOUT_DIGESTS);
    }

    const LAYOUT_DIGESTS: [&str; 18] = [
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
        "q4nx 7b804f38c4994088",
        "version 1",
    ];

    #[test]
    fn keys_differ_by_source_name_layout_and_shape() {
        let listed = |name, layout, rows, columns| ListedMatrix { name, layout, rows, columns, grid: None };
        let key = |matrices: &[ListedMatrix<'_>], identity: &[u8]| {
            PackContents::of(matrices, identity).unwrap().key
        };
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
    fn sizes_that_overflow_have_no_contents() {
        let listed =
            |rows, columns| ListedMatrix { name: "a", layout: Layout::F32, rows, columns, grid: None };
        for (rows, columns) in
            [(usize::MAX, 1), (1, usize::MAX), (1 << 40, 1 << 40), (usize::MAX, usize::MAX)]
        {
            assert!(PackContents::of(&[listed(rows, columns)], &[]).is_none(), "{rows} × {columns}");
        }
        assert!(PackContents::of(&[], &[]).is_none());
    }
}
