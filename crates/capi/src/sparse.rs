//! Block-sparse matrices of f32 (BSR): the file that begins with `IEBS`, the checks of a matrix, and its product with a
//! vector.
//!
//! The bytes of a file, little-endian and without gaps: `IEBS`, the version 1, rows, columns, rows and columns of a block,
//! the number of stored blocks (n), four zeros, then `row_ptr` with an entry more than there are rows of blocks, `col_idx`
//! with n entries, and the values of each block, row by row; numbers have 32 bits. Blocks at the lower and the right edge
//! reach beyond the matrix.

use std::ops::Range;
use std::path::Path;

use girih::ErrorKind;
use girih::tools::read_small;

use crate::status::Fault;

/// The first bytes of a file.
const MAGIC: &[u8; 4] = b"IEBS";

/// The version of the file.
const VERSION: u32 = 1;

/// The length of what comes before `row_ptr`.
const HEADER_BYTES: usize = 44;

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

impl From<SparseError> for Fault {
    fn from(error: SparseError) -> Fault {
        Fault::argument(error.sentence)
    }
}

type Result<T> = std::result::Result<T, SparseError>;

/// The shape of a matrix and of its blocks; no number is 0.
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
}

/// A matrix whose parts lie elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct SparseView<'a> {
    /// Its shape.
    pub shape: SparseShape,
    /// Where the blocks of each row of blocks begin, and the end.
    pub row_ptr: &'a [u32],
    /// The column of each block.
    pub col_idx: &'a [u32],
    /// The values of each block, row by row.
    pub values: &'a [f32],
}

impl SparseView<'_> {
    /// Checks that the parts belong together: rows of blocks follow each other, and columns ascend.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self) -> Result<()> {
        self.shape.check()?;
        let fault = |sentence: String| Err(SparseError::new(SparseFault::Format, sentence));
        let count = self.col_idx.len();
        let lengths = (Some(self.row_ptr.len()), Some(self.values.len()), u32::try_from(count));
        if lengths != (self.shape.row_ptr_len(), self.shape.value_count(), Ok(self.shape.blocks)) {
            return fault("the arrays of the matrix have other lengths than its shape says".to_owned());
        }
        let (first, last) = (self.row_ptr.first(), self.row_ptr.last());
        if (first, last) != (Some(&0), Some(&self.shape.blocks)) || !self.row_ptr.is_sorted() {
            return fault(format!("row_ptr does not ascend from 0 to the {count} blocks"));
        }
        for row in 0..self.row_ptr.len() - 1 {
            let columns = &self.col_idx[self.blocks_of(row)];
            let is_last_known = columns.last().is_none_or(|last| *last < self.shape.block_col_count());
            if !is_last_known || !columns.is_sorted_by(|a, b| a < b) {
                let limit = self.shape.block_col_count();
                return fault(format!("col_idx of block row {row} does not ascend below {limit}"));
            }
        }
        Ok(())
    }

    /// The blocks of a row of blocks.
    fn blocks_of(&self, row: usize) -> Range<usize> {
        self.row_ptr[row] as usize..self.row_ptr[row + 1] as usize
    }

    /// `y = W x + bias` of a checked matrix. Each sum begins with the bias, or 0, and adds the products in the order of
    /// the columns. `x` has a value for each column, `y` and `bias` one for each row.
    pub fn multiply(&self, x: &[f32], y: &mut [f32], bias: Option<&[f32]>) {
        let (height, width) = (self.shape.block_rows as usize, self.shape.block_cols as usize);
        for (row, y) in y.iter_mut().enumerate() {
            let mut sum = bias.map_or(0.0, |bias| bias[row]);
            for block in self.blocks_of(row / height) {
                let begin = self.col_idx[block] as usize * width;
                let values = &self.values[(block * height + row % height) * width..][..width];
                // The block may reach beyond the last column.
                sum = values.iter().zip(&x[begin..]).fold(sum, |sum, (value, x)| sum + value * x);
            }
            *y = sum;
        }
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

    /// The matrix of a file's bytes. What its arrays say is checked by [`SparseView::check`].
    ///
    /// # Errors
    /// When the header is wrong, or the bytes are fewer or more than it says.
    pub fn parse(bytes: Vec<u8>) -> Result<SparseFile> {
        let is_short = || SparseError::new(SparseFault::Read, "the file ends within its header");
        let header = bytes.get(..HEADER_BYTES).ok_or_else(is_short)?;
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
        let ends = ends_of(&shape).filter(|ends| ends[2] == bytes.len());
        let Some([first, second, third]) = ends else {
            let sentence = format!("the file has {} bytes, and its header asks for others", bytes.len());
            return Err(SparseError::new(SparseFault::Read, sentence));
        };
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

/// Where the three arrays of a file end; `None` if that exceeds memory.
fn ends_of(shape: &SparseShape) -> Option<[usize; 3]> {
    let counts = [shape.row_ptr_len()?, usize::try_from(shape.blocks).ok()?, shape.value_count()?];
    let mut end = HEADER_BYTES;
    let mut ends = [0; 3];
    for (place, count) in ends.iter_mut().zip(counts) {
        end = end.checked_add(count.checked_mul(4)?)?;
        *place = end;
    }
    Some(ends)
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

    fn check(bytes: Vec<u8>) -> Result<Vec<f32>> {
        let file = SparseFile::parse(bytes)?;
        let (row_ptr, col_idx): (Vec<u32>, Vec<u32>) = (file.row_ptr().collect(), file.col_idx().collect());
        let values: Vec<f32> = file.values().collect();
        let view = SparseView { shape: file.shape(), row_ptr: &row_ptr, col_idx: &col_idx, values: &values };
        view.check()?;
        let mut y = [f32::NAN; 3];
        view.multiply(&[1.0, 10.0, 100.0, 1000.0, 10000.0], &mut y, Some(&[0.5, 0.0, 0.0]));
        Ok(y.to_vec())
    }

    #[test]
    fn a_product_is_that_of_the_dense_matrix() {
        // 1·1 + 2·10 + 4·10000 + 0.5; 3·10 + 5·10000; 6·100 + 7·1000.
        assert_eq!(check(file()).unwrap(), [40021.5, 50030.0, 7600.0]);
    }

    #[test]
    fn a_wrong_file_is_refused() {
        let with = |at: usize, number: u32| {
            let mut bytes = file();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            bytes
        };
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
