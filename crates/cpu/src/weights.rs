//! Weights on this backend: matrices packed for the kernels, vectors as `f32`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use girih_graph::backend::WeightTouch;
use girih_graph::store::Store;
use girih_graph::{Error, ErrorKind, Graph, Op, OperandKind, Value, ValueId, WeightSource};
use girih_tensor::{DType, View};

use crate::adapter_node::row_parts;
use crate::kernels::Table;
use crate::kernels::packed::{
    BAND, Band, Coding, DEPTH, FLOAT_DEPTH, GROUP, LANES, LINE, Layout, Panel, PanelGroup, bands,
};
use crate::kernels::prefetch::{PrefetchChoice, PrefetchDistance};
use crate::memory::{Aligned, BytesOwner, SharedBytes};
use crate::pack::pack_band;
use crate::packed_store::{KeptPack, ListedMatrix, PackContents, Residence, UnsavedPack};
use crate::pool::{Grid, ThreadPool};
use crate::row_table::{RowTable, TablesInFile};

/// All weights of a graph.
#[derive(Debug)]
pub struct CpuWeights {
    indexes: HashMap<String, usize>,
    tensors: Vec<LoadedWeight>,
}

#[derive(Debug)]
enum LoadedWeight {
    Matrix(PackedMatrix),
    /// A matrix of each expert, one after another.
    Matrices {
        bytes: SharedBytes,
        each: Vec<PackedMatrix>,
    },
    Vector {
        numbers: Aligned<f32>,
        columns: usize,
    },
    /// A table that stays in its file.
    InFile(RowTable),
}

/// How the nodes of a graph use a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightForm {
    /// As the second operand of `linear` or `embed`.
    Matrix,
    /// As a matrix for each expert.
    Matrices,
    /// As a norm's weight, a bias, or frequencies.
    Vector,
}

impl WeightForm {
    /// The form of operand `index` of `op`, if that is a weight.
    pub fn of(op: Op, index: usize) -> Option<WeightForm> {
        match op.spec().operands.get(index)? {
            OperandKind::Matrix => Some(WeightForm::Matrix),
            OperandKind::Matrices => Some(WeightForm::Matrices),
            OperandKind::Vector => Some(WeightForm::Vector),
            _ => None,
        }
    }

    /// Whether it is packed in bands.
    pub fn is_packed(self) -> bool {
        match self {
            WeightForm::Matrix | WeightForm::Matrices => true,
            WeightForm::Vector => false,
        }
    }

    /// The form of `weight` in the graph; all its readers agree on it.
    pub fn in_graph(graph: &Graph, weight: ValueId) -> Option<WeightForm> {
        graph.nodes.iter().find_map(|node| {
            let index = node.inputs.iter().position(|&input| input == weight)?;
            WeightForm::of(node.op, index)
        })
    }
}

impl CpuWeights {
    /// The bytes that the weights of `graph` take, without those that stay in their file.
    pub(crate) fn plan(graph: &Graph, in_file: &TablesInFile) -> u64 {
        let vectors = of_form(graph, |form| form == WeightForm::Vector);
        let vectors = vectors.map(|(_, value)| Aligned::<f32>::bytes(value.shape.elements()));
        let packed = of_form(graph, WeightForm::is_packed).filter(|(_, value)| !in_file.has(value));
        let matrices = MatrixRange::of_all(packed.map(|(id, value)| (value, PackedShape::of(graph, id))));
        let matrices = matrices.map_or(u64::MAX, |ranges| Aligned::<u8>::bytes(MatrixRange::end(&ranges)));
        vectors.fold(matrices, u64::saturating_add)
    }

    /// Loads the weights of `graph` on all threads: from `store` if it has them packed, otherwise
    /// from `source`. In the second case it hands the packed matrices to the store.
    ///
    /// # Errors
    /// If `source` fails or was changed meanwhile, or there is not enough memory; never because
    /// of the store.
    pub(crate) fn load(
        graph: &Graph,
        source: &dyn WeightSource,
        store: Option<&dyn Store>,
        (residence, in_file): (Residence, &TablesInFile),
        pool: &ThreadPool,
    ) -> Result<CpuWeights, Error> {
        let contents = source.identity().and_then(|identity| contents(graph, &identity, in_file));
        let (Some(store), Some(contents)) = (store, contents) else {
            return CpuWeights::fill(graph, source, None, in_file, pool);
        };
        if let Some(reader) = store.find(&contents.key.to_string()) {
            let kept = KeptPack::open(&contents, reader, residence);
            match kept.and_then(|kept| CpuWeights::fill(graph, source, Some(&kept), in_file, pool)) {
                Ok(weights) => return Ok(weights),
                Err(error) => store.note(&error),
            }
        }
        let weights = CpuWeights::fill(graph, source, None, in_file, pool)?;
        source.check_unchanged()?;
        let matrix = |name: &str| {
            let index = weights.indexes.get(name).expect("a packed weight is a matrix of the graph");
            weights.packed_bytes(*index)
        };
        let unsaved = Box::new(UnsavedPack::new(contents, matrix));
        // The store may start threads.
        pool.unpinned(|| store.keep(unsaved));
        Ok(weights)
    }

    /// Loads the weights of `graph`: matrices that `kept` has from there, all others from `source`.
    fn fill(
        graph: &Graph,
        source: &dyn WeightSource,
        kept: Option<&KeptPack<'_>>,
        in_file: &TablesInFile,
        pool: &ThreadPool,
    ) -> Result<CpuWeights, Error> {
        let mapped = |value: &Value| kept.and_then(|kept| kept.mapped(&value.name));
        let unmapped = of_form(graph, WeightForm::is_packed)
            .filter(|(_, value)| mapped(value).is_none() && !in_file.has(value));
        let ranges = MatrixRange::of_all(unmapped.map(|(id, value)| (value, PackedShape::of(graph, id))))?;
        let mut memory = Aligned::zeroed(MatrixRange::end(&ranges), "the packed weights")?;
        fill_all(&ranges, &mut memory, pool, &|(value, shape), band, stored, packed| match kept
            .filter(|kept| kept.contains(&value.name))
        {
            Some(kept) => kept.read(&value.name, band, packed),
            None => read_and_pack((value, shape), source, band, stored, packed),
        })?;
        let memory = BytesOwner::Memory(Arc::new(memory));
        let mut filled = ranges.into_iter().map(|matrix| SharedBytes::part(memory.clone(), matrix.range));
        let mut next = || filled.next().expect("each matrix that is not mapped was filled");
        let mut weights = CpuWeights { indexes: HashMap::new(), tensors: Vec::new() };
        for (id, value) in graph.weights() {
            let tensor = match WeightForm::in_graph(graph, id) {
                Some(WeightForm::Matrix) if in_file.has(value) => match in_file.table(value) {
                    Some(table) => LoadedWeight::InFile(table),
                    None => continue,
                },
                Some(WeightForm::Matrix) => {
                    let bytes = mapped(value).unwrap_or_else(&mut next);
                    LoadedWeight::Matrix(PackedMatrix::new(value, PackedShape::of(graph, id), bytes)?)
                }
                Some(WeightForm::Matrices) => {
                    let bytes = mapped(value).unwrap_or_else(&mut next);
                    let each = PackedMatrix::of_each(value, PackedShape::of(graph, id), &bytes)?;
                    LoadedWeight::Matrices { each, bytes }
                }
                Some(WeightForm::Vector) => {
                    LoadedWeight::Vector { numbers: vector(value, source)?, columns: value.shape.columns() }
                }
                None => continue,
            };
            weights.indexes.insert(value.name.clone(), weights.tensors.len());
            weights.tensors.push(tensor);
        }
        Ok(weights)
    }

    /// The index of the weight of this name.
    pub(crate) fn index(&self, name: &str) -> Result<usize, Error> {
        let missing =
            || Error::new(format!("the weight '{name}' of the graph is not among the loaded weights"));
        self.indexes.get(name).copied().ok_or_else(missing)
    }

    /// The bytes of a weight.
    pub(crate) fn bytes(&self, index: usize) -> u64 {
        match &self.tensors[index] {
            LoadedWeight::Vector { numbers, .. } => size_of_val(&**numbers) as u64,
            LoadedWeight::InFile(table) => (table.rows * table.row_bytes()) as u64,
            packed => packed.matrices().iter().map(PackedMatrix::size).sum(),
        }
    }

    /// The bytes of a row.
    pub(crate) fn row_bytes(&self, index: usize) -> u64 {
        match &self.tensors[index] {
            LoadedWeight::Vector { columns, .. } => (columns * size_of::<f32>()) as u64,
            LoadedWeight::InFile(table) => table.row_bytes() as u64,
            packed => {
                let rows: usize = packed.matrices().iter().map(|matrix| matrix.rows / matrix.row_parts).sum();
                self.bytes(index) / rows.max(1) as u64
            }
        }
    }

    pub(crate) fn matrix(&self, index: usize) -> &PackedMatrix {
        match &self.tensors[index] {
            LoadedWeight::Matrix(matrix) => matrix,
            LoadedWeight::Matrices { .. } | LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => {
                wrong_weights()
            }
        }
    }

    /// The table that rows of a step are read from.
    pub(crate) fn table(&self, index: usize) -> TableRows<'_> {
        match &self.tensors[index] {
            LoadedWeight::Matrix(matrix) => TableRows::Packed(matrix),
            LoadedWeight::InFile(table) => TableRows::InFile(table),
            LoadedWeight::Matrices { .. } | LoadedWeight::Vector { .. } => wrong_weights(),
        }
    }

    /// Checks that all rows that a step read from files are those of the files that were opened.
    ///
    /// # Errors
    /// If one could not be read, or a file was changed.
    pub(crate) fn finish_rows(&self) -> Result<(), Error> {
        let finished = self.tensors.iter().map(|tensor| match tensor {
            LoadedWeight::InFile(table) => table.finish(),
            LoadedWeight::Matrix(_) | LoadedWeight::Matrices { .. } | LoadedWeight::Vector { .. } => Ok(()),
        });
        // All of them forget their errors, so that the next step begins without one.
        finished.fold(Ok(()), Result::and)
    }

    /// The matrices of all experts.
    pub(crate) fn experts(&self, index: usize) -> &[PackedMatrix] {
        match &self.tensors[index] {
            LoadedWeight::Matrices { each, .. } => each,
            LoadedWeight::Matrix(_) | LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => {
                wrong_weights()
            }
        }
    }

    /// The bytes of all bands of a packed weight.
    fn packed_bytes(&self, index: usize) -> &SharedBytes {
        match &self.tensors[index] {
            LoadedWeight::Matrix(matrix) => &matrix.bytes,
            LoadedWeight::Matrices { bytes, .. } => bytes,
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => wrong_weights(),
        }
    }

    /// Reads some bytes of the packed matrices and returns their exclusive or; `None` if there are none. In each matrix the
    /// first byte that is walked over is read, and then each byte of the stride.
    pub(crate) fn touch(&self, touch: WeightTouch) -> Option<u8> {
        let matrices: Vec<&[u8]> = self.tensors.iter().filter_map(LoadedWeight::packed).collect();
        let total: u64 = matrices.iter().map(|bytes| bytes.len() as u64).sum();
        let (mut skip, mut left, mut checksum) = (touch.first.checked_rem(total)?, touch.bytes, 0);
        for bytes in matrices.iter().cycle() {
            let count = bytes.len() as u64;
            if skip >= count {
                skip -= count;
                continue;
            }
            let end = count.min(skip.saturating_add(left));
            let stride = usize::try_from(touch.stride.max(1)).unwrap_or(usize::MAX);
            let walked = &bytes[skip as usize..end as usize];
            checksum = walked.iter().step_by(stride).fold(checksum, |all, byte| all ^ byte);
            (left, skip) = (left - (end - skip), 0);
            if left == 0 {
                break;
            }
        }
        Some(checksum)
    }

    /// Sets how far ahead kernels prefetch matrices.
    pub(crate) fn set_prefetch(&mut self, choice: PrefetchChoice) {
        for matrix in self.tensors.iter_mut().flat_map(|tensor| match tensor {
            LoadedWeight::Matrix(matrix) => std::slice::from_mut(matrix),
            LoadedWeight::Matrices { each, .. } => each,
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => &mut [],
        }) {
            matrix.prefetch = choice;
        }
    }

    /// All matrices, in the order of the graph.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.tensors.iter().flat_map(LoadedWeight::matrices)
    }

    pub(crate) fn vector(&self, index: usize) -> &[f32] {
        match &self.tensors[index] {
            LoadedWeight::Vector { numbers, .. } => numbers,
            LoadedWeight::Matrix(_) | LoadedWeight::Matrices { .. } | LoadedWeight::InFile(_) => {
                wrong_weights()
            }
        }
    }
}

impl LoadedWeight {
    /// The bytes of all bands, if it is packed.
    fn packed(&self) -> Option<&[u8]> {
        match self {
            LoadedWeight::Matrix(matrix) => Some(&matrix.bytes),
            LoadedWeight::Matrices { bytes, .. } => Some(bytes),
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => None,
        }
    }

    /// Its matrices; a vector has none.
    fn matrices(&self) -> &[PackedMatrix] {
        match self {
            LoadedWeight::Matrix(matrix) => std::slice::from_ref(matrix),
            LoadedWeight::Matrices { each, .. } => each,
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => &[],
        }
    }
}

/// A table that rows of a step are read from.
#[derive(Clone, Copy)]
pub(crate) enum TableRows<'a> {
    Packed(&'a PackedMatrix),
    InFile(&'a RowTable),
}

impl TableRows<'_> {
    /// The number of values in a row.
    pub fn columns(self) -> usize {
        match self {
            TableRows::Packed(matrix) => matrix.columns,
            TableRows::InFile(table) => table.columns,
        }
    }

    /// Decodes one row to `values`.
    pub fn row(self, index: usize, kernels: &Table, values: &mut [f32]) {
        match self {
            TableRows::Packed(matrix) => matrix.row(index, kernels, values),
            TableRows::InFile(table) => table.row(index, values),
        }
    }
}

fn wrong_weights() -> ! {
    panic!("programs run with the weights that they were compiled for")
}

/// Fills a band of zeros of a weight; the vector is a buffer for its stored bytes.
type FillBand<'a> =
    dyn Fn((&Value, PackedShape), usize, &mut Vec<u8>, &mut [u8]) -> Result<(), Error> + Sync + 'a;

/// The matrices of a weight as they are packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedShape {
    /// The number of matrices.
    experts: usize,
    /// The rows and columns of each, which are parts of the weight's rows.
    rows: usize,
    columns: usize,
    /// The number of parts of each of the weight's rows.
    row_parts: usize,
}

impl PackedShape {
    /// The shape of a weight of the graph.
    fn of(graph: &Graph, weight: ValueId) -> PackedShape {
        let (shape, row_parts) = (graph.value(weight).shape, row_parts(graph, weight));
        let (experts, rows) = match *shape.extents() {
            [experts, rows, _] => (experts.max(1), rows),
            _ => (1, shape.rows()),
        };
        PackedShape { experts, rows: rows * row_parts, columns: shape.columns() / row_parts, row_parts }
    }
}

/// The weights of `graph` that it uses in such a form.
fn of_form(graph: &Graph, is_it: fn(WeightForm) -> bool) -> impl Iterator<Item = (ValueId, &Value)> {
    let of_form = move |(id, _): &(ValueId, _)| WeightForm::in_graph(graph, *id).is_some_and(is_it);
    graph.weights().filter(of_form)
}

/// The range of a matrix in the memory that holds all matrices. In one memory nearly all of it is in
/// huge pages; when matrices were allocated one by one, a tenth of a model was in pages of 4 KiB
/// (small matrices, such as those of keys, entirely).
struct MatrixRange<'a> {
    value: &'a Value,
    shape: PackedShape,
    range: Range<usize>,
    band_bytes: usize,
}

impl MatrixRange<'_> {
    /// Places one matrix after another, each at the start of a cache line.
    fn of_all<'a>(
        matrices: impl Iterator<Item = (&'a Value, PackedShape)>,
    ) -> Result<Vec<MatrixRange<'a>>, Error> {
        let mut end = 0;
        let range = |(value, shape): (&'a Value, PackedShape)| {
            let (band_bytes, all) = PackedMatrix::sizes(value, shape)?;
            let next = all.checked_next_multiple_of(LINE).and_then(|all| all.checked_add(end));
            let start = end;
            end = next.ok_or_else(|| too_large(value))?;
            Ok(MatrixRange { value, shape, range: start..start + all, band_bytes })
        };
        matrices.map(range).collect()
    }

    /// The bytes of all matrices.
    fn end(ranges: &[MatrixRange<'_>]) -> usize {
        ranges.last().map_or(0, |matrix| matrix.range.end)
    }
}

/// A band to be filled.
struct EmptyBand<'a> {
    value: &'a Value,
    shape: PackedShape,
    band: usize,
    bytes: &'a mut [u8],
    /// The part of its matrix that it belongs to.
    part: usize,
    /// Its index among the bands of all matrices.
    number: usize,
}

/// The bands of all matrices, each matrix in one part for each thread: the first part of every matrix,
/// then the second of every matrix, and so on. Memory is allocated near the thread that first writes
/// it, and in a step each thread begins with its own part of each matrix.
fn by_parts<'a>(ranges: &'a [MatrixRange<'_>], memory: &'a mut [u8], parts: usize) -> Vec<EmptyBand<'a>> {
    let (mut all, mut rest, mut end) = (Vec::new(), memory, 0);
    for MatrixRange { value, shape, range, band_bytes } in ranges {
        let taken = rest.split_off_mut(..range.end - end).expect("the ranges are within this memory");
        let bands = taken[range.start - end..].chunks_mut((*band_bytes).max(1));
        end = range.end;
        let count = bands.len();
        for (band, bytes) in bands.enumerate() {
            let (part, number) = (band * parts / count, all.len());
            all.push(EmptyBand { value, shape: *shape, band, bytes, part, number });
        }
    }
    all.sort_by_key(|empty| empty.part);
    all
}

/// Fills the bands of all matrices, in one task: threads wait for each other at the end of a task,
/// for milliseconds if one of them has lost its CPU to another process.
fn fill_all(
    ranges: &[MatrixRange<'_>],
    memory: &mut [u8],
    pool: &ThreadPool,
    fill: &FillBand<'_>,
) -> Result<(), Error> {
    let mut bands = by_parts(ranges, memory, pool.threads());
    let mut buffers = vec![Vec::new(); pool.threads()];
    let failure = FirstError::default();
    let grid = Grid { width: 1, row_step: 1, column_step: 1 };
    pool.tiles(&mut buffers, &mut bands, grid, |tile, buffer| {
        let index = tile.rows().start;
        let [EmptyBand { value, shape, band, bytes, number, .. }] = tile.row(index) else {
            unreachable!("a row is one band")
        };
        if failure.is_before(*number) {
            return;
        }
        if let Err(error) = fill((value, *shape), *band, buffer, bytes) {
            failure.note(*number, error);
        }
    });
    failure.outcome()
}

/// The matrices of a graph that are worth caching: those that are packed. All other weights can be
/// read from their source just as fast.
pub(crate) fn contents(graph: &Graph, identity: &[u8], in_file: &TablesInFile) -> Option<PackContents> {
    let matrices = graph.weights().filter_map(|(id, value)| {
        let layout = Layout::of(value.dtype);
        let is_packed = WeightForm::in_graph(graph, id).is_some_and(WeightForm::is_packed)
            && !matches!(layout, Layout::Stored(_))
            && !in_file.has(value);
        // Those of an expert may be filled up to whole bands.
        let PackedShape { experts, rows, columns, row_parts: _ } = PackedShape::of(graph, id);
        let rows = if experts > 1 { experts * bands(rows) * BAND } else { rows };
        is_packed.then_some(ListedMatrix { name: &value.name, layout, rows, columns })
    });
    PackContents::of(&matrices.collect::<Vec<_>>(), identity)
}

/// Reads the rows of a band from the source, and packs them.
fn read_and_pack(
    (value, shape): (&Value, PackedShape),
    source: &dyn WeightSource,
    band: usize,
    stored: &mut Vec<u8>,
    packed: &mut [u8],
) -> Result<(), Error> {
    let (dtype, PackedShape { experts, rows, columns, row_parts: _ }) = (value.dtype, shape);
    let each = dtype.bytes(&value.shape)? / experts;
    let band_bytes = match dtype.tile().0 {
        1 => each / rows.max(1) * BAND,
        _ => each / bands(rows).max(1),
    };
    let (expert, band) = (band / bands(rows).max(1), band % bands(rows).max(1));
    let length = band_bytes.min(each - band * band_bytes);
    let start = expert * each + band * band_bytes;
    stored.try_reserve_exact(length.saturating_sub(stored.len())).map_err(|_| {
        let sentence = format!("cannot allocate {length} bytes to read '{}'", value.name);
        Error::with_kind(ErrorKind::OutOfMemory, sentence)
    })?;
    stored.resize(length, 0);
    source.read(&value.name, start as u64, stored)?;
    pack_band(dtype, columns, stored, packed);
    Ok(())
}

/// Reads a weight as `f32`.
fn vector(value: &Value, source: &dyn WeightSource) -> Result<Aligned<f32>, Error> {
    let mut bytes = Aligned::<u8>::zeroed(value.dtype.bytes(&value.shape)?, &value.name)?;
    source.read(&value.name, 0, &mut bytes)?;
    let view = View::new(value.dtype, value.shape.rows(), value.shape.columns(), &bytes)?;
    let mut values = Aligned::zeroed(value.shape.elements(), &value.name)?;
    view.unpack_rows(0..view.rows(), &mut values);
    Ok(values)
}

/// A matrix of weights, `rows` outputs by `columns` inputs, in bands.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    pub layout: Layout,
    pub rows: usize,
    pub columns: usize,
    /// The number of these rows that are parts of one row of the weight.
    pub row_parts: usize,
    bytes: SharedBytes,
    band_bytes: usize,
    prefetch: PrefetchChoice,
}

impl PackedMatrix {
    /// Makes a matrix of packed bands.
    fn new(value: &Value, shape: PackedShape, bytes: SharedBytes) -> Result<PackedMatrix, Error> {
        let (band_bytes, all) = PackedMatrix::sizes(value, shape)?;
        assert_eq!(bytes.len(), all, "'{}' has the bytes of its layout", value.name);
        let PackedShape { experts: _, rows, columns, row_parts } = shape;
        let (layout, prefetch) = (Layout::of(value.dtype), PrefetchChoice::DEFAULT);
        Ok(PackedMatrix { layout, rows, columns, row_parts, bytes, band_bytes, prefetch })
    }

    /// Makes a matrix of packed bands for each expert.
    fn of_each(value: &Value, shape: PackedShape, bytes: &SharedBytes) -> Result<Vec<PackedMatrix>, Error> {
        let (band_bytes, all) = PackedMatrix::sizes(value, shape)?;
        assert_eq!(bytes.len(), all, "'{}' has the bytes of its layout", value.name);
        let PackedShape { experts, rows, columns, row_parts } = shape;
        let (layout, prefetch, each) = (Layout::of(value.dtype), PrefetchChoice::DEFAULT, all / experts);
        let matrix = |expert: usize| PackedMatrix {
            layout,
            rows,
            columns,
            row_parts,
            bytes: bytes.sub_part(expert * each..(expert + 1) * each),
            band_bytes,
            prefetch,
        };
        Ok((0..experts).map(matrix).collect())
    }

    /// The bytes of a band, and of all bands.
    fn sizes(value: &Value, shape: PackedShape) -> Result<(usize, usize), Error> {
        let band_bytes = Layout::of(value.dtype).band_bytes(shape.columns);
        let count = bands(shape.rows).checked_mul(shape.experts);
        let sizes = band_bytes.and_then(|band| Some((band, band.checked_mul(count?)?)));
        sizes.ok_or_else(|| too_large(value))
    }

    /// The bytes of the whole matrix.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns one band.
    pub fn band(&self, index: usize) -> Band<'_> {
        let bytes = &self.bytes[index * self.band_bytes..(index + 1) * self.band_bytes];
        Band { layout: self.layout, columns: self.columns, bytes, prefetch: self.prefetch }
    }

    /// How far ahead kernels prefetch it.
    pub fn prefetch(&self) -> PrefetchChoice {
        self.prefetch
    }

    /// Returns the bytes of all bands, and the bytes of each.
    pub fn all_bands(&self) -> (&[u8], usize) {
        (&self.bytes, self.band_bytes)
    }

    /// Whether its values are packed as floats.
    pub fn is_float(&self) -> bool {
        matches!(self.layout, Layout::Bf16 | Layout::F16 | Layout::F32)
    }

    /// The number of groups in a row.
    pub fn groups(&self) -> usize {
        self.columns.div_ceil(GROUP)
    }

    /// Decodes up to [`FLOAT_DEPTH`] columns of a band, from column `first` on, as floats to `lines`.
    pub fn decoded<'a>(
        &self,
        table: &Table,
        band: usize,
        first: usize,
        lines: &'a mut [u8; FLOAT_DEPTH * 2 * LINE],
    ) -> Band<'a> {
        let columns = FLOAT_DEPTH.min(self.columns - first);
        let mut put = |column: usize, row: usize, value: f32| {
            lines[(column * BAND + row) * 4..][..4].copy_from_slice(&value.to_le_bytes());
        };
        match (self.layout, self.layout.coding()) {
            (_, Some(coding)) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                (table.matmul.decode)(self.band(band), first / GROUP, columns.div_ceil(GROUP), &mut panels);
                for (row, column) in (0..BAND).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    put(column, row, number(coding, &panels, row, column));
                }
            }
            (Layout::Stored(dtype), _) => self.decoded_stored(dtype, band, first, columns, put),
            _ => unreachable!("floats are multiplied as they are packed"),
        }
        let prefetch = PrefetchChoice::both(PrefetchDistance::NONE); // L1 holds what was just decoded
        Band { layout: Layout::F32, columns, bytes: &lines[..columns * 2 * LINE], prefetch }
    }

    /// Calls `put` with the numbers of some columns of a band that is packed as stored in the file.
    fn decoded_stored(
        &self,
        dtype: DType,
        band: usize,
        first: usize,
        columns: usize,
        mut put: impl FnMut(usize, usize, f32),
    ) {
        let mut values = [0.0; FLOAT_DEPTH];
        let values = &mut values[..columns];
        for (row, bytes) in self.stored_rows(dtype, band).enumerate() {
            dtype.unpack(&bytes[first * dtype.block_bytes()..][..columns * dtype.block_bytes()], values);
            values.iter().enumerate().for_each(|(column, value)| put(column, row, *value));
        }
    }

    /// The rows of a band that is packed as stored in the file.
    fn stored_rows(&self, dtype: DType, band: usize) -> impl Iterator<Item = &[u8]> {
        self.band(band).bytes.chunks_exact((self.columns * dtype.block_bytes()).max(1))
    }

    /// Decodes one row to `values`.
    pub fn row(&self, index: usize, table: &Table, values: &mut [f32]) {
        let (band, row) = (self.band(index / BAND), index % BAND);
        let (unit, bytes) = self.layout.unit();
        match (self.layout, self.layout.coding()) {
            (_, Some(coding)) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                for (block, values) in values.chunks_mut(DEPTH * GROUP).enumerate() {
                    let groups = values.len().div_ceil(GROUP);
                    (table.matmul.decode)(band, block * DEPTH, groups, &mut panels);
                    for (column, value) in values.iter_mut().enumerate() {
                        *value = number(coding, &panels, row, column);
                    }
                }
            }
            (Layout::Stored(dtype), _) => {
                let bytes = self.stored_rows(dtype, index / BAND).nth(row);
                dtype.unpack(bytes.expect("the row is in its band"), values);
            }
            _ => {
                for (column, value) in values.iter_mut().enumerate() {
                    *value = self.layout.float(&band.bytes[column / unit * bytes..], column % unit, row);
                }
            }
        }
    }
}

fn too_large(value: &Value) -> Error {
    Error::new(format!("the weight '{}' exceeds the address space", value.name))
}

/// The number in row `row` and column `column` of decoded groups.
fn number(coding: Coding, panels: &[Panel; 2], row: usize, column: usize) -> f32 {
    let group = &panels[row / LANES][column / GROUP];
    let (lane, column) = (row % LANES, column % GROUP);
    let part = if coding.halves { column / (GROUP / 2) } else { 0 };
    let code = f32::from(group.codes[column / 4][4 * lane + column % 4]) - f32::from(coding.zero);
    let value = group.scales[part][lane] * code;
    if coding.minimums { value - group.minimums[part][lane] } else { value }
}

/// The error of the first piece that failed, in the order of pieces.
#[derive(Default)]
struct FirstError(Mutex<Option<(usize, Error)>>);

impl FirstError {
    /// Whether an earlier piece has failed, so that this one can be skipped.
    fn is_before(&self, piece: usize) -> bool {
        let noted = self.0.lock().expect("nothing panics while it holds the lock");
        noted.as_ref().is_some_and(|(first, _)| *first < piece)
    }

    fn note(&self, piece: usize, error: Error) {
        let mut noted = self.0.lock().expect("nothing panics while it holds the lock");
        if noted.as_ref().is_none_or(|(first, _)| piece < *first) {
            *noted = Some((piece, error));
        }
    }

    fn outcome(self) -> Result<(), Error> {
        match self.0.into_inner().expect("nothing panics while it holds the lock") {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::{Extent, Role};
    use girih_tensor::Shape;

    use super::*;

    /// Each thread fills its own part of every matrix first, the part that it reads first in a step.
    #[test]
    fn each_part_of_all_matrices_is_filled_before_the_next() {
        let value = |name: &str, rows| Value {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: Shape::matrix(rows, 4),
            role: Role::Weight,
            outermost: Extent::Fixed,
        };
        let values = [value("a", 4 * BAND), value("b", 1), value("c", 6 * BAND)];
        let shape = |value: &Value| PackedShape {
            experts: 1,
            rows: value.shape.rows(),
            columns: value.shape.columns(),
            row_parts: 1,
        };
        let ranges = MatrixRange::of_all(values.iter().map(|value| (value, shape(value)))).unwrap();
        assert!(ranges.iter().all(|matrix| matrix.range.start % LINE == 0));
        let mut memory = vec![0; MatrixRange::end(&ranges)];
        let bands = by_parts(&ranges, &mut memory, 2);
        let order: Vec<_> = bands.iter().map(|empty| (&*empty.value.name, empty.band)).collect();
        let first = [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)];
        let second = [("a", 2), ("a", 3), ("c", 3), ("c", 4), ("c", 5)];
        assert_eq!(order, [&first[..], &second].concat());
    }
}
