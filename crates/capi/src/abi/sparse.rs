//! The functions `ie_block_sparse_…`: block-sparse matrices of f32 in memory of C.
// The contract of each function is its comment, which the header repeats for C.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::ptr;

use super::pointers::{elements, elements_mut, place, text, value};
use crate::calls::caught;
use crate::sparse::{SparseError, SparseFault, SparseFile, SparseShape, SparseView};
use crate::status::Fault;

/// The call did what it says.
pub const IE_SPARSE_OK: c_int = 0;
/// An argument is wrong.
pub const IE_SPARSE_ERR_ARGS: c_int = -1;
/// The file cannot be opened.
pub const IE_SPARSE_ERR_OPEN: c_int = -2;
/// The file cannot be read, or has another length than its header says.
pub const IE_SPARSE_ERR_READ: c_int = -3;
/// The file has another beginning or version.
pub const IE_SPARSE_ERR_MAGIC: c_int = -4;
/// The numbers of the matrix contradict each other.
pub const IE_SPARSE_ERR_FORMAT: c_int = -5;
/// Memory does not suffice.
pub const IE_SPARSE_ERR_NOMEM: c_int = -6;

/// How a call ended: one of the codes IE_SPARSE_….
pub type SparseStatus = c_int;

/// A block-sparse matrix. The arrays are memory of malloc, or null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SparseMatrix {
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub cols: u32,
    /// Rows of a block.
    pub block_rows: u32,
    /// Columns of a block.
    pub block_cols: u32,
    /// The number of rows of blocks: rows by block_rows, rounded up.
    pub n_block_rows: u32,
    /// The number of columns of blocks: cols by block_cols, rounded up.
    pub n_block_cols: u32,
    /// The number of stored blocks.
    pub nnzb: u32,
    /// Where the blocks of each row of blocks begin, and the end: n_block_rows + 1 entries.
    pub row_ptr: *mut u32,
    /// The column of each block among those of blocks, ascending in a row: nnzb entries.
    pub col_idx: *mut u32,
    /// The values of each block, row by row: nnzb * block_rows * block_cols entries.
    pub values: *mut f32,
}

/// A matrix without anything.
const EMPTY: SparseMatrix = SparseMatrix {
    rows: 0,
    cols: 0,
    block_rows: 0,
    block_cols: 0,
    n_block_rows: 0,
    n_block_cols: 0,
    nnzb: 0,
    row_ptr: ptr::null_mut(),
    col_idx: ptr::null_mut(),
    values: ptr::null_mut(),
};

/// Returns what a code means; it must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn ie_sparse_status_str(status: SparseStatus) -> *const c_char {
    let text: &'static CStr = match status {
        IE_SPARSE_OK => c"ok",
        IE_SPARSE_ERR_ARGS => c"an argument is wrong",
        IE_SPARSE_ERR_OPEN => c"the file cannot be opened",
        IE_SPARSE_ERR_READ => c"the file cannot be read",
        IE_SPARSE_ERR_MAGIC => c"the file has another beginning or version",
        IE_SPARSE_ERR_FORMAT => c"the numbers of the matrix contradict each other",
        IE_SPARSE_ERR_NOMEM => c"memory does not suffice",
        _ => c"no such code",
    };
    text.as_ptr()
}

/// Makes a matrix empty, without freeing what it had. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_block_sparse_init(m: *mut SparseMatrix) {
    // SAFETY: the matrix is null or the caller's.
    let _ = caught(|| unsafe { place("m", m) }.map(|m| *m = EMPTY));
}

/// Frees the arrays of a matrix and makes it empty. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_block_sparse_release(m: *mut SparseMatrix) {
    let _ = caught(|| {
        // SAFETY: the matrix is null or the caller's.
        let m = unsafe { place("m", m) }?;
        for array in [m.row_ptr.cast(), m.col_idx.cast(), m.values.cast()] {
            // SAFETY: the array is null or memory of malloc, which is freed once, as the matrix becomes empty.
            unsafe { libc::free(array) };
        }
        *m = EMPTY;
        Ok(())
    });
}

/// Returns the number of rows of blocks, or 0 if block_rows is 0.
#[unsafe(no_mangle)]
pub extern "C" fn ie_block_sparse_n_block_rows(rows: u32, block_rows: u32) -> u32 {
    if block_rows == 0 { 0 } else { rows.div_ceil(block_rows) }
}

/// Returns the number of columns of blocks, or 0 if block_cols is 0.
#[unsafe(no_mangle)]
pub extern "C" fn ie_block_sparse_n_block_cols(cols: u32, block_cols: u32) -> u32 {
    ie_block_sparse_n_block_rows(cols, block_cols)
}

/// Returns the share of the blocks that is stored, or 0 if a number is 0.
#[unsafe(no_mangle)]
pub extern "C" fn ie_block_sparse_density(nnzb: u32, n_block_rows: u32, n_block_cols: u32) -> f32 {
    let places = f64::from(n_block_rows) * f64::from(n_block_cols);
    if places == 0.0 { 0.0 } else { (f64::from(nnzb) / places) as f32 }
}

/// Reads a matrix from a file that begins with IEBS. Stores it, or an empty one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_block_sparse_load(path: *const c_char, out: *mut SparseMatrix) -> SparseStatus {
    let mut status = IE_SPARSE_ERR_ARGS;
    let done = caught(|| {
        // SAFETY: the place is null or the caller's.
        let out = unsafe { place("out", out) }?;
        *out = EMPTY;
        // SAFETY: the text is null or the caller's.
        let path = unsafe { text("path", path) }?;
        *out = load(Path::new(path)).inspect_err(|error| status = code_of(error.kind))?;
        Ok(())
    });
    if done.is_ok() { IE_SPARSE_OK } else { status }
}

/// Multiplies: y = W x, plus bias if it is not null. x has `cols` values, y and bias have `rows`. Each sum has the order of
/// the columns. A matrix that is wrong, or another fault, leaves y as it is, and girih_last_error has a sentence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_gemv_block_sparse_f32(
    m: *const SparseMatrix,
    x: *const f32,
    y: *mut f32,
    bias: *const f32,
) {
    let _ = caught(|| {
        // SAFETY: the matrix is null or the caller's.
        let m = unsafe { value("m", m) }?;
        // SAFETY: its arrays are null or the caller's, with as many elements as the structure says.
        let matrix = unsafe { view(m) }?;
        let (rows, cols) = (m.rows as usize, m.cols as usize);
        // SAFETY: the vector is null or the caller's, with a value for each column.
        let x = unsafe { elements("x", x, cols) }?;
        // SAFETY: the vector is null or the caller's, with a value for each row.
        let y = unsafe { elements_mut("y", y, rows) }?;
        // SAFETY: as above.
        let bias = if bias.is_null() { None } else { Some(unsafe { elements("bias", bias, rows) }?) };
        matrix.multiply(x, y, bias);
        Ok(())
    });
}

/// The checked matrix.
///
/// # Safety
/// Each array is null, or has as many elements as the structure says, which do not change for as long as the result is used.
unsafe fn view(m: &SparseMatrix) -> Result<SparseView<'_>, Fault> {
    let SparseMatrix { rows, cols, block_rows, block_cols, nnzb, .. } = *m;
    let shape = SparseShape { rows, cols, block_rows, block_cols, blocks: nnzb };
    shape.check()?;
    if (m.n_block_rows, m.n_block_cols) != (shape.block_row_count(), shape.block_col_count()) {
        let (height, width) = (m.n_block_rows, m.n_block_cols);
        let sentence =
            format!("the matrix says that it has {height}x{width} blocks, and its sizes say otherwise");
        return Err(Fault::argument(sentence));
    }
    let (Some(entries), Some(count)) = (shape.row_ptr_len(), shape.value_count()) else {
        return Err(Fault::argument("the matrix has more values than memory holds"));
    };
    // SAFETY: the array is null or the caller's, with these entries.
    let row_ptr = unsafe { elements("row_ptr", m.row_ptr.cast_const(), entries) }?;
    // SAFETY: as above.
    let col_idx = unsafe { elements("col_idx", m.col_idx.cast_const(), nnzb as usize) }?;
    // SAFETY: as above.
    let values = unsafe { elements("values", m.values.cast_const(), count) }?;
    let view = SparseView { shape, row_ptr, col_idx, values };
    view.check()?;
    Ok(view)
}

/// The matrix of a file, in memory of malloc.
fn load(path: &Path) -> Result<SparseMatrix, SparseError> {
    let file = SparseFile::read(path)?;
    let shape = file.shape();
    let mut matrix = SparseMatrix {
        rows: shape.rows,
        cols: shape.cols,
        block_rows: shape.block_rows,
        block_cols: shape.block_cols,
        n_block_rows: shape.block_row_count(),
        n_block_cols: shape.block_col_count(),
        nnzb: shape.blocks,
        ..EMPTY
    };
    let checked = |matrix: &SparseMatrix| {
        // SAFETY: the arrays were filled with as many elements as the structure says.
        let checked = unsafe { view(matrix) }.map(drop);
        let named = |fault: Fault| format!("{}: {}", path.display(), fault.sentence);
        checked.map_err(|fault| SparseError::new(SparseFault::Format, named(fault)))
    };
    let filled = fill(&mut matrix, &file).and_then(|()| checked(&matrix));
    if filled.is_err() {
        // SAFETY: its arrays are null or memory of malloc.
        unsafe { ie_block_sparse_release(&raw mut matrix) };
    }
    filled.map(|()| matrix)
}

fn fill(matrix: &mut SparseMatrix, file: &SparseFile) -> Result<(), SparseError> {
    matrix.row_ptr = allocated(file.row_ptr(), file.shape().row_ptr_len())?;
    matrix.col_idx = allocated(file.col_idx(), usize::try_from(file.shape().blocks).ok())?;
    matrix.values = allocated(file.values(), file.shape().value_count())?;
    Ok(())
}

/// The `count` elements in memory of malloc; null if there are none.
fn allocated<T>(elements: impl Iterator<Item = T>, count: Option<usize>) -> Result<*mut T, SparseError> {
    let bytes = count.and_then(|count| count.checked_mul(size_of::<T>()));
    let no_memory =
        || SparseError::new(SparseFault::Memory, "memory for the matrix does not suffice; free some");
    let (count, bytes) = count.zip(bytes).ok_or_else(no_memory)?;
    if bytes == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: malloc may be called with any size.
    let memory: *mut T = unsafe { libc::malloc(bytes) }.cast();
    if memory.is_null() {
        return Err(no_memory());
    }
    for (index, element) in elements.take(count).enumerate() {
        // SAFETY: the memory has `count` places, aligned for each type of C, and the index is below it.
        let place = unsafe { memory.add(index) };
        // SAFETY: as above; nothing was there.
        unsafe { place.write(element) };
    }
    Ok(memory)
}

fn code_of(kind: SparseFault) -> SparseStatus {
    match kind {
        SparseFault::Open => IE_SPARSE_ERR_OPEN,
        SparseFault::Read => IE_SPARSE_ERR_READ,
        SparseFault::Magic => IE_SPARSE_ERR_MAGIC,
        SparseFault::Format => IE_SPARSE_ERR_FORMAT,
        SparseFault::Memory => IE_SPARSE_ERR_NOMEM,
    }
}
