//! Matrices in safetensors that store only their blocks with values.
//!
//! safetensors has no type for them, so such a tensor is stored as a vector of `U8`, and `__metadata__` says what it holds:
//! `"girih.sparse.NAME": {"shape": [N, K], "dtype": "q4_0", "block": [32, 32], "blocks": n}`.
//! ```text
//! row_ptr  u32, one for each row of blocks and one more: the number of stored blocks before it, and at last n
//! col_idx  u32, n: the column of each block among those of its row, ascending
//! zeros, to a multiple of 64 bytes
//! blocks   each its rows, in the format; what reaches beyond the lower or the right edge has the bytes of zeros
//! ```
//! Numbers are little-endian. A block that is not stored has the bytes of zeros in its format, so that nothing is rounded.

use std::ops::Range;

use girih_tensor::{DType, Error, Result, Shape};
use serde::Deserialize;
use serde_json::json;

use crate::container::{Container, HeaderContents, MadeTensor, TensorInfo};
use crate::quote::{quote, shorten_parse};
use crate::safetensors::Extents;
use crate::source::ReadAt;

/// The prefix of the keys in `__metadata__`.
const SPARSE_KEY_PREFIX: &str = "girih.sparse.";

/// The blocks begin at a multiple of this number of bytes of their tensor.
const BLOCK_ALIGNMENT: usize = 64;

/// The largest side of a block.
const MAX_SIDE: u64 = 4096;

/// The bytes of a row of blocks at most: it is made as a whole.
const MAX_ROW_BYTES: usize = 1 << 28;

/// The bytes of a list of blocks at most: it is in memory while its matrix is. In blocks of 32x32 these are 2^36 values.
const MAX_LIST_BYTES: usize = 1 << 28;

/// A matrix in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseLayout {
    shape: Shape,
    dtype: DType,
    /// The rows and columns of a block.
    block: [usize; 2],
    /// A row of a block of zeros.
    zeros: Vec<u8>,
}

impl SparseLayout {
    /// A matrix of this shape and format in blocks of `block` rows and columns.
    ///
    /// # Errors
    /// When rows are not whole blocks of the format, or girih does not write the format, or a size exceeds its cap.
    pub fn new(shape: Shape, dtype: DType, block: [usize; 2]) -> Result<SparseLayout> {
        let [rows, columns] = block;
        let (tile_rows, tile_columns) = dtype.tile();
        let is_side = |side: usize| (1..=MAX_SIDE).contains(&(side as u64));
        if !is_side(rows) || !is_side(columns) {
            return Err(Error::new(format!(
                "has blocks of {rows}x{columns}; a side has 1 to {MAX_SIDE} values"
            )));
        }
        if tile_rows > 1 || !columns.is_multiple_of(tile_columns) {
            return Err(Error::new(format!(
                "has blocks of {rows}x{columns} of {dtype}, whose own blocks are {tile_rows}x{tile_columns}"
            )));
        }
        if shape.extents().len() < 2 || shape.elements() == 0 {
            return Err(Error::new(format!("has the shape {shape}; a matrix with values is needed")));
        }
        dtype.bytes(&shape)?;
        let whole = shape.columns().checked_next_multiple_of(columns).ok_or_else(|| {
            Error::new(format!(
                "has the shape {shape}, whose blocks of {rows}x{columns} exceed the address space"
            ))
        })?;
        let row = dtype.matrix_bytes(1, whole)?;
        if row > MAX_ROW_BYTES / rows {
            return Err(Error::new(format!(
                "has rows of blocks of {rows} times {row} bytes; the cap is {MAX_ROW_BYTES} bytes"
            )));
        }
        let zeros = dtype.pack_matrix(1, columns, &vec![0.0; columns])?;
        Ok(SparseLayout { shape, dtype, block, zeros })
    }

    /// The shape of the matrix.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The rows and columns of a block.
    pub fn block(&self) -> [usize; 2] {
        self.block
    }

    /// The bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.zeros.len() * self.block[0]
    }

    /// The rows of blocks.
    fn block_rows(&self) -> usize {
        self.shape.rows().div_ceil(self.block[0])
    }

    /// The bytes of a row of the matrix.
    fn row_bytes(&self) -> usize {
        self.dtype.matrix_bytes(1, self.shape.columns()).expect("the rows are whole blocks")
    }

    /// The bytes of a row of blocks of the dense matrix, except the last one, which may have fewer.
    pub fn band_bytes(&self) -> usize {
        self.row_bytes() * self.block[0]
    }

    /// The columns of the blocks of a row of blocks that have other bytes than zeros. `band` has the bytes of its rows in the dense
    /// matrix.
    pub fn present(&self, band: &[u8]) -> Vec<u32> {
        let width = self.zeros.len();
        let mut is_present = vec![false; self.row_bytes().div_ceil(width)];
        for row in band.chunks_exact(self.row_bytes()) {
            for (present, part) in is_present.iter_mut().zip(row.chunks(width)) {
                *present |= *part != self.zeros[..part.len()];
            }
        }
        (0..).zip(is_present).filter(|(_, present)| *present).map(|(column, _)| column).collect()
    }

    /// The bytes of these blocks of a row of blocks.
    pub fn blocks(&self, band: &[u8], columns: &[u32]) -> Vec<u8> {
        let width = self.zeros.len();
        let mut blocks = Vec::with_capacity(columns.len() * self.block_bytes());
        for column in columns {
            let rows = band.chunks_exact(self.row_bytes());
            let missing = self.block[0] - rows.len();
            for row in rows {
                let from = *column as usize * width;
                let part = &row[from..row.len().min(from + width)];
                blocks.extend(part);
                blocks.extend(&self.zeros[part.len()..]);
            }
            (0..missing).for_each(|_| blocks.extend(&self.zeros));
        }
        blocks
    }

    /// The pair of `__metadata__` for a tensor of this name with `blocks` blocks.
    pub fn pair(&self, name: &str, blocks: usize) -> (String, String) {
        let value = json!({
            "shape": self.shape.extents(),
            "dtype": self.dtype.name(),
            "block": self.block,
            "blocks": blocks,
        });
        (format!("{SPARSE_KEY_PREFIX}{name}"), value.to_string())
    }

    /// The bytes of a tensor of `blocks` blocks before them; `None` if they exceed the address space.
    fn start(&self, blocks: usize) -> Option<usize> {
        let words = self.block_rows().checked_add(1)?.checked_add(blocks)?;
        words.checked_mul(size_of::<u32>())?.checked_next_multiple_of(BLOCK_ALIGNMENT)
    }

    /// The bytes of a tensor of `blocks` blocks.
    ///
    /// # Errors
    /// When they exceed the address space.
    pub fn bytes(&self, blocks: usize) -> Result<usize> {
        let bytes = self.start(blocks).zip(blocks.checked_mul(self.block_bytes()));
        bytes
            .and_then(|(start, blocks)| start.checked_add(blocks))
            .ok_or_else(|| Error::new(format!("has {blocks} blocks, which exceed the address space")))
    }

    /// The bytes of a tensor before its blocks: `present` has the columns of those of each row of blocks.
    ///
    /// # Errors
    /// When they are more than 32 bits can count, or the list exceeds its cap.
    pub fn head(&self, present: &[Vec<u32>]) -> Result<Vec<u8>> {
        let mut head = list(present)?;
        head.resize(head.len().next_multiple_of(BLOCK_ALIGNMENT), 0);
        Ok(head)
    }
}

/// The bytes of `row_ptr` and `col_idx`.
///
/// # Errors
/// When there are more blocks than 32 bits can count, or the list exceeds its cap.
pub(crate) fn list(present: &[Vec<u32>]) -> Result<Vec<u8>> {
    let mut count = 0u32;
    let mut words = vec![0];
    for columns in present {
        let more = u32::try_from(columns.len()).ok().and_then(|more| count.checked_add(more));
        count = more.ok_or_else(|| Error::new("has more blocks than 32 bits can count"))?;
        words.push(count);
    }
    check_list((words.len() + count as usize).saturating_mul(size_of::<u32>()))?;
    words.extend(present.iter().flatten());
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// Checks the length of a list of blocks, before it is read or written.
fn check_list(bytes: usize) -> Result<()> {
    if bytes > MAX_LIST_BYTES {
        return Err(Error::new(format!(
            "has a list of blocks of {bytes} bytes; the cap is {MAX_LIST_BYTES}, so use larger blocks"
        )));
    }
    Ok(())
}

/// Whether a key of `__metadata__` is that of a sparse matrix.
pub fn is_pair(key: &str) -> bool {
    key.starts_with(SPARSE_KEY_PREFIX)
}

/// The value of a pair.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSparse {
    shape: Extents,
    dtype: String,
    block: [u64; 2],
    blocks: u64,
}

/// A matrix whose stored blocks are known.
#[derive(Clone, Debug)]
pub(crate) struct BlockedMatrix {
    layout: SparseLayout,
    /// The stored bytes; the blocks begin at `start`.
    stored: TensorInfo,
    start: usize,
    row_ptr: Vec<u32>,
    col_idx: Vec<u32>,
}

impl BlockedMatrix {
    /// The matrix of a pair, whose tensor is `stored`.
    fn read(source: &dyn ReadAt, text: &str, stored: TensorInfo) -> Result<BlockedMatrix> {
        let raw: RawSparse = serde_json::from_str(text)
            .map_err(|error| Error::new(format!("is not a sparse matrix: {}", shorten_parse(&error))))?;
        let side = |side: u64| usize::try_from(side.min(MAX_SIDE + 1)).unwrap_or(usize::MAX);
        let layout = SparseLayout::new(raw.shape.checked()?, raw.dtype.parse()?, raw.block.map(side))?;
        let blocks = usize::try_from(raw.blocks).unwrap_or(usize::MAX);
        let (start, bytes) = (layout.start(blocks), layout.bytes(blocks)?);
        let is_vector = stored.dtype == DType::U8 && stored.shape.extents().len() == 1;
        if !is_vector || bytes as u64 != stored.bytes {
            let (dtype, shape) = (stored.dtype, stored.shape);
            return Err(Error::new(format!(
                "{blocks} blocks are stored as u8 [{bytes}], but the tensor is {dtype} {shape}"
            )));
        }
        let start = start.expect("the bytes of all blocks were counted");
        BlockedMatrix::listed(source, (layout, stored), 0..start, blocks)
    }

    /// The matrix whose list of blocks lies in `list` of its stored bytes, before the blocks.
    ///
    /// # Errors
    /// When the list exceeds its cap or does not ascend, or more follows it.
    pub fn listed(
        source: &dyn ReadAt,
        (layout, stored): (SparseLayout, TensorInfo),
        list: Range<usize>,
        blocks: usize,
    ) -> Result<BlockedMatrix> {
        check_list(list.len())?;
        let mut words = vec![0; list.len()];
        source.read_at(stored.offset + list.start as u64, &mut words)?;
        let mut words = words.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        let row_ptr: Vec<u32> = words.by_ref().take(layout.block_rows() + 1).collect();
        let col_idx: Vec<u32> = words.by_ref().take(blocks).collect();
        if words.any(|word| word != 0) {
            return Err(Error::new("has numbers behind its list of blocks"));
        }
        let across = layout.row_bytes().div_ceil(layout.zeros.len());
        check_pattern(&row_ptr, &col_idx, across)?;
        Ok(BlockedMatrix { layout, stored, start: list.end, row_ptr, col_idx })
    }

    /// It as a tensor, without its shard.
    fn info(&self) -> Result<TensorInfo> {
        let SparseLayout { shape, dtype, .. } = self.layout;
        Ok(TensorInfo { dtype, shape, shard: 0, offset: 0, bytes: dtype.bytes(&shape)? as u64 })
    }

    /// The bytes of a row of blocks in the dense matrix.
    fn band(&self, container: &Container, band: usize) -> Result<Vec<u8>> {
        let SparseLayout { shape, block, zeros, .. } = &self.layout;
        let (each, width) = (self.layout.block_bytes(), zeros.len());
        let blocks = self.row_ptr[band] as usize..self.row_ptr[band + 1] as usize;
        let mut bytes = vec![0; blocks.len() * each];
        container.read(&self.stored, (self.start + blocks.start * each) as u64, &mut bytes)?;
        let row_bytes = self.layout.row_bytes();
        let mut row = zeros.repeat(row_bytes.div_ceil(width));
        row.truncate(row_bytes);
        let rows = block[0].min(shape.rows() - band * block[0]);
        let mut dense = row.repeat(rows);
        for (column, bytes) in self.col_idx[blocks].iter().zip(bytes.chunks_exact(each)) {
            let from = *column as usize * width;
            for (row, part) in dense.chunks_exact_mut(row_bytes).zip(bytes.chunks_exact(width)) {
                let to = row_bytes.min(from + width);
                row[from..to].copy_from_slice(&part[..to - from]);
            }
        }
        Ok(dense)
    }
}

/// Checks that rows of blocks follow each other, and that the columns of each ascend below `across`.
///
/// # Errors
/// When they do not.
pub(crate) fn check_pattern(row_ptr: &[u32], col_idx: &[u32], across: usize) -> Result<()> {
    let count = col_idx.len();
    let last = row_ptr.last().map(|last| *last as usize);
    if row_ptr.first() != Some(&0) || last != Some(count) || !row_ptr.is_sorted() {
        return Err(Error::new(format!("has a row_ptr that does not ascend from 0 to its {count} blocks")));
    }
    for (row, ends) in row_ptr.windows(2).enumerate() {
        let columns = &col_idx[ends[0] as usize..ends[1] as usize];
        let is_known = columns.last().is_none_or(|last| (*last as usize) < across);
        if !is_known || !columns.is_sorted_by(|a, b| a < b) {
            return Err(Error::new(format!(
                "has a col_idx that does not ascend below {across} in its row of blocks {row}"
            )));
        }
    }
    Ok(())
}

impl MadeTensor for BlockedMatrix {
    fn read(&self, container: &Container, start: u64, into: &mut [u8]) -> Result<()> {
        let each = self.layout.band_bytes() as u64;
        let (mut at, mut rest) = (start, into);
        while !rest.is_empty() {
            let bytes = self.band(container, (at / each) as usize)?;
            let skipped = (at % each) as usize;
            let length = (bytes.len() - skipped).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            now.copy_from_slice(&bytes[skipped..skipped + length]);
            (at, rest) = (at + length as u64, later);
        }
        Ok(())
    }
}

/// The sparse matrices that the metadata of a file names, with the names of their tensors.
///
/// # Errors
/// When one contradicts its tensor, or its list of blocks does not ascend.
pub(crate) fn reveal(source: &dyn ReadAt, contents: &HeaderContents) -> Result<Vec<(String, BlockedMatrix)>> {
    let mut matrices = Vec::new();
    for (key, _) in contents.metadata.iter() {
        let Some(name) = key.strip_prefix(SPARSE_KEY_PREFIX) else { continue };
        let of_key = |error: Error| error.of(format!("key {}", quote(key)));
        let text = contents.metadata.require::<&str>(key)?;
        let missing = || of_key(Error::new("names a tensor that the file does not have"));
        let stored = contents.tensors.get(name).ok_or_else(missing)?.clone();
        matrices.push((name.to_owned(), BlockedMatrix::read(source, text, stored).map_err(of_key)?));
    }
    Ok(matrices)
}

impl Container {
    /// Puts a sparse matrix of the file of this index in place of its stored bytes.
    pub(crate) fn put_sparse(&mut self, name: String, mut matrix: BlockedMatrix, shard: usize) -> Result<()> {
        let info = matrix.info()?;
        matrix.stored.shard = shard;
        let shard = self.add_made(Box::new(matrix), shard);
        self.tensors.insert(name, TensorInfo { shard, ..info });
        Ok(())
    }
}
