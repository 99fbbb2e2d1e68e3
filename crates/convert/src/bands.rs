//! Weights in bands of rows: read, reordered, packed to a format of the file.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::thread;

use girih_file::ContainerWriter;
use girih_graph::WeightSource;
use girih_model::{ModelWeights, interleaved_row};
use girih_tensor::{Error, ErrorKind, Result, View};

use super::plan::{FileLayout, Planned};
use super::prune::{KeptBlocks, Sparsity};

/// The approximate number of weights in memory at a time: 16 MiB of `f32`.
pub(super) const BAND_WEIGHTS: usize = 4 << 20;

/// The bytes in memory of a weight of a band, at most: as read, as `f32`, reordered, packed by part
/// and as a whole, and decoded again.
const BAND_WEIGHT_BYTES: usize = 6 * size_of::<f32>();

/// The address space that glibc reserves for the heap of a new thread (`HEAP_MAX_SIZE` of its
/// `malloc/arena.c`), which no other thread can use.
const THREAD_HEAP_BYTES: usize = 64 << 20;

/// The most threads whose heaps are counted, so that many threads do not make a conversion fail on
/// a system that grants only the memory it has.
const HEAPS_COUNTED: usize = 4;

/// What takes the bytes of tensors, one tensor after another.
pub(super) trait TensorSink {
    /// Appends bytes to the tensor of this name.
    ///
    /// # Errors
    /// When they cannot be kept.
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()>;
}

impl TensorSink for ContainerWriter {
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        ContainerWriter::append(self, name, bytes)
    }
}

/// Appends rows of a weight, or all, to the tensor of this name; returns what pruning has left of them.
pub(super) fn write_rows(
    sink: &mut dyn TensorSink,
    weights: &ModelWeights,
    (name, tensor): (&str, &Planned),
    some: Option<Range<usize>>,
    threads: NonZeroUsize,
    step: &mut dyn FnMut(usize),
) -> Result<Sparsity> {
    let mut sparsity = Sparsity::default();
    if tensor.layout == FileLayout::Transposed {
        write_transposed(sink, weights, (name, tensor), some, step)?;
        return Ok(sparsity);
    }
    let matrix = MatrixView::of(tensor);
    let all = some.unwrap_or(0..matrix.rows);
    let unit = matrix.unit();
    let band = BAND_WEIGHTS / unit.saturating_mul(matrix.columns).max(1);
    let band = unit * band.max(1);
    for start in all.clone().step_by(band) {
        let rows = band.min(all.end - start);
        check_memory(rows * matrix.columns, threads)?;
        let bytes = matrix.read(weights, start, rows)?;
        let mut values = matrix.decode(&bytes, rows)?;
        check_finite(&values)?;
        if let Some(pruning) = tensor.pruning {
            // In girih's order of rows, which is that of its blocks.
            matrix.deinterleave(&mut values);
            pruning.apply(&mut values, matrix.columns, &mut sparsity);
            matrix.interleave(&mut values);
        }
        let packed = if matrix.is_copied() { bytes } else { matrix.pack(&values, threads)? };
        sink.append(name, &packed)?;
        step(values.len());
    }
    Ok(sparsity)
}

/// Refuses values that are not finite.
pub(super) fn check_finite(values: &[f32]) -> Result<()> {
    match values.iter().find(|value| !value.is_finite()) {
        None => Ok(()),
        Some(value) => {
            Err(Error::new(format!("contains the weight {value}; only finite weights can be stored")))
        }
    }
}

/// Checks that a band of this many weights can be converted: the vectors of a band are allocated
/// where a failure would end the process, so as many bytes are reserved and freed before.
fn check_memory(weights: usize, threads: NonZeroUsize) -> Result<()> {
    let heaps = threads.get().min(HEAPS_COUNTED) * THREAD_HEAP_BYTES;
    let bytes = weights.saturating_mul(BAND_WEIGHT_BYTES).saturating_add(heaps);
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
        let sentence = format!("cannot be converted: {bytes} bytes of memory are needed and not available");
        Error::with_kind(ErrorKind::OutOfMemory, sentence)
    })
}

/// A tensor as rows and columns; a vector is a column, so that its elements can
/// be reordered like rows.
struct MatrixView<'a> {
    tensor: &'a Planned,
    rows: usize,
    columns: usize,
}

impl MatrixView<'_> {
    fn of(tensor: &Planned) -> MatrixView<'_> {
        let shape = &tensor.shape;
        // Only formats of single values can be split into rows of one value.
        let column =
            shape.extents().len() == 1 && tensor.source.tile() == (1, 1) && tensor.stored.tile() == (1, 1);
        let (rows, columns) = if column { (shape.columns(), 1) } else { (shape.rows(), shape.columns()) };
        MatrixView { tensor, rows, columns }
    }

    /// The number of rows that a band must be a multiple of: whole heads and tiles.
    fn unit(&self) -> usize {
        let tiles = self.tensor.source.tile().0.max(self.tensor.stored.tile().0);
        let blocks = self.tensor.pruning.map_or(1, |pruning| pruning.block[0]);
        let common = |size: usize, other: usize| if size.is_multiple_of(other) { size } else { size * other };
        common(common(self.head_rows().unwrap_or(1), tiles), blocks)
    }

    /// Brings values in the file's order of rows to girih's.
    fn deinterleave(&self, values: &mut [f32]) {
        let Some(size) = self.head_rows() else { return };
        let from = values.to_vec();
        for (row, values) in values.chunks_exact_mut(self.columns).enumerate() {
            values.copy_from_slice(&from[interleaved_row(row, size) * self.columns..][..self.columns]);
        }
    }

    /// Brings values in girih's order of rows to the file's.
    fn interleave(&self, values: &mut [f32]) {
        if let Some(size) = self.head_rows() {
            values.copy_from_slice(&interleaved(values, self.columns, size));
        }
    }

    /// The number of rows of a head, if heads are interleaved.
    fn head_rows(&self) -> Option<usize> {
        match self.tensor.layout {
            FileLayout::Ours | FileLayout::AsStored | FileLayout::Transposed => None,
            FileLayout::Interleaved { heads } => Some(self.rows / heads),
        }
    }

    /// Whether the bytes are copied unchanged.
    fn is_copied(&self) -> bool {
        let tensor = self.tensor;
        let is_pruned = tensor.pruning.is_some_and(|pruning| pruning.kept != KeptBlocks::Nonzero);
        tensor.source == tensor.stored
            && !is_pruned
            && (self.head_rows().is_none() || tensor.source.tile().0 == 1)
    }

    /// The bytes of `rows` rows in the source's format; in the file's order if a
    /// tile has only one row.
    fn read(&self, weights: &ModelWeights, start: usize, rows: usize) -> Result<Vec<u8>> {
        let source = self.tensor.source;
        let offset = source.matrix_bytes(start, self.columns)? as u64;
        let mut bytes = vec![0; source.matrix_bytes(rows, self.columns)?];
        match self.tensor.layout {
            FileLayout::AsStored => weights.fill_stored(&self.tensor.weight, offset, &mut bytes)?,
            FileLayout::Ours | FileLayout::Interleaved { .. } | FileLayout::Transposed => {
                weights.read(&self.tensor.weight, offset, &mut bytes)?;
            }
        }
        match self.head_rows() {
            Some(size) if source.tile().0 == 1 => {
                let row_bytes = source.matrix_bytes(1, self.columns)?;
                Ok(interleaved(&bytes, row_bytes, size))
            }
            _ => Ok(bytes),
        }
    }

    /// The values of `rows` rows in the file's order.
    fn decode(&self, bytes: &[u8], rows: usize) -> Result<Vec<f32>> {
        let source = self.tensor.source;
        let mut values = vec![0.0; rows * self.columns];
        View::new(source, rows, self.columns, bytes)?.unpack_rows(0..rows, &mut values);
        match self.head_rows() {
            Some(size) if source.tile().0 > 1 => Ok(interleaved(&values, self.columns, size)),
            _ => Ok(values),
        }
    }

    /// Packs `values` to the file's format on `threads` threads.
    fn pack(&self, values: &[f32], threads: NonZeroUsize) -> Result<Vec<u8>> {
        let tiles = self.tensor.stored.tile().0;
        let rows = (values.len() / self.columns.max(1)).div_ceil(threads.get()).next_multiple_of(tiles);
        let parts = values.chunks((rows * self.columns).max(1));
        let packed = thread::scope(|scope| {
            let start = |part| thread::Builder::new().spawn_scoped(scope, move || self.pack_part(part));
            let workers = parts.map(start).collect::<std::io::Result<Vec<_>>>();
            let workers = workers
                .map_err(|error| Error::new(format!("no thread can be started for packing: {error}")))?;
            let joined = workers.into_iter().map(|worker| worker.join().expect("packing does not panic"));
            joined.collect::<Result<Vec<_>>>()
        })?;
        Ok(packed.concat())
    }

    /// Packs rows; fails if a value overflows in the format.
    fn pack_part(&self, values: &[f32]) -> Result<Vec<u8>> {
        let (dtype, rows) = (self.tensor.stored, values.len() / self.columns);
        let bytes = dtype.pack_matrix(rows, self.columns, values)?;
        let mut back = vec![0.0; values.len()];
        View::new(dtype, rows, self.columns, &bytes)?.unpack_rows(0..rows, &mut back);
        match back.iter().zip(values).find(|(back, _)| !back.is_finite()) {
            Some((_, value)) => Err(Error::new(format!(
                "contains the weight {value}, which overflows {dtype}; use bf16 or f32"
            ))),
            None => Ok(bytes),
        }
    }
}

/// Interleaves the halves of each head of `size` rows of `length` items.
fn interleaved<T: Copy>(rows: &[T], length: usize, size: usize) -> Vec<T> {
    let mut reordered = rows.to_vec();
    for (row, items) in rows.chunks_exact(length).enumerate() {
        let start = interleaved_row(row, size) * length;
        reordered[start..start + length].copy_from_slice(items);
    }
    reordered
}

/// Appends columns of a weight as rows, which are few and short: those of convolutions.
fn write_transposed(
    sink: &mut dyn TensorSink,
    weights: &ModelWeights,
    (name, tensor): (&str, &Planned),
    some: Option<Range<usize>>,
    step: &mut dyn FnMut(usize),
) -> Result<()> {
    let numbers = weights.numbers(&tensor.weight)?;
    let (rows, columns) = (tensor.shape.rows(), tensor.shape.columns());
    let some = some.unwrap_or(0..rows);
    let row = |row: usize| numbers[row..].iter().step_by(rows).take(columns).copied();
    let values: Vec<f32> = some.flat_map(row).collect();
    check_finite(&values)?;
    sink.append(name, &tensor.stored.pack_matrix(values.len() / columns.max(1), columns, &values)?)?;
    step(values.len());
    Ok(())
}
