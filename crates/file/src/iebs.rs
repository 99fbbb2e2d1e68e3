//! Block-sparse matrices of f32 in files that begin with `IEBS`, of IE-Core's inference-engine.
//!
//! The bytes of a file, little-endian and without gaps: `IEBS`, the version 1, rows, columns, rows and columns of a block,
//! the number of stored blocks (n), four zeros, then `row_ptr` with an entry more than there are rows of blocks, `col_idx`
//! with n entries, and the values of each block, row by row; numbers have 32 bits. Blocks at the lower and the right edge
//! reach beyond the matrix.

use std::ops::Range;
use std::path::Path;

use girih_tensor::{Error, ErrorKind};

use crate::outside::read_small;
use crate::source::ReadAt;
use crate::sparse_blocks::check_pattern;

/// The first bytes of a file.
const MAGIC: &[u8; 4] = b"IEBS";

/// The version of the file.
const VERSION: u32 = 1;

/// The length of what comes before `row_ptr`.
pub(crate) const HEADER_BYTES: usize = 44;

/// The maximum length of a file.
const MAX_BYTES: u64 = 16 << 30;

/// Why a matrix is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseFault {
    /// The file cannot be opened.
    Open,
    /// The file cannot be read, or is shorter or longer than its header says.
    Read,
    /// The file has another beginning or version.
    Magic,
    /// The numbers of the matrix contradict each other.
    Format,
    /// Memory does not suffice.
    Memory,
}

/// Why a matrix is refused, with a sentence.
#[derive(Debug)]
pub struct SparseError {
    /// The kind.
    pub kind: SparseFault,
    /// The sentence.
    pub sentence: String,
}

impl SparseError {
    /// An error of a kind with a sentence.
    pub fn new(kind: SparseFault, sentence: impl Into<String>) -> SparseError {
        SparseError { kind, sentence: sentence.into() }
    }
}

type Result<T> = std::result::Result<T, SparseError>;

/// The shape of a matrix and of its blocks; only `blocks` may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseShape {
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub cols: u32,
    /// Rows of a block.
    pub block_rows: u32,
    /// Columns of a block.
    pub block_cols: u32,
    /// The number of stored blocks.
    pub blocks: u32,
}

impl SparseShape {
    /// The number of rows of blocks.
    pub fn block_row_count(&self) -> u32 {
        self.rows.div_ceil(self.block_rows)
    }

    /// The number of columns of blocks.
    pub fn block_col_count(&self) -> u32 {
        self.cols.div_ceil(self.block_cols)
    }

    /// Checks that no size is 0 and that there are no more blocks than places.
    ///
    /// # Errors
    /// When one is, or there are.
    pub fn check(&self) -> Result<()> {
        let SparseShape { rows, cols, block_rows, block_cols, blocks } = *self;
        if [rows, cols, block_rows, block_cols].contains(&0) {
            let sentence =
                format!("a matrix of {rows}x{cols} in blocks of {block_rows}x{block_cols} has a size of 0");
            return Err(SparseError::new(SparseFault::Format, sentence));
        }
        let places = u64::from(self.block_row_count()) * u64::from(self.block_col_count());
        if u64::from(blocks) > places {
            let sentence = format!("the matrix stores {blocks} blocks and has {places} places for them");
            return Err(SparseError::new(SparseFault::Format, sentence));
        }
        Ok(())
    }

    /// The number of entries of `row_ptr`; `None` if it exceeds memory.
    pub fn row_ptr_len(&self) -> Option<usize> {
        usize::try_from(self.block_row_count()).ok()?.checked_add(1)
    }

    /// The number of values; `None` if it exceeds memory.
    pub fn value_count(&self) -> Option<usize> {
        let size =
            usize::try_from(self.block_rows).ok()?.checked_mul(usize::try_from(self.block_cols).ok()?)?;
        size.checked_mul(usize::try_from(self.blocks).ok()?)
    }

    /// Checks that rows of blocks follow each other, and that the columns of each ascend.
    ///
    /// # Errors
    /// When they do not.
    pub fn check_pattern(&self, row_ptr: &[u32], col_idx: &[u32]) -> Result<()> {
        let across = self.block_col_count() as usize;
        check_pattern(row_ptr, col_idx, across)
            .map_err(|error| SparseError::new(SparseFault::Format, format!("the matrix {error}")))
    }

    /// The header of a file.
    pub(crate) fn header(&self) -> Vec<u8> {
        let SparseShape { rows, cols, block_rows, block_cols, blocks } = *self;
        let numbers = [VERSION, rows, cols, block_rows, block_cols, blocks, 0, 0, 0, 0];
        [&MAGIC[..], &numbers.map(u32::to_le_bytes).concat()].concat()
    }

    /// The shape of a file that is read in parts, and where its list of blocks and its values end.
    ///
    /// # Errors
    /// When the header is wrong, or the file has another length than it says.
    pub(crate) fn of_file(source: &dyn ReadAt) -> girih_tensor::Result<(SparseShape, [u64; 2])> {
        let mut header = vec![0; source.length().min(HEADER_BYTES as u64) as usize];
        source.read_at(0, &mut header)?;
        let found = SparseShape::of_header(&header, source.length());
        let (shape, [_, list, values]) = found.map_err(|error| Error::new(error.sentence))?;
        Ok((shape, [list, values]))
    }

    /// The shape that a file's header states, if the file has this length.
    fn of_header(header: &[u8], length: u64) -> Result<(SparseShape, [u64; 3])> {
        let is_short = || SparseError::new(SparseFault::Read, "the file ends within its header");
        let header = header.get(..HEADER_BYTES).ok_or_else(is_short)?;
        let number = |index: usize| {
            let bytes = &header[4 * index..][..4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        if !header.starts_with(MAGIC) {
            return Err(SparseError::new(SparseFault::Magic, "the file does not begin with IEBS"));
        }
        if number(1) != VERSION {
            let sentence = format!("the file has version {}; only {VERSION} is known", number(1));
            return Err(SparseError::new(SparseFault::Magic, sentence));
        }
        if (7..11).any(|index| number(index) != 0) {
            return Err(SparseError::new(
                SparseFault::Format,
                "the reserved numbers of the header are not 0",
            ));
        }
        let [rows, cols, block_rows, block_cols, blocks] = [2, 3, 4, 5, 6].map(number);
        let shape = SparseShape { rows, cols, block_rows, block_cols, blocks };
        shape.check()?;
        match shape.ends().filter(|ends| ends[2] == length) {
            Some(ends) => Ok((shape, ends)),
            None => {
                let sentence = format!("the file has {length} bytes, and its header asks for others");
                Err(SparseError::new(SparseFault::Read, sentence))
            }
        }
    }

    /// Where the three arrays of a file end; `None` if that exceeds 64 bits.
    fn ends(&self) -> Option<[u64; 3]> {
        let size = u64::from(self.block_rows).checked_mul(u64::from(self.block_cols))?;
        let blocks = u64::from(self.blocks);
        let counts = [u64::from(self.block_row_count()) + 1, blocks, size.checked_mul(blocks)?];
        let mut end = HEADER_BYTES as u64;
        let mut ends = [0; 3];
        for (place, count) in ends.iter_mut().zip(counts) {
            end = end.checked_add(count.checked_mul(4)?)?;
            *place = end;
        }
        Some(ends)
    }
}

/// A matrix of a file, in bytes that were checked.
#[derive(Debug)]
pub struct SparseFile {
    bytes: Vec<u8>,
    shape: SparseShape,
    row_ptr: Range<usize>,
    col_idx: Range<usize>,
    values: Range<usize>,
}

impl SparseFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no such file.
    pub fn read(path: &Path) -> Result<SparseFile> {
        let bytes = read_small(path, MAX_BYTES).map_err(|error| {
            let kind = match error.kind() {
                ErrorKind::NotFound => SparseFault::Open,
                ErrorKind::OutOfMemory => SparseFault::Memory,
                _ => SparseFault::Read,
            };
            SparseError::new(kind, error.to_string())
        })?;
        let named = |error: SparseError| SparseError {
            sentence: format!("{}: {}", path.display(), error.sentence),
            ..error
        };
        SparseFile::parse(bytes).map_err(named)
    }

    /// The matrix of a file's bytes. What its arrays say is checked by
    /// [`SparseShape::check_pattern`].
    ///
    /// # Errors
    /// When the header is wrong, or the bytes are fewer or more than it says.
    pub fn parse(bytes: Vec<u8>) -> Result<SparseFile> {
        let (shape, ends) = SparseShape::of_header(&bytes, bytes.len() as u64)?;
        let [first, second, third] = ends.map(|end| end as usize); // within the bytes
        Ok(SparseFile {
            bytes,
            shape,
            row_ptr: HEADER_BYTES..first,
            col_idx: first..second,
            values: second..third,
        })
    }

    /// Its shape.
    pub fn shape(&self) -> SparseShape {
        self.shape
    }

    /// `row_ptr`.
    pub fn row_ptr(&self) -> impl Iterator<Item = u32> {
        self.words(&self.row_ptr).map(u32::from_le_bytes)
    }

    /// `col_idx`.
    pub fn col_idx(&self) -> impl Iterator<Item = u32> {
        self.words(&self.col_idx).map(u32::from_le_bytes)
    }

    /// The values of the blocks.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        self.words(&self.values).map(f32::from_le_bytes)
    }

    fn words(&self, range: &Range<usize>) -> impl Iterator<Item = [u8; 4]> {
        self.bytes[range.clone()].chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 rows and 5 columns in blocks of 2×2: blocks at (0, 0), (0, 2) and (1, 1), those at the edges reach beyond.
    fn file() -> Vec<u8> {
        let numbers = [1, 3, 5, 2, 2, 3, 0, 0, 0, 0, 0, 2, 3, 0, 2, 1];
        let values: [f32; 12] = [1.0, 2.0, 0.0, 3.0, 4.0, 9.0, 5.0, 9.0, 6.0, 7.0, 9.0, 9.0];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(numbers.iter().flat_map(|number: &u32| number.to_le_bytes()));
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    fn check(bytes: Vec<u8>) -> Result<()> {
        let file = SparseFile::parse(bytes)?;
        let (row_ptr, col_idx): (Vec<u32>, Vec<u32>) = (file.row_ptr().collect(), file.col_idx().collect());
        file.shape().check_pattern(&row_ptr, &col_idx)
    }

    #[test]
    fn a_wrong_file_is_refused() {
        let with = |at: usize, number: u32| {
            let mut bytes = file();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            bytes
        };
        check(file()).unwrap();
        for (bytes, kind) in [
            (file()[..43].to_vec(), SparseFault::Read),
            (file()[..100].to_vec(), SparseFault::Read),
            ([file(), vec![0]].concat(), SparseFault::Read),
            (with(0, 0), SparseFault::Magic),
            (with(4, 2), SparseFault::Magic),
            (with(8, 0), SparseFault::Format),
            (with(8, u32::MAX), SparseFault::Read),
            (with(16, 0), SparseFault::Format),
            (with(20, u32::MAX), SparseFault::Format),
            (with(24, 7), SparseFault::Format),
            (with(28, 1), SparseFault::Format),
            (with(44, 1), SparseFault::Format),
            (with(48, 4), SparseFault::Format),
            (with(52, 2), SparseFault::Format),
            (with(56, 2), SparseFault::Format),
            (with(60, 3), SparseFault::Format),
        ] {
            let shown = bytes.get(..64.min(bytes.len())).map(<[u8]>::to_vec);
            assert_eq!(check(bytes).unwrap_err().kind, kind, "{shown:?}");
        }
        let missing = SparseFile::read(Path::new("no/such.iebs")).unwrap_err();
        assert_eq!(missing.kind, SparseFault::Open);
    }
}
